#include "schedules/find_convolution.h"

#include <algorithm>
#include <array>

#include "dsl/differentiate.h"
#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "schedules/convolve.h"
#include "schedules/unit_product.h"
#include "schedules/window_terms.h"

namespace tw::schedules {
namespace {

/// A sum over windows, its term with what schedules inline.
struct WindowSum {
    std::vector<Expr> around, axes;  // of the elements, of the sum
    WindowTerm term;
};

std::optional<WindowSum> sum_of(const Tensor& tensor, const std::vector<Tensor>& outputs) {
    const Operation& operation = *tensor.operation();
    if (operation.is_input() || operation.outputs.size() != 1) return {};
    const Expr body = with_elements(operation.outputs[0].body, outputs, false);
    const Reduce* sum = only_reduction(body);
    if (!sum || sum->values.size() != 1 || sum->values[0].type() != f32 ||
        atomic_operation(*sum->reducer) != BinaryOp::Add)
        return {};
    auto term = term_of(*sum, outputs);
    if (!term) return {};
    return WindowSum{operation.axes, sum->axes, std::move(*term)};
}

/// Each once, without what always holds, over other variables.
std::vector<Expr> conditions_of(const WindowTerm& term, const Substitution& renamed) {
    std::vector<Expr> found;
    auto add = [&](auto& self, const Expr& condition) -> void {
        const Binary* both = condition.as<Binary>();
        if (both && both->op == BinaryOp::And) return self(self, both->a), self(self, both->b);
        const bool is_known = std::ranges::any_of(found, [&](const Expr& other) { return equal(other, condition); });
        if (!is_known && prove(condition) != true) found.push_back(condition);
    };
    for (const Expr& condition : term.conditions) add(add, simplify(substitute(condition, renamed)));
    return found;
}

/// Whether two sums are one, if their variables are called alike.
class Comparison {
public:
    Comparison(const WindowSum& a, const WindowSum& b) : a_(a), b_(b) {}

    bool holds() {
        if (a_.around.size() != b_.around.size() || a_.axes.size() != b_.axes.size()) return false;
        for (size_t d = 0; d < a_.around.size(); ++d) renamed_.emplace_back(b_.around[d], a_.around[d]);
        for (const Read* read : b_.term.reads) {
            const auto other =
                std::ranges::find_if(a_.term.reads, [&](const Read* of) { return of->operation == read->operation; });
            if (other == a_.term.reads.end()) return false;
            pairs_.emplace_back(*other, read);
        }
        pair_axes();
        return extents_agree() && indices_agree() && conditions_agree();
    }

private:
    /// By the indices that they are, or else in their order.
    void pair_axes() {
        std::vector<Expr> ours = a_.axes, theirs = b_.axes;
        auto pair = [&](const Expr& own, const Expr& other) {
            const auto from = std::ranges::find_if(theirs, [&](const Expr& e) { return e.same(other); });
            const auto to = std::ranges::find_if(ours, [&](const Expr& e) { return e.same(own); });
            if (from == theirs.end() || to == ours.end()) return;
            renamed_.emplace_back(other, own);
            theirs.erase(from), ours.erase(to);
        };
        for (const auto& [own, other] : pairs_)
            for (size_t d = 0; d < own->indices.size(); ++d) pair(own->indices[d], other->indices[d]);
        while (!theirs.empty()) pair(Expr(ours[0]), Expr(theirs[0]));
    }

    bool agree(const Expr& own, const Expr& other) const {
        return equal(simplify(own), simplify(substitute(other, renamed_)));
    }
    bool extents_agree() const {
        return std::ranges::all_of(renamed_, [&](const auto& pair) {
            const Variable *other = pair.first.template as<Variable>(), *own = pair.second.template as<Variable>();
            return own->extent.defined() && other->extent.defined() && agree(own->extent, other->extent);
        });
    }
    bool indices_agree() const {
        return std::ranges::all_of(pairs_, [&](const auto& pair) {
            const auto &own = pair.first->indices, &other = pair.second->indices;
            return std::ranges::equal(own, other, [&](const Expr& i, const Expr& j) { return agree(i, j); });
        });
    }
    bool conditions_agree() const {
        const std::vector<Expr> own = conditions_of(a_.term, {}), other = conditions_of(b_.term, renamed_);
        return own.size() == other.size() && std::ranges::all_of(other, [&](const Expr& condition) {
                   return std::ranges::any_of(own, [&](const Expr& each) { return equal(each, condition); });
               });
    }

    const WindowSum &a_, &b_;
    Substitution renamed_;                                    // variables of b by those of a
    std::vector<std::pair<const Read*, const Read*>> pairs_;  // of one tensor
};

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

class Search {
public:
    Search(const Tensor& sums, const std::vector<Tensor>& outputs) : sums_(sums), outputs_(outputs) {}

    std::optional<FoundConvolution> run() {
        const auto own = sum_of(sums_, outputs_);
        if (!own) return {};
        own_ = &*own;
        auto operand = [&](size_t k) { return Tensor(own->term.reads[k]->operation, own->term.reads[k]->output); };
        for (const auto& [a, b] : {std::pair(operand(0), operand(1)), std::pair(operand(1), operand(0))}) {
            const FoundConvolution passes[] = {{{}, ConvolutionPass::Forward, a, b, {}},
                                               {{}, ConvolutionPass::DataGradient, {}, b, a},
                                               {{}, ConvolutionPass::WeightGradient, b, {}, a}};
            for (const FoundConvolution& found : passes)
                if (auto convolution = with_numbers(found)) return convolution;
        }
        return {};
    }

private:
    /// Of those strides, dilations and paddings that shapes allow.
    std::optional<FoundConvolution> with_numbers(FoundConvolution found) const {
        constexpr int64_t most_stride = 8, most_dilation = 8;
        const auto x = extents_of(found.x.defined() ? found.x : sums_),
                   w = extents_of(found.w.defined() ? found.w : sums_),
                   y = extents_of(found.dy.defined() ? found.dy : sums_);
        if (!x || !w || !y || (*x)[0] != (*y)[0] || (*w)[0] != (*y)[3] || (*x)[3] % (*w)[3] != 0) return {};
        ConvolutionShape& s = found.shape;
        s = {.images = (*x)[0],
             .height = (*x)[1],
             .width = (*x)[2],
             .channels = (*x)[3],
             .filters = (*w)[0],
             .kernel_h = (*w)[1],
             .kernel_w = (*w)[2]};
        s.groups = s.channels / (*w)[3];
        s.type = (found.w.defined() ? found.w : found.x).type();
        if (!s.has_groups() || s.channels == s.groups) return {};  // depthwise: no product of matrices
        const int64_t longest = std::max(s.kernel_h, s.kernel_w), dilations = longest == 1 ? 1 : most_dilation;
        for (s.stride = 1; s.stride <= most_stride; ++s.stride)
            for (s.dilation = 1; s.dilation <= dilations; ++s.dilation)
                for (s.padding = 0; s.padding <= (longest - 1) * s.dilation + s.stride; ++s.padding)
                    if (s.has_pixels() && s.rows() == (*y)[1] && s.columns() == (*y)[2] && is_declared(found))
                        return found;
        return {};
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
        const auto declared = sum_of(behind_casts(result), outputs_);
        return declared && Comparison(*own_, *declared).holds();
    }

    /// A rule's adjoint is a tensor of its own, which the gradient casts.
    static Tensor behind_casts(const Tensor& tensor) {
        Expr value = tensor.operation()->outputs[0].body;
        while (const Cast* cast = value.as<Cast>()) value = cast->a;
        const Read* read = value.as<Read>();
        return read && !read->operation->is_input() ? Tensor(read->operation, read->output) : tensor;
    }

    const Tensor sums_;
    const std::vector<Tensor>& outputs_;
    const WindowSum* own_ = nullptr;
};

}  // namespace

std::optional<FoundConvolution> find_convolution(const Tensor& sums, const std::vector<Tensor>& outputs) {
    return Search(sums, outputs).run();
}

}  // namespace tw::schedules
