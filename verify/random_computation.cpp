#include "verify/random_computation.h"

#include <algorithm>

#include <fmt/format.h>

#include "dsl/declare_scan.h"
#include "dsl/differentiate.h"
#include "verify/problem_data.h"

namespace tw::fuzz {
namespace {

constexpr int64_t most_points = 60000;     // that a stage computes, terms of sums included
constexpr int64_t most_products = 600000;  // of a product on matrix units
constexpr int64_t most_elements = 400000;  // of an input
constexpr double most_magnitude = 4.0;     // of what another stage reads

/// An index variable and how many values it has.
struct Ranged {
    Expr axis;
    int64_t extent;
};
using Axes = std::vector<Ranged>;

/// Not below 0, and at most `last`.
struct Index {
    Expr value;
    int64_t last;
};

class Maker {
public:
    /// `sums`: what reduces is a sum; gradients of maxima divide by how many terms are as large.
    Maker(Random& random, bool sums, ByData by_data) : random_(random), sums_(sums), by_data_(by_data == ByData::Yes) {}

    const std::vector<Tensor>& inputs() const { return inputs_; }

    RandomComputation make(int64_t stages) {
        RandomComputation result;
        for (int64_t left = stages; left > 0; --left) {
            const bool last = left == 1;
            switch (random_.below(by_data_ ? 7 : 6)) {
                case 0:
                case 1: result.kind = "map", made_.push_back(map(last)); break;
                case 2: result.kind = "reduction", made_.push_back(reduction(last)); break;
                case 3: result.kind = "product", made_.push_back(product(last)); break;
                case 4: result.kind = "scan", made_.push_back(scan(last)); break;
                case 5: result.kind = "window", made_.push_back(window(last)); break;
                default: result.kind = "scatter", made_.push_back(scatter(last)); break;
            }
        }
        for (const Tensor& tensor : made_)
            if (tensor.same(made_.back()) || random_.chance(0.2)) result.outputs.push_back(tensor);
        return result;
    }

private:
    std::string name(const char* what) { return fmt::format("{}{}", what, names_++); }

    // Shapes.

    std::vector<int64_t> extents(int count, int64_t points) { return random_extents(random_, count, points); }

    static Axes ranged(const std::vector<Expr>& axes, const std::vector<int64_t>& shape) {
        Axes result;
        for (size_t d = 0; d < axes.size(); ++d) result.push_back({axes[d], shape[d]});
        return result;
    }

    std::vector<Axis> reduce_axes(const std::vector<int64_t>& extents, Axes& axes) {
        std::vector<Axis> result;
        for (int64_t extent : extents) {
            result.push_back(reduce_axis(name("r"), extent));
            axes.push_back({result.back(), extent});
        }
        return result;
    }

    static int64_t count_of(const std::vector<int64_t>& shape) {
        int64_t count = 1;
        for (int64_t extent : shape) count *= std::max<int64_t>(extent, 1);
        return count;
    }

    // Reads.

    Index index(const Axes& axes) {
        if (axes.empty() || random_.chance(0.03)) return constant_index();
        const auto& [axis, extent] = random_.pick(axes);
        const int64_t last = std::max<int64_t>(extent - 1, 0), c = random_.between(1, 4);
        switch (random_.below(16)) {
            case 0: return {axis + c, last + c};
            case 1: return {last - axis, last};
            case 2: return {axis * c, last * c};
            case 3: return {axis * 2 + c, last * 2 + c};
            case 4: return {axis / c, last / c};
            case 5: return {axis % c, std::min(last, c - 1)};
            case 6: {
                const auto& [other, size] = random_.pick(axes);
                return {axis * std::max<int64_t>(size, 1) + other,
                        last * std::max<int64_t>(size, 1) + std::max<int64_t>(size - 1, 0)};
            }
            case 7: {
                const auto& [other, size] = random_.pick(axes);
                return {axis + other, last + std::max<int64_t>(size - 1, 0)};
            }
            default: return {axis, last};
        }
    }
    Index constant_index() {
        const int64_t value = random_.between(0, 2);
        return {constant(Type::I64, value), value};
    }

    bool is_by_data() { return by_data_ && random_.chance(0.08); }
    /// What data say, at some of the axes: it decides where something is read, or what something counts for.
    Expr data_index(const Axes& axes) {
        std::vector<Index> at;
        int64_t elements = 1;
        for (const auto& [axis, extent] : axes)
            if (elements * extent <= most_elements && random_.chance(at.empty() ? 0.8 : 0.4)) {
                at.push_back({axis, std::max<int64_t>(extent - 1, 0)});
                elements *= std::max<int64_t>(extent, 1);
            }
        if (at.empty()) at.push_back(constant_index());
        Shape shape;
        std::vector<Operand> indices;
        for (const Index& i : at) shape.emplace_back(i.last + 1), indices.emplace_back(i.value);
        return cast(i64, input(name("at"), random_.chance(0.6) ? i32 : i64, shape).read(indices));
    }

    /// Of an input that is as large as needed, or that ends before.
    Expr read_input(const Axes& axes) {
        const auto rank =
            static_cast<size_t>(random_.between(1, std::min<int64_t>(4, static_cast<int64_t>(axes.size()) + 1)));
        std::vector<Index> indices;
        for (size_t d = 0; d < rank; ++d)
            indices.push_back(is_by_data() ? Index{data_index(axes), random_.between(0, 70)} : index(axes));
        return read(indices, random_.pick(std::vector<Type>{f32, f32, bf16, f16, i8, i32}));
    }
    Expr read(std::vector<Index> indices, Type type, Type as = f32) {
        std::vector<int64_t> shape;
        int64_t elements = 1;
        for (Index& i : indices) {
            if (elements * (i.last + 1) > most_elements) i = constant_index();
            shape.push_back(i.last + 1 + (random_.chance(0.2) ? random_.between(1, 3) : 0));
            elements *= shape.back();
        }
        const bool guarded = random_.chance(0.15);
        if (guarded) shape.back() = std::max<int64_t>(shape.back() - random_.between(1, 3), 1);
        const Tensor x = input(name("x"), type, Shape(shape.begin(), shape.end()));
        inputs_.push_back(x);
        std::vector<Operand> at;
        for (const Index& i : indices) at.emplace_back(i.value);
        if (guarded) at.back() = Operand(indices.back().value - random_.between(0, 2));
        return cast(as, guarded ? padded(x, 0).read(at) : x.read(at));
    }

    /// Of another stage, within what it has.
    Expr read_stage(const Axes& axes) {
        const Tensor& stage = random_.pick(made_);
        std::vector<Operand> at;
        bool guarded = false;
        for (const Expr& extent : stage.shape()) {
            const int64_t length = require_constant(extent);
            if (length == 0) return constant(f32, 1.0);
            const Index i = is_by_data() ? Index{data_index(axes), length - 1} : fitting(axes, length);
            if (i.last < length) {
                at.emplace_back(i.value);
            } else if (random_.chance(0.5)) {
                at.emplace_back(i.value % length);
            } else {
                at.emplace_back(i.value - 1);
                guarded = true;
            }
        }
        return cast(f32, guarded ? padded(stage, 0).read(at) : stage.read(at));
    }
    /// Rather an axis of that length.
    Index fitting(const Axes& axes, int64_t length) {
        for (const auto& [axis, extent] : axes)
            if (extent == length && random_.chance(0.7)) return {axis, length - 1};
        return index(axes);
    }

    Expr leaf(const Axes& axes) {
        if (random_.chance(0.06)) return constant(f32, static_cast<double>(random_.between(-2, 2)));
        return !made_.empty() && random_.chance(0.6) ? read_stage(axes) : read_input(axes);
    }

    Expr value(const Axes& axes, int depth) {
        if (depth == 0) return leaf(axes);
        const Expr a = value(axes, depth - 1), b = value(axes, random_.chance(0.5) ? 0 : depth - 1);
        switch (random_.below(9)) {
            case 0: return a + b;
            case 1: return a - b;
            case 2: return a * b;
            case 3: return max(a, b);
            case 4: return min(a, b);
            case 5: return relu(a) + b;
            case 6: return select(a < b, a, b * 2.0);
            case 7:
                if (axes.empty()) return abs(a);
                return select(random_.pick(axes).axis < random_.between(0, 20), a, b);
            default: return a;
        }
    }

    // Stages.

    /// What others read stays small; results may be of any type that holds them.
    Expr stored(const Expr& value, bool last) {
        const Type type = random_.pick(std::vector<Type>{f32, f32, bf16, f16});
        if (last && random_.chance(0.5)) return value;
        return cast(type, min(max(value, -most_magnitude), most_magnitude));
    }

    Tensor map(bool last) {
        const auto shape = extents(static_cast<int>(random_.between(1, 4)), random_.chance(0.2) ? 20000 : 3000);
        const auto depth = static_cast<int>(random_.between(0, 2));
        return compute(name("m"), Shape(shape.begin(), shape.end()),
                       [&](const std::vector<Expr>& axes) { return stored(value(ranged(axes, shape), depth), last); });
    }

    Expr reduced(const Expr& term, const std::vector<Axis>& axes) {
        switch (sums_ ? 2 : random_.below(6)) {
            case 0: return reduce_max(term, axes);
            case 1: return reduce_min(term, axes);
            default: return sum(term, axes);
        }
    }

    Tensor reduction(bool last) {
        const auto shape = extents(static_cast<int>(random_.between(1, 3)), random_.chance(0.3) ? 2000 : 200);
        int64_t points = 1;
        for (int64_t extent : shape) points *= std::max<int64_t>(extent, 1);
        auto terms = extents(static_cast<int>(random_.between(1, 2)), std::min<int64_t>(most_points / points, 2000));
        for (int64_t& t : terms) t = std::max<int64_t>(t, 1);
        if (random_.chance(0.2))
            terms = {std::min<int64_t>(random_.between(100, 1500), std::max<int64_t>(most_points / points, 1))};
        return compute(name("s"), Shape(shape.begin(), shape.end()), [&](const std::vector<Expr>& own) {
            Axes axes = ranged(own, shape);
            const auto reduced_axes = reduce_axes(terms, axes);
            const Expr a = leaf(axes), term = random_.chance(0.5) ? a * leaf(axes) : a;
            return finished(reduced(term, reduced_axes), ranged(own, shape), last);
        });
    }

    /// With something behind the sums.
    Expr finished(Expr sums, const Axes& axes, bool last) {
        if (sums.type() != Type::F32) sums = cast(f32, sums);
        if (random_.chance(0.3)) sums = sums + leaf(axes);
        if (random_.chance(0.2)) sums = relu(sums);
        return stored(sums, last);
    }

    /// Of all terms up to a place, from it on, or without it.
    Tensor scan(bool last) {
        std::vector<int64_t> shape = extents(static_cast<int>(random_.below(3)), random_.chance(0.3) ? 300 : 30);
        const int64_t length =
            random_.chance(0.4) ? random_.between(1, 260) : std::max<int64_t>(random_extent(random_, 64), 1);
        while (count_of(shape) * length * length > 10 * most_points) *std::ranges::max_element(shape) /= 2;
        const auto along = static_cast<size_t>(random_.below(static_cast<int64_t>(shape.size()) + 1));
        shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(along), length);
        const ScanOptions options{.exclusive = random_.chance(0.3), .reverse = random_.chance(0.3)};
        return compute(name("c"), Shape(shape.begin(), shape.end()), [&](const std::vector<Expr>& own) {
            Axes axes = ranged(own, shape);
            const Axis j = reduce_axis(name("r"), length);
            axes[along].axis = j;
            const Expr a = leaf(axes), term = random_.chance(0.3) ? a * leaf(axes) : a;
            return finished(scanned(term, j, own[along], options), ranged(own, shape), last);
        });
    }
    Expr scanned(const Expr& term, const Axis& axis, const Expr& place, const ScanOptions& options) {
        switch (sums_ ? 3 : random_.below(6)) {
            case 0: return tw::scan(reduce_max, term, axis, place, options);
            case 1: return tw::scan(reduce_min, term, axis, place, options);
            case 2: return tw::scan(last_but_zeros(), {cast(f32, term)}, axis, place, options)[0];
            default: return tw::scan(sum, term, axis, place, options);
        }
    }
    /// In the order of its terms.
    static Reducer last_but_zeros() {
        return make_reducer(
            "last_but_zeros", {constant(f32, 0.0)},
            [](auto& a, auto& b) { return std::vector<Expr>{select(b[0] == constant(f32, 0.0), a[0], b[0])}; }, false);
    }

    /// y[.., row, ..] of the terms for which data say this row.
    Tensor scatter(bool last) {
        std::vector<int64_t> shape = extents(static_cast<int>(random_.below(3)), random_.chance(0.3) ? 300 : 30);
        const auto along = static_cast<size_t>(random_.below(static_cast<int64_t>(shape.size()) + 1));
        shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(along),
                     random_.chance(0.3) ? random_.between(1, 200) : random_extent(random_, 64));
        auto terms = extents(static_cast<int>(random_.between(1, 2)), 300);
        for (int64_t& t : terms) t = std::max<int64_t>(t, 1);
        while (count_of(shape) * count_of(terms) > 10 * most_points) *std::ranges::max_element(terms) /= 2;
        return compute(name("d"), Shape(shape.begin(), shape.end()), [&](const std::vector<Expr>& own) {
            Axes axes = ranged(own, shape), of_terms;
            const auto reduced_axes = reduce_axes(terms, of_terms);
            const Expr row = own[along];
            axes.erase(axes.begin() + static_cast<std::ptrdiff_t>(along));
            axes.insert(axes.end(), of_terms.begin(), of_terms.end());
            const Expr counts = random_.chance(0.5) ? data_index(of_terms) == row : row == data_index(axes);
            const Expr a = leaf(axes), term = random_.chance(0.3) ? a * leaf(axes) : a;
            return finished(scattered(counts, term, reduced_axes), ranged(own, shape), last);
        });
    }
    Expr scattered(const Expr& counts, const Expr& term, const std::vector<Axis>& axes) {
        const double huge = 1e30;
        switch (sums_ ? 2 : random_.below(6)) {
            case 0: return reduce_max(select(counts, cast(f32, term), constant(f32, -huge)), axes);
            case 1: return reduce_min(select(counts, cast(f32, term), constant(f32, huge)), axes);
            default: return sum(select(counts, cast(f32, term), constant(f32, 0.0)), axes);
        }
    }

    int64_t side() { return random_.chance(0.4) ? 16 * random_.between(1, 8) : random_.between(1, 140); }

    /// c[.., i, j] = sum_k a[.., i, k] b[.., k, j], operands stored in any order of their dimensions.
    Tensor product(bool last) {
        std::vector<int64_t> shape = extents(static_cast<int>(random_.below(3)), 6);
        for (int64_t& extent : shape) extent = std::max<int64_t>(extent, 1);
        int64_t points = 1, k = side();
        for (int64_t extent : shape) points *= extent;
        shape.push_back(side());
        shape.push_back(side());
        while (points * shape.back() * shape[shape.size() - 2] * k > most_products)
            (k > 16 ? k : shape[shape.size() - (random_.chance(0.5) ? 1 : 2)]) /= 2;
        for (int64_t& extent : shape) extent = std::max<int64_t>(extent, 1);
        const Type type = random_.pick(std::vector<Type>{f32, bf16, bf16, f16, i8, e4m3});
        return compute(name("p"), Shape(shape.begin(), shape.end()), [&](const std::vector<Expr>& own) {
            Axes axes = ranged(own, shape);
            Axes left(axes.begin(), axes.end() - 1), right(axes.begin(), axes.end() - 2), all = axes;
            right.push_back(axes.back());
            const auto terms = reduce_axes({k}, all);
            left.push_back(all.back());
            right.push_back(all.back());
            return finished(sum(operand(left, type) * operand(right, type), terms), axes, last);
        });
    }
    /// At each of the axes, but batches that it may lack.
    Expr operand(Axes axes, Type type) {
        if (axes.size() > 2 && random_.chance(0.2)) axes.erase(axes.begin());
        if (random_.chance(0.6)) random_.shuffle(axes);
        std::vector<Index> indices;
        for (const auto& [axis, extent] : axes) indices.push_back({axis, extent - 1});
        return read(indices, type, type == i8 ? i32 : f32);
    }

    /// y[n, p.., f] = sum_{r.., c} x[n, p u + r d - o.., c] w[f, r.., c], channels anywhere.
    Tensor window(bool last) {
        const auto dimensions = static_cast<size_t>(random_.between(1, 2));
        const int64_t channels = random_.chance(0.5) ? 8 * random_.between(1, 5) : random_.between(1, 30),
                      filters = random_.chance(0.5) ? 8 * random_.between(1, 5) : random_.between(1, 30);
        std::vector<int64_t> shape{random_.between(1, 3)}, taps;
        for (size_t d = 0; d < dimensions; ++d) {
            shape.push_back(random_.between(1, dimensions == 1 ? 40 : 9));
            taps.push_back(random_.between(1, 4));
        }
        shape.push_back(filters);
        const bool channels_first = random_.chance(0.3);
        if (channels_first) std::rotate(shape.begin() + 1, shape.end() - 1, shape.end());
        taps.push_back(channels);
        const Type type = random_.chance(0.5) ? bf16 : random_.chance(0.5) ? f16 : f32;
        return compute(name("w"), Shape(shape.begin(), shape.end()), [&](const std::vector<Expr>& own) {
            Axes axes = ranged(own, shape), all = axes;
            const auto terms = reduce_axes(taps, all);
            const Axes rs(all.begin() + static_cast<std::ptrdiff_t>(axes.size()), all.end());
            const size_t first = channels_first ? 2 : 1;
            const Ranged& f = channels_first ? axes[1] : axes.back();
            std::vector<Index> image{{axes[0].axis, axes[0].extent - 1}}, weight{{f.axis, f.extent - 1}};
            for (size_t d = 0; d < dimensions; ++d) {
                const auto& [p, pixels] = axes[first + d];
                const int64_t stride = random_.between(1, 2), dilation = random_.between(1, 2);
                image.push_back(
                    {p * stride + rs[d].axis * dilation, (pixels - 1) * stride + (rs[d].extent - 1) * dilation});
                weight.push_back({rs[d].axis, rs[d].extent - 1});
            }
            const Index c{rs.back().axis, channels - 1};
            image.insert(channels_first ? image.begin() + 1 : image.end(), c);
            weight.insert(channels_first ? weight.begin() + 1 : weight.end(), c);
            return finished(sum(read(image, type) * read(weight, type), terms), axes, last);
        });
    }

    Random& random_;
    bool sums_, by_data_;
    std::vector<Tensor> made_, inputs_;
    int names_ = 0;
};

}  // namespace

RandomComputation random_computation(Random& random) { return random_computation(random, random.between(1, 4)); }
RandomComputation random_computation(Random& random, int64_t stages, ByData by_data) {
    return Maker(random, false, by_data).make(stages);
}

RandomComputation random_gradients(Random& random, ByData by_data) {
    Maker maker(random, true, by_data);
    RandomComputation made = maker.make(1);
    const Tensor& y = made.outputs[0];
    std::vector<Tensor> inputs = maker.inputs();
    std::erase_if(inputs, [](const Tensor& x) { return !is_float(x.type()); });
    if (inputs.empty()) return made;
    std::vector<Tensor> found = gradients(y, input("dy", y.type(), Shape(y.shape().begin(), y.shape().end())), inputs);
    std::erase_if(found, [](const Tensor& gradient) { return gradient.operation()->is_input(); });  // dy itself
    return found.empty() ? made : RandomComputation{found, "gradient"};
}

}  // namespace tw::fuzz
