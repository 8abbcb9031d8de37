#include "schedules/find_depthwise.h"

#include <algorithm>

#include "dsl/differentiate.h"
#include "dsl/simplify.h"

#include "schedules/convolve.h"
#include "schedules/window_sums.h"

namespace tw::schedules {
namespace {

bool reads_elements(const Expr& expr) {
    bool any = false;
    visit(expr, [&](const Expr& e) { any = any || e.as<Read>(); });
    return any;
}

/// An operand, or the result: where the sum reads or has its elements.
struct Accessed {
    Tensor tensor;
    std::vector<Expr> at;
    std::vector<int64_t> extents;

    int rank() const { return static_cast<int>(at.size()); }
};

std::optional<Accessed> accessed(const Tensor& tensor, const std::vector<Expr>& at) {
    Accessed found{tensor, at, {}};
    for (const Expr& extent : tensor.shape()) {
        found.extents.push_back(as_constant(extent).value_or(0));
        if (found.extents.back() <= 0) return {};
    }
    return found;
}

/// Windows of a dimension of images: which are read, by which element of the weight.
struct Side {
    Expr image, window, tap;
    int64_t extent, windows, taps;
};

class DepthwiseSearch {
public:
    DepthwiseSearch(const Tensor& sums, const std::vector<Tensor>& outputs)
        : sums_(sums), outputs_(outputs), own_(window_sum_of_threads(sums, outputs)) {}

    std::optional<FoundDepthwise> run() const {
        if (!own_ || depends_on_data()) return {};
        const auto result = accessed(sums_, own_->around);
        const auto a = operand(0), b = operand(1);
        if (!result || !a || !b) return {};
        for (const auto& [one, other] : {std::pair(*a, *b), std::pair(*b, *a)}) {
            if (auto found = search(ConvolutionPass::Forward, one, other, *result)) return found;
            if (auto found = search(ConvolutionPass::DataGradient, *result, other, one)) return found;
            if (auto found = search(ConvolutionPass::WeightGradient, one, *result, other)) return found;
        }
        return {};
    }

private:
    std::optional<Accessed> operand(size_t number) const {
        const Read& read = *own_->term.reads[number];
        return accessed(Tensor(read.operation, read.output), read.indices);
    }

    bool depends_on_data() const {
        for (const Read* read : own_->term.reads)
            if (std::ranges::any_of(read->indices, reads_elements)) return true;
        return std::ranges::any_of(own_->term.conditions, reads_elements) ||
               std::ranges::any_of(own_->axes, [](const Expr& axis) {
                   const Expr& extent = axis.as<Variable>()->extent;
                   return extent.defined() && reads_elements(extent);
               });
    }

    std::optional<FoundDepthwise> search(ConvolutionPass pass, const Accessed& x, const Accessed& w,
                                         const Accessed& y) const {
        const int sides = x.rank() - 2;
        if ((sides != 1 && sides != 2) || y.rank() != x.rank() || w.rank() <= sides || x.extents[0] != y.extents[0] ||
            x.extents.back() != y.extents.back() || !equal(x.at.back(), y.at.back()))
            return {};
        FoundDepthwise found;
        found.pass = pass;
        found.windows.images = x.extents[0], found.windows.channels = x.extents.back();
        found.windows.is_signal = sides == 1;
        found.windows.type = (pass == ConvolutionPass::DataGradient ? y : x).tensor.type();
        if (pass != ConvolutionPass::DataGradient) found.x = x.tensor;
        if (pass != ConvolutionPass::WeightGradient) found.w = w.tensor;
        if (pass != ConvolutionPass::Forward) found.dy = y.tensor;
        const auto at_channel =
            std::ranges::find_if(w.at, [&](const Expr& index) { return equal(index, x.at.back()); });
        if (at_channel == w.at.end()) return {};
        found.channels = static_cast<int>(at_channel - w.at.begin());
        if (w.extents[static_cast<size_t>(found.channels)] != found.windows.channels) return {};
        for (const std::vector<int>& taps : dimensions_of_taps(w, found.channels, sides)) {
            found.taps = taps;
            if (with_numbers(found, x, w, y)) return found;
        }
        return {};
    }

    /// Those that may have taps, in their order or the other way round: all others have one element.
    static std::vector<std::vector<int>> dimensions_of_taps(const Accessed& w, int channels, int sides) {
        std::vector<std::vector<int>> found;
        auto is_rest = [&](const std::vector<int>& taps) {
            for (int d = 0; d < w.rank(); ++d)
                if (d != channels && std::ranges::find(taps, d) == taps.end() && w.extents[static_cast<size_t>(d)] != 1)
                    return false;
            return true;
        };
        for (int d = 0; d < w.rank(); ++d) {
            if (d == channels) continue;
            if (sides == 1 && is_rest({d})) found.push_back({d});
            for (int e = 0; sides == 2 && e < w.rank(); ++e)
                if (e != d && e != channels && is_rest({d, e})) found.push_back({d, e});
        }
        return found;
    }

    /// Completes what was found by strides, dilations and zeros; or there are none.
    bool with_numbers(FoundDepthwise& found, const Accessed& x, const Accessed& w, const Accessed& y) const {
        const DepthwiseSide one{.extent = 1, .windows = 1, .taps = 1};
        std::vector<std::vector<DepthwiseSide>> candidates;
        if (found.windows.is_signal) candidates.push_back({one});
        for (size_t k = 0; k < found.taps.size(); ++k) {
            const auto tap = static_cast<size_t>(found.taps[k]);
            candidates.push_back(candidates_of(
                {x.at[k + 1], y.at[k + 1], w.at[tap], x.extents[k + 1], y.extents[k + 1], w.extents[tap]}));
        }
        for (const DepthwiseSide& rows : candidates[0])
            for (const DepthwiseSide& columns : candidates[1]) {
                found.windows.rows = rows, found.windows.columns = columns;
                if (rows.taps * columns.taps > 1 && found.windows.reads_image() && is_declared(found)) return true;
            }
        return false;
    }

    /// Strides, dilations and zeros in front of the image with which terms that are drawn read what they do.
    std::vector<DepthwiseSide> candidates_of(const Side& side) const {
        constexpr int64_t most_stride = 8, most_dilation = 8;
        constexpr size_t terms = 12;
        const auto drawn = DrawnTerms(*own_).values({side.image, side.window, side.tap}, terms);
        std::vector<DepthwiseSide> found;
        if (drawn.empty()) return found;
        for (int64_t stride = 1; stride <= most_stride; ++stride)
            for (int64_t dilation = 1; dilation <= most_dilation; ++dilation) {
                auto before = [&](const std::vector<int64_t>& at) { return at[1] * stride + at[2] * dilation - at[0]; };
                const int64_t first = before(drawn[0]);
                if (std::ranges::all_of(drawn, [&](const auto& at) { return before(at) == first; }))
                    found.push_back({side.extent, side.windows, side.taps, stride, first, dilation});
            }
        return found;
    }

    /// Declared like it, by a sum of its own or by convolve(), and compared.
    bool is_declared(const FoundDepthwise& found) const {
        auto same = [&](const Tensor& sums) {
            const auto declared = window_sum_of_threads(behind_casts(sums), outputs_);
            return declared && is_same_sum(*own_, *declared);
        };
        const Tensor x = found.x.defined() ? found.x : result_as_operand(found),
                     w = found.w.defined() ? found.w : result_as_operand(found);
        auto pass_of = [&](const Tensor& y) {
            if (found.pass == ConvolutionPass::Forward) return y;
            return gradients(y, found.dy, {found.pass == ConvolutionPass::DataGradient ? x : w})[0];
        };
        if (same(pass_of(plain(found, x, w)))) return true;
        const Tensor layer = convolved(found, x, w);
        return layer.defined() && same(pass_of(layer));
    }

    Tensor result_as_operand(const FoundDepthwise& found) const {
        return input("result", found.windows.type, {sums_.shape().begin(), sums_.shape().end()});
    }

    static Tensor plain(const FoundDepthwise& found, const Tensor& x, const Tensor& w) {
        const auto& [images, channels, rows, columns, type, is_signal] = found.windows;
        const Axis r = reduce_axis("r", rows.taps), t = reduce_axis("s", columns.taps);
        Shape shape{images, columns.windows, channels};
        if (!is_signal) shape.insert(shape.begin() + 1, rows.windows);
        auto place = [](const DepthwiseSide& side, const Expr& window, const Expr& tap) {
            return window * side.stride + tap * side.dilation - side.before;
        };
        return compute("y", shape, [&](const std::vector<Expr>& at) {
            std::vector<Operand> of_x{at[0]};
            if (!is_signal) of_x.emplace_back(place(rows, at[1], r));
            of_x.emplace_back(place(columns, at[at.size() - 2], t));
            of_x.emplace_back(at.back());
            const std::vector<Expr> of_w = found.of_weight(w.rank(), at.back(), r, t);
            const Expr factor = cast(f32, w.read({of_w.begin(), of_w.end()}));
            const std::vector<Axis> axes = is_signal ? std::vector<Axis>{t} : std::vector<Axis>{r, t};
            return cast(type, sum(cast(f32, padded(x, 0).read(of_x)) * factor, axes));
        });
    }

    /// As a layer declares it, whose gradient may have a rule; undefined: it is none.
    static Tensor convolved(const FoundDepthwise& found, const Tensor& x, const Tensor& w) {
        ConvolutionOptions o{.stride = {}, .dilation = {}, .padding = {}, .groups = found.windows.channels};
        std::vector<DepthwiseSide> sides{found.windows.columns};
        if (!found.windows.is_signal) sides.insert(sides.begin(), found.windows.rows);
        for (const DepthwiseSide& side : sides) {
            const int64_t after =
                (side.windows - 1) * side.stride + (side.taps - 1) * side.dilation + 1 - side.extent - side.before;
            if (side.before < 0 || -after >= side.stride) return {};  // layers have as many windows as fit
            o.stride.push_back(side.stride), o.dilation.push_back(side.dilation);
            o.padding.emplace_back(side.before, std::max<int64_t>(after, 0));
        }
        const bool has_order = found.channels == 0 && std::ranges::is_sorted(found.taps) && w.rank() == x.rank() &&
                               found.taps.back() + 2 == w.rank();
        return has_order ? convolve("y", x, w, {}, o) : Tensor();
    }

    const Tensor sums_;
    const std::vector<Tensor>& outputs_;
    const std::optional<WindowSum> own_;
};

}  // namespace

std::vector<Expr> FoundDepthwise::of_weight(int rank, const Expr& channel, const Expr& row, const Expr& column) const {
    std::vector<Expr> at(static_cast<size_t>(rank), integer(0));
    at[static_cast<size_t>(channels)] = channel;
    if (taps.size() > 1) at[static_cast<size_t>(taps.front())] = row;
    at[static_cast<size_t>(taps.back())] = column;
    return at;
}

std::optional<FoundDepthwise> find_depthwise(const Tensor& sums, const std::vector<Tensor>& outputs) {
    return DepthwiseSearch(sums, outputs).run();
}

}  // namespace tw::schedules
