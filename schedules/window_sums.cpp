#include "schedules/window_sums.h"

#include <algorithm>
#include <numeric>

#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "schedules/unit_product.h"

namespace tw::schedules {
namespace {

bool is_unit(const Expr& axis) {
    const Variable& variable = *axis.as<Variable>();
    return variable.extent.defined() && as_constant(variable.extent) == 1;
}

/// The sum over its other axes.
Reduce without_unit_axes(const Reduce& sum) {
    Reduce rest = sum;
    Substitution first;
    for (const Expr& axis : sum.axes)
        if (is_unit(axis)) first.emplace_back(axis, integer(0));
    std::erase_if(rest.axes, is_unit);
    for (Expr& value : rest.values) value = simplify(substitute(value, first));
    return rest;
}

std::optional<WindowSum> window_sum(const Tensor& tensor, const std::vector<Tensor>& outputs, bool without_units,
                                    Factors factors) {
    const Operation& operation = *tensor.operation();
    if (operation.is_input() || operation.outputs.size() != 1) return {};
    const Expr body = with_elements(operation.outputs[0].body, outputs, false);
    const Reduce* sum = only_reduction(body);
    if (!sum || sum->values.size() != 1 || sum->values[0].type() != f32 ||
        atomic_operation(*sum->reducer) != BinaryOp::Add)
        return {};
    const Reduce own = without_units ? without_unit_axes(*sum) : *sum;
    auto term = term_of(own, outputs, factors);
    if (!term) return {};
    return WindowSum{operation.axes, own.axes, std::move(*term)};
}

}  // namespace

std::optional<WindowSum> window_sum(const Tensor& tensor, const std::vector<Tensor>& outputs) {
    return window_sum(tensor, outputs, false, Factors::Halves);
}
std::optional<WindowSum> window_sum_of_threads(const Tensor& tensor, const std::vector<Tensor>& outputs) {
    return window_sum(tensor, outputs, true, Factors::AnyFloats);
}

namespace {

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
        auto [ours, theirs] = pair_axes();
        // Those that are left, in any order.
        const Substitution known = renamed_;
        std::vector<size_t> order(ours.size());
        std::iota(order.begin(), order.end(), size_t{0});
        do {
            renamed_ = known;
            for (size_t k = 0; k < order.size(); ++k) renamed_.emplace_back(theirs[k], ours[order[k]]);
            if (extents_agree() && indices_agree() && conditions_agree()) return true;
        } while (std::ranges::next_permutation(order).found);
        return false;
    }

private:
    /// By the indices that they are; what is left of both.
    std::pair<std::vector<Expr>, std::vector<Expr>> pair_axes() {
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
        return {ours, theirs};
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

}  // namespace

bool is_same_sum(const WindowSum& a, const WindowSum& b) { return Comparison(a, b).holds(); }

Tensor behind_casts(const Tensor& gradient) {
    Expr value = gradient.operation()->outputs[0].body;
    while (const Cast* cast = value.as<Cast>()) value = cast->a;
    const Read* read = value.as<Read>();
    return read && !read->operation->is_input() ? Tensor(read->operation, read->output) : gradient;
}

DrawnTerms::DrawnTerms(const WindowSum& sum) {
    for (const Expr& axis : sum.around) add(axis);
    for (const Expr& axis : sum.axes) add(axis);
    for (const Expr& condition : sum.term.conditions) conditions_.push_back(compiled(condition));
}

std::vector<std::vector<int64_t>> DrawnTerms::values(const std::vector<Expr>& exprs, size_t count) {
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

void DrawnTerms::add(const Expr& axis) {
    const Variable& variable = *axis.as<Variable>();
    const Expr extent = variable.extent.defined() ? variable.extent : constant(Type::I64, *variable.max + 1);
    axes_.push_back({static_cast<size_t>(slots_.slot(axis)), compiled(extent)});
}

CompiledExpr DrawnTerms::compiled(const Expr& expr) {
    return {expr, slots_, [](const ExprNode&) -> const MemoryView* { return nullptr; }};
}

bool DrawnTerms::draw_axes() {
    for (const Drawn& axis : axes_) {  // those whose extents others decide come later
        const int64_t extent = axis.extent.run_integer(registers_);
        if (extent < 1) return false;
        registers_[axis.slot].integer = static_cast<int64_t>(random_() % static_cast<uint64_t>(extent));
    }
    return std::ranges::all_of(conditions_,
                               [&](const CompiledExpr& condition) { return condition.run_integer(registers_) != 0; });
}

}  // namespace tw::schedules
