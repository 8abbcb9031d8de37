// Operators of random shapes, dimensions and types against loops in float64, gradients against central differences.
// TW_FUZZ_OPERATORS=1000 draws as many of each kind.
#include <algorithm>
#include <array>
#include <cmath>

#include "ops/comparisons.h"
#include "ops/layers.h"
#include "tests/ops/tape_arrays.h"
#include "tests/verify/fuzz_seed.h"

namespace tw::nn {
namespace {

double tolerance_of(Type type) {
    return type == f64 ? 1e-11 : type == f32 ? 2e-5 : type == f16 ? 4e-3 : type == bf16 ? 3e-2 : 0;
}

struct Binary {
    const char* name;
    Tensor (*on_tape)(const Tensor& x, const Tensor& y);
    double (*plain)(double x, double y);
    bool is_comparison = false;
};
constexpr std::array binaries{
    Binary{"add", [](const Tensor& x, const Tensor& y) { return x + y; }, [](double x, double y) { return x + y; }},
    Binary{"subtract", [](const Tensor& x, const Tensor& y) { return x - y; },
           [](double x, double y) { return x - y; }},
    Binary{"multiply", [](const Tensor& x, const Tensor& y) { return x * y; },
           [](double x, double y) { return x * y; }},
    Binary{"maximum", [](const Tensor& x, const Tensor& y) { return maximum(x, y); },
           [](double x, double y) { return std::max(x, y); }},
    Binary{"minimum", [](const Tensor& x, const Tensor& y) { return minimum(x, y); },
           [](double x, double y) { return std::min(x, y); }},
    Binary{"less", [](const Tensor& x, const Tensor& y) { return x < y; },
           [](double x, double y) { return double(x < y); }, true},
    Binary{"less_equal", [](const Tensor& x, const Tensor& y) { return x <= y; },
           [](double x, double y) { return double(x <= y); }, true},
    Binary{"greater", [](const Tensor& x, const Tensor& y) { return x > y; },
           [](double x, double y) { return double(x > y); }, true},
    Binary{"greater_equal", [](const Tensor& x, const Tensor& y) { return x >= y; },
           [](double x, double y) { return double(x >= y); }, true},
    Binary{"equal", [](const Tensor& x, const Tensor& y) { return x == y; },
           [](double x, double y) { return double(x == y); }, true},
    Binary{"not_equal", [](const Tensor& x, const Tensor& y) { return x != y; },
           [](double x, double y) { return double(x != y); }, true}};

double sum_of(const Values& terms) { return std::accumulate(terms.begin(), terms.end(), 0.0); }
double squares_of(const Values& terms, double from) {
    double total = 0;
    for (double term : terms) total += (term - from) * (term - from);
    return total;
}
double variance_of(const Values& terms) {
    const auto count = static_cast<double>(terms.size());
    return squares_of(terms, sum_of(terms) / count) / count;
}

struct Reduction {
    const char* name;
    Tensor (*on_tape)(const Tensor& x, const std::vector<int>& dims, bool keep);
    double (*plain)(const Values& terms);
    bool of_integers = false;
    bool of_none = false;  // has a value where there are no terms
};
using Along = std::vector<int>;
constexpr std::array reductions{
    Reduction{"sum", [](const Tensor& x, const Along& d, bool keep) { return sum(x, d, keep); }, sum_of, true, true},
    Reduction{"mean", [](const Tensor& x, const Along& d, bool keep) { return mean(x, d, keep); },
              [](const Values& terms) { return sum_of(terms) / static_cast<double>(terms.size()); }},
    Reduction{"max", [](const Tensor& x, const Along& d, bool keep) { return nn::max(x, d, keep); },
              [](const Values& terms) { return *std::ranges::max_element(terms); }, true},
    Reduction{"min", [](const Tensor& x, const Along& d, bool keep) { return nn::min(x, d, keep); },
              [](const Values& terms) { return *std::ranges::min_element(terms); }, true},
    Reduction{"prod", [](const Tensor& x, const Along& d, bool keep) { return prod(x, d, keep); },
              [](const Values& terms) { return std::accumulate(terms.begin(), terms.end(), 1.0, std::multiplies<>()); },
              false, true},
    Reduction{"logsumexp", [](const Tensor& x, const Along& d, bool keep) { return logsumexp(x, d, keep); },
              [](const Values& terms) {
                  double total = 0;
                  for (double term : terms) total += std::exp(term);
                  return std::log(total);
              }},
    Reduction{"var", [](const Tensor& x, const Along& d, bool keep) { return var(x, d, 0, keep); }, variance_of},
    Reduction{"std", [](const Tensor& x, const Along& d, bool keep) { return nn::std(x, d, 0, keep); },
              [](const Values& terms) { return std::sqrt(variance_of(terms)); }},
    Reduction{"norm", [](const Tensor& x, const Along& d, bool keep) { return norm(x, d, keep); },
              [](const Values& terms) { return std::sqrt(squares_of(terms, 0)); }, false, true}};

class RandomOperators : public OnTapeTests {
protected:
    void SetUp() override {
        OnTapeTests::SetUp();
        if (device_) random_.seed(seed_ = fuzz::fuzz_seed());
    }
    int64_t below(int64_t count) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(count)); }
    template <class Each>
    const Each& one_of(const Each* each, size_t count) {
        return each[below(static_cast<int64_t>(count))];
    }
    /// Of at most so many elements.
    Dims random_shape(bool may_be_empty, int64_t most = 256) {
        Dims shape(static_cast<size_t>(below(5)));
        constexpr std::array<int64_t, 6> extents{1, 1, 2, 3, 5, 7};
        for (int64_t& extent : shape) extent = extents[static_cast<size_t>(below(6))];
        while (count_of(shape) > most) shape[static_cast<size_t>(below(std::ssize(shape)))] = 1;
        if (may_be_empty && !shape.empty() && below(12) == 0) shape[static_cast<size_t>(below(std::ssize(shape)))] = 0;
        return shape;
    }
    /// A shape that is broadcast to this one, and of its rank if `is_whole`.
    Dims narrowed(const Dims& shape, bool is_whole) {
        Dims narrow(shape.begin() + (is_whole ? 0 : below(std::ssize(shape) + 1)), shape.end());
        for (int64_t& extent : narrow)
            if (below(3) == 0) extent = 1;
        return narrow;
    }
    /// Multiples of 1/4, of which some are equal, or any numbers.
    Array random_array(const Dims& shape, Type type, bool is_smooth = false) {
        std::uniform_real_distribution<double> uniform(-2, 2);
        return array(shape, [&](const Dims&) {
            if (type == boolean) return double(below(2));
            return is_smooth ? uniform(random_) : is_float(type) ? double(below(17) - 8) / 4 : double(below(9) - 4);
        });
    }
    Tensor tensor_of(const Array& values, Type type, const std::string& name) const {
        HostArray host = host_array(type, values.shape);
        size_t place = 0;
        Dims at(values.shape.size(), 0);
        for (bool more = !values.values.empty(); more; more = advance(at, values.shape))
            host.set(at, make_value(f64, values.values[place++]));
        return Tensor(backend_, host, name);
    }
    void expect_values(const Tensor& got, const Array& expected, double tolerance) const {
        ASSERT_EQ(got.shape(), expected.shape);
        const HostArray host = got.to_host();
        Values values;
        Dims at(expected.shape.size(), 0);
        for (bool more = !expected.values.empty(); more; more = advance(at, expected.shape)) {
            const Value value = host.at(at);
            values.push_back(is_float(value.type) ? value.real : static_cast<double>(value.integer));
        }
        expect_near(values, expected.values, tolerance, "element");
    }
    /// By calls, or as one graph.
    Tensor made(const std::function<Tensor()>& f) {
        if (below(4) > 0) return f();
        kept_.push_back(compile(backend_, [&] { return std::vector{f()}; }));
        kept_.back().run();
        return kept_.back().results()[0];
    }
    /// Gradients of f64, in the results' order.
    void expect_gradients(const OnTape& f, const Plain& plain, std::vector<Array> in) {
        std::vector<Tensor> leaves;
        for (const Array& x : in) leaves.push_back(tensor_of(x, f64, "x").set_requires_grad());
        const Array weights = random_array(plain(in).shape, f64, true);
        backward(cast(sum(f(leaves) * tensor_of(weights, f64, "weights")), f32));
        for (size_t k = 0; k < in.size(); ++k) {
            const Values expected = slopes(in[k].values, [&] {
                const Array y = plain(in);
                return std::inner_product(y.values.begin(), y.values.end(), weights.values.begin(), 0.0);
            });
            expect_values(leaves[k].grad(), {in[k].shape, expected}, 1e-7);
        }
    }
    Along random_dims(const Dims& shape) {
        Along dims;
        const int rank = static_cast<int>(shape.size());
        for (int d = 0; d < rank; ++d)
            if (below(2)) dims.push_back(below(2) ? d : d - rank);
        std::ranges::shuffle(dims, random_);
        return dims;
    }

    uint64_t seed_ = 0;
    std::mt19937_64 random_;
    std::vector<CompiledStep> kept_;
};
TW_ON_EACH_DEVICE(RandomOperators);

constexpr std::array types{f32, f64, f16, bf16, i32};

TEST_P(RandomOperators, OfTwo) {
    for (int64_t n = 0; n < fuzz::number_from_environment("TW_FUZZ_OPERATORS", 30); ++n) {
        const Type type = one_of(types.data(), types.size());
        const Dims shape = random_shape(true);
        const bool is_first_whole = below(2);
        const Array x = random_array(narrowed(shape, is_first_whole), type),
                    y = random_array(narrowed(shape, !is_first_whole), type);
        const Binary& of = one_of(binaries.data(), binaries.size());
        SCOPED_TRACE(fmt::format("seed {}, {}: {} {} {} {}", seed_, n, of.name, name_of(type), shape_text(x.shape),
                                 shape_text(y.shape)));
        Dims result(std::max(x.shape.size(), y.shape.size()));
        for (size_t back = 1; back <= result.size(); ++back) {
            const auto extent = [&](const Dims& of) { return back > of.size() ? 1 : of[of.size() - back]; };
            result[result.size() - back] = extent(x.shape) == 1 ? extent(y.shape) : extent(x.shape);
        }
        const Tensor a = tensor_of(x, type, "a"), b = tensor_of(y, type, "b");
        const Tensor got = made([&] { return of.on_tape(a, b); });
        EXPECT_EQ(got.type(), of.is_comparison ? boolean : type);
        expect_values(got, of_two(result, of.plain)({x, y}), tolerance_of(type));
        if (HasFatalFailure()) return;

        const Array condition = random_array(narrowed(shape, true), boolean);
        const Tensor c = tensor_of(condition, boolean, "c");
        Dims all = result;
        for (size_t back = 1; back <= all.size(); ++back)
            if (back <= condition.shape.size() && all[all.size() - back] == 1)
                all[all.size() - back] = condition.shape[condition.shape.size() - back];
        all.insert(all.begin(), condition.shape.begin(),
                   condition.shape.end() - std::min(std::ssize(all), std::ssize(condition.shape)));
        if (n % 3 == 0)
            expect_values(made([&] { return where(c, a, b); }),
                          array(all, [&](const Dims& at) { return condition(at) ? x(at) : y(at); }), 0);
        if (n % 4 || of.is_comparison || HasFatalFailure()) continue;
        expect_gradients([&](const auto& in) { return of.on_tape(in[0], in[1]); }, of_two(result, of.plain),
                         {random_array(x.shape, f64, true), random_array(y.shape, f64, true)});
        if (HasFatalFailure()) return;
    }
}

TEST_P(RandomOperators, Reductions) {
    for (int64_t n = 0; n < fuzz::number_from_environment("TW_FUZZ_OPERATORS", 30); ++n) {
        const Reduction& of = one_of(reductions.data(), reductions.size());
        const Type type = one_of(types.data(), types.size() - (of.of_integers ? 0 : 1));
        const Dims whole = random_shape(of.of_none, std::string(of.name) == "prod" ? 16 : 256);
        const Along dims = random_dims(whole);
        const bool keep = below(2);
        SCOPED_TRACE(fmt::format("seed {}, {}: {} {} {} along {} {}", seed_, n, of.name, name_of(type),
                                 shape_text(whole), shape_text({dims.begin(), dims.end()}), keep));
        Dims kept = whole, shape;
        for (int d = 0; d < static_cast<int>(whole.size()); ++d) {
            const bool is_named = dims.empty() || std::ranges::count(dims, d) ||
                                  std::ranges::count(dims, d - static_cast<int>(whole.size()));
            if (is_named) kept[static_cast<size_t>(d)] = 1;
            if (!is_named || keep) shape.push_back(kept[static_cast<size_t>(d)]);
        }
        const Plain plain = [&](const std::vector<Array>& in) {
            std::vector<Values> terms(static_cast<size_t>(count_of(kept)));
            array(whole, [&](const Dims& at) {
                int64_t place = 0;
                for (size_t d = 0; d < at.size(); ++d) place = place * kept[d] + (kept[d] == 1 ? 0 : at[d]);
                terms[static_cast<size_t>(place)].push_back(in[0](at));
                return 0;
            });
            Array result{shape, {}};
            for (const Values& each : terms) result.values.push_back(of.plain(each));
            return result;
        };
        const Array x = random_array(whole, type);
        const Tensor a = tensor_of(x, type, "a");
        expect_values(made([&] { return of.on_tape(a, dims, keep); }), plain({x}), tolerance_of(type));
        if (HasFatalFailure()) return;
        if (n % 3 == 0 && std::string(of.name) != "std")  // which has no slope of one term
            expect_gradients([&](const auto& in) { return of.on_tape(in[0], dims, keep); }, plain,
                             {random_array(whole, f64, true)});
        if (HasFatalFailure()) return;
    }
}

TEST_P(RandomOperators, AlongOneDimension) {
    for (int64_t n = 0; n < fuzz::number_from_environment("TW_FUZZ_OPERATORS", 12); ++n) {
        const Type type = one_of(types.data(), types.size());
        Dims whole = random_shape(false);
        whole.push_back(1 + below(9));
        std::ranges::shuffle(whole, random_);
        const auto d = static_cast<size_t>(below(std::ssize(whole)));
        const int dim = static_cast<int>(d) - (below(2) ? static_cast<int>(whole.size()) : 0);
        SCOPED_TRACE(fmt::format("seed {}, {}: {} {} along {}", seed_, n, name_of(type), shape_text(whole), dim));
        const Array x = random_array(whole, type);
        const Tensor a = tensor_of(x, type, "a");
        const Plain running = [&](const std::vector<Array>& in) {
            return array(whole, [&](Dims at) {
                double total = 0;
                for (; at[d] >= 0; --at[d]) total += in[0](at);
                return total;
            });
        };
        expect_values(made([&] { return cumsum(a, dim); }), running({x}), tolerance_of(type));
        for (double sign : {1.0, -1.0}) {
            Dims kept = whole;
            kept[d] = 1;
            const Array places = array(kept, [&](Dims at) {
                int64_t best = 0;
                double most = -9;
                for (at[d] = 0; at[d] < whole[d]; ++at[d])
                    if (sign * x(at) > most) {
                        most = sign * x(at);
                        best = at[d];
                    }
                return double(best);
            });
            expect_values(made([&] { return sign > 0 ? argmax(a, dim, true) : argmin(a, dim, true); }), places, 0);
        }
        const Array holds = random_array(whole, boolean);
        if (n % 4 == 0) {
            expect_gradients([&](const auto& in) { return cumsum(in[0], dim); }, running,
                             {random_array(whole, f64, true)});
            expect_values(made([&] { return any(tensor_of(holds, boolean, "b")); }),
                          {{}, {*std::ranges::max_element(holds.values)}}, 0);
            expect_values(made([&] { return all(tensor_of(holds, boolean, "b")); }),
                          {{}, {*std::ranges::min_element(holds.values)}}, 0);
        }
        if (HasFatalFailure()) return;
    }
}

}  // namespace
}  // namespace tw::nn
