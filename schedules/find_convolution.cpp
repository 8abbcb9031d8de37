#include "schedules/find_convolution.h"

#include <algorithm>
#include <array>
#include <random>

#include "dsl/differentiate.h"
#include "dsl/evaluate.h"
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

/// What the sum brings together along a side: a place of the image, the window that reads it, and the tap that does.
struct Places {
    int64_t image, window, tap;

    bool are_of(const ConvolutionShape& s) const { return image == window * s.stride - s.padding + tap * s.dilation; }
};

/// Draws terms of a sum, and tells what they read.
class DrawnTerms {
public:
    explicit DrawnTerms(const WindowSum& sum) {
        for (const Expr& axis : sum.around) add(axis);
        for (const Expr& axis : sum.axes) add(axis);
        for (const Expr& condition : sum.term.conditions) conditions_.push_back(compiled(condition));
    }

    /// Of `count` terms for which the conditions hold, the values of the expressions, one behind the other; fewer where
    /// these are hard to find.
    std::vector<std::vector<int64_t>> values(const std::vector<Expr>& exprs, size_t count) {
        constexpr int most_draws = 4000;
        std::vector<CompiledExpr> wanted;
        for (const Expr& expr : exprs) wanted.push_back(compiled(expr));
        registers_.resize(static_cast<size_t>(slots_.size()));
        std::vector<std::vector<int64_t>> found;
        for (int draw = 0; draw < most_draws && found.size() < count; ++draw) {
            if (!draw_axes()) continue;
            std::vector<int64_t>& values = found.emplace_back();
            for (const CompiledExpr& expr : wanted) values.push_back(expr.run_integer(registers_));
        }
        return found;
    }

private:
    struct Drawn {
        size_t slot;
        CompiledExpr extent;
    };

    void add(const Expr& axis) {
        const Variable& variable = *axis.as<Variable>();
        const Expr extent = variable.extent.defined() ? variable.extent : constant(Type::I64, *variable.max + 1);
        axes_.push_back({static_cast<size_t>(slots_.slot(axis)), compiled(extent)});
    }
    CompiledExpr compiled(const Expr& expr) {
        return {expr, slots_, [](const ExprNode&) -> const MemoryView* { return nullptr; }};
    }
    bool draw_axes() {
        for (const Drawn& axis : axes_) {  // those whose extents others decide come later
            const int64_t extent = axis.extent.run_integer(registers_);
            if (extent < 1) return false;
            registers_[axis.slot].integer = static_cast<int64_t>(random_() % static_cast<uint64_t>(extent));
        }
        return std::ranges::all_of(
            conditions_, [&](const CompiledExpr& condition) { return condition.run_integer(registers_) != 0; });
    }

    SlotMap slots_;
    std::vector<Drawn> axes_;
    std::vector<CompiledExpr> conditions_;
    std::vector<Register> registers_;
    std::mt19937_64 random_{1};
};

/// Which of a sum's reads are of which operand of a pass; that of its result is null.
struct Roles {
    ConvolutionPass pass;
    const Read *x, *w, *dy;
};

class Search {
public:
    Search(const Tensor& sums, const std::vector<Tensor>& outputs) : sums_(sums), outputs_(outputs) {
        if (auto own = sum_of(sums_, outputs_)) own_ = std::move(*own);
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
