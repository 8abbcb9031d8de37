#include "schedules/find_convolution.h"

#include <algorithm>
#include <array>

#include "dsl/differentiate.h"
#include "dsl/simplify.h"
#include "schedules/convolve.h"
#include "schedules/window_sums.h"

namespace tw::schedules {
namespace {

using Extents = std::array<int64_t, 4>;

std::optional<Extents> extents_of(const Tensor& tensor) {
    if (tensor.rank() != 4) return {};
    Extents extents{};
    for (size_t d = 0; d < extents.size(); ++d) {
        extents[d] = as_constant(tensor.shape()[d]).value_or(0);
        if (extents[d] <= 0) return {};
    }
    return extents;
}

Tensor like(const std::string& name, Type type, const Extents& extents) {
    return input(name, type, {extents.begin(), extents.end()});
}

/// What the sum brings together along a side: a place of the image, the window that reads it, and the tap that does.
struct Places {
    int64_t image, window, tap;

    bool are_of(const ConvolutionShape& s) const { return image == window * s.stride - s.padding + tap * s.dilation; }
};

/// Which of a sum's reads are of which operand of a pass; that of its result is null.
struct Roles {
    ConvolutionPass pass;
    const Read *x, *w, *dy;
};

class Search {
public:
    Search(const Tensor& sums, const std::vector<Tensor>& outputs) : sums_(sums), outputs_(outputs) {
        if (auto own = window_sum(sums_, outputs_)) own_ = std::move(*own);
    }

    std::vector<FoundConvolution> candidates() const {
        std::vector<FoundConvolution> found;
        if (!own_) return found;
        const auto reads_elements = [](const Expr& expr) {
            bool any = false;
            visit(expr, [&](const Expr& e) { any = any || e.as<Read>(); });
            return any;
        };
        if (std::ranges::any_of(own_->term.conditions, reads_elements)) return found;  // no convolution has such
        for (const Expr& axis : own_->axes)
            if (const Expr& extent = axis.as<Variable>()->extent; extent.defined() && reads_elements(extent))
                return found;
        const std::vector<const Read*>& reads = own_->term.reads;
        for (const auto& [a, b] : {std::pair(reads[0], reads[1]), std::pair(reads[1], reads[0])})
            for (const Roles& roles :
                 {Roles{ConvolutionPass::Forward, a, b, nullptr}, Roles{ConvolutionPass::DataGradient, nullptr, b, a},
                  Roles{ConvolutionPass::WeightGradient, b, nullptr, a}})
                add_numbers(roles, found);
        return found;
    }

    std::optional<FoundConvolution> run() const {
        for (const FoundConvolution& candidate : candidates())
            if (is_declared(candidate)) return candidate;
        return {};
    }

private:
    static Tensor tensor_of(const Read* read) { return read ? Tensor(read->operation, read->output) : Tensor(); }

    /// Those strides, dilations and paddings that shapes and places allow.
    void add_numbers(const Roles& roles, std::vector<FoundConvolution>& found) const {
        constexpr int64_t most_stride = 8, most_dilation = 8;
        FoundConvolution candidate{{}, roles.pass, tensor_of(roles.x), tensor_of(roles.w), tensor_of(roles.dy)};
        const auto x = extents_of(roles.x ? candidate.x : sums_), w = extents_of(roles.w ? candidate.w : sums_),
                   y = extents_of(roles.dy ? candidate.dy : sums_);
        if (!x || !w || !y || (*x)[0] != (*y)[0] || (*w)[0] != (*y)[3] || (*x)[3] % (*w)[3] != 0) return;
        ConvolutionShape& s = candidate.shape;
        s = {.images = (*x)[0],
             .height = (*x)[1],
             .width = (*x)[2],
             .channels = (*x)[3],
             .filters = (*w)[0],
             .kernel_h = (*w)[1],
             .kernel_w = (*w)[2]};
        s.groups = s.channels / (*w)[3];
        s.type = (roles.w ? candidate.w : candidate.x).type();
        if (!s.has_groups() || s.channels == s.groups) return;  // depthwise: no product of matrices
        const std::vector<Places> drawn = places_of(roles);
        const int64_t longest = std::max(s.kernel_h, s.kernel_w), dilations = longest == 1 ? 1 : most_dilation;
        for (s.stride = 1; s.stride <= most_stride; ++s.stride)
            for (s.dilation = 1; s.dilation <= dilations; ++s.dilation)
                for (s.padding = 0; s.padding <= (longest - 1) * s.dilation + s.stride; ++s.padding)
                    if (std::ranges::all_of(drawn, [&](const Places& places) { return places.are_of(s); }) &&
                        s.has_pixels() && s.rows() == (*y)[1] && s.columns() == (*y)[2])
                        found.push_back(candidate);
    }

    /// Of terms that are drawn, along both sides.
    std::vector<Places> places_of(const Roles& roles) const {
        constexpr size_t terms = 12;
        std::vector<Expr> exprs;
        for (size_t side : {1, 2})
            for (const Read* read : {roles.x, roles.dy, roles.w})
                exprs.push_back(read ? read->indices[side] : own_->around[side]);
        const bool reads = std::ranges::any_of(exprs, [](const Expr& expr) {
            bool found = false;
            visit(expr, [&](const Expr& e) { found = found || e.as<Read>(); });
            return found;
        });
        std::vector<Places> places;
        if (reads) return places;
        for (const std::vector<int64_t>& values : DrawnTerms(*own_).values(exprs, terms))
            for (size_t side : {0, 3}) places.push_back({values[side], values[side + 1], values[side + 2]});
        return places;
    }

    bool is_declared(const FoundConvolution& found) const {
        const ConvolutionShape& s = found.shape;
        const Tensor x = found.x.defined() ? found.x : like("x", s.type, *extents_of(sums_)),
                     w = found.w.defined() ? found.w : like("w", s.type, *extents_of(sums_));
        Tensor result =
            convolve("y", x, w, {},
                     {.stride = {s.stride}, .dilation = {s.dilation}, .padding = {s.padding}, .groups = s.groups});
        if (found.pass == ConvolutionPass::DataGradient) result = gradients(result, found.dy, {x})[0];
        if (found.pass == ConvolutionPass::WeightGradient) result = gradients(result, found.dy, {w})[0];
        const auto declared = window_sum(behind_casts(result), outputs_);
        return declared && is_same_sum(*own_, *declared);
    }

    const Tensor sums_;
    const std::vector<Tensor>& outputs_;
    std::optional<WindowSum> own_;
};

}  // namespace

std::vector<FoundConvolution> convolution_candidates(const Tensor& sums, const std::vector<Tensor>& outputs) {
    return Search(sums, outputs).candidates();
}

std::optional<FoundConvolution> find_convolution(const Tensor& sums, const std::vector<Tensor>& outputs) {
    return Search(sums, outputs).run();
}

}  // namespace tw::schedules
