#include "dsl/scattered.h"

#include <algorithm>
#include <limits>

#include "dsl/simplify.h"

namespace tw {
namespace {

void collect_parts(const Expr& condition, std::vector<Expr>& parts) {
    auto* both = condition.as<Binary>();
    if (!both || both->op != BinaryOp::And) return parts.push_back(condition);
    collect_parts(both->a, parts);
    collect_parts(both->b, parts);
}

/// The same integer as an i64: one that was cast to i32, which holds all that it can be, as it was before.
Expr widened(const Expr& expr) {
    const Cast* cast = expr.as<Cast>();
    if (!cast || expr.type() != Type::I32 || cast->a.type() != Type::I64) return tw::cast(Type::I64, expr);
    const Interval bounds = bounds_of(cast->a);
    const bool fits = bounds.min && bounds.max && *bounds.min >= std::numeric_limits<int32_t>::min() &&
                      *bounds.max <= std::numeric_limits<int32_t>::max();
    return fits ? cast->a : tw::cast(Type::I64, expr);
}

/// Solves the condition for a data axis, if it equals something along the reduce axes.
bool solve(Scattered& terms, const StageDefinition& reduction, const Expr& condition) {
    auto* node = condition.as<Binary>();
    if (!node || node->op != BinaryOp::Equal || !is_integer(node->a.type())) return false;
    const bool is_narrow = node->a.type() == Type::I32;
    Affine difference =
        is_narrow ? affine_of(widened(node->a)) - affine_of(widened(node->b)) : affine_of(node->a) - affine_of(node->b);
    for (const Expr& axis : reduction.axes) {
        int64_t factor = coefficient(difference, axis).value_or(0);
        if ((factor != 1 && factor != -1) || terms.is_solved(axis)) continue;
        Affine rest = difference;
        erase_terms(rest, [&](const auto& term) { return term.first.same(axis); });
        Expr value = simplify(factor == 1 ? -to_expr(rest) : to_expr(rest));
        if (!equal(terms.apply(value), value) || !mentions_any(value, reduction.reduce_axes)) continue;
        for (auto& [known, other] : terms.solved) other = simplify(substitute(other, {{axis, value}}));
        terms.solved.emplace_back(axis, value);
        return true;
    }
    return false;
}

}  // namespace

bool is_one_operation(const ReducerNode& reducer) {
    auto* combined = reducer.combined.size() == 1 ? reducer.combined[0].as<Binary>() : nullptr;
    return combined && combined->a.same(reducer.left[0]) && combined->b.same(reducer.right[0]);
}

std::optional<Scattered> conditional_terms(const StageDefinition& reduction) {
    if (reduction.update.size() != 1 || !is_one_operation(*reduction.reducer)) return {};
    auto* node = reduction.update[0].as<Binary>();
    if (!node) return {};
    Expr term = node->a.same(reduction.accumulators[0]) ? node->b : node->a;
    Scattered result;
    if (auto* choice = term.as<Select>(); choice && equal(choice->no, reduction.reducer->identity[0])) {
        collect_parts(choice->condition, result.conditions);
        result.value = choice->yes;
        return result;
    }
    auto* cast = term.as<Cast>();
    if (!cast || cast->a.type() != Type::Bool || node->op != BinaryOp::Add) return {};
    collect_parts(cast->a, result.conditions);
    result.value = is_float(term.type()) ? constant(term.type(), 1.0) : constant(term.type(), 1);
    return result;
}

bool is_among(const std::vector<Expr>& variables, const Expr& variable) {
    return std::any_of(variables.begin(), variables.end(), [&](const Expr& v) { return v.same(variable); });
}

bool mentions_any(const Expr& expr, const std::vector<Expr>& variables) {
    return std::any_of(variables.begin(), variables.end(), [&](const Expr& v) { return contains(expr, v); });
}

bool Scattered::is_solved(const Expr& axis) const {
    return std::any_of(solved.begin(), solved.end(), [&](const auto& known) { return known.first.same(axis); });
}

Expr Scattered::apply(const Expr& expr) const { return simplify(substitute(expr, solved)); }

std::vector<Expr> Scattered::inside() const {
    std::vector<Expr> all;
    for (const auto& [axis, value] : solved)
        for (const Expr& condition : {value >= 0, value < axis.as<Variable>()->extent})
            if (prove(condition) != true) all.push_back(simplify(condition));
    return all;
}

std::optional<Scattered> scattered_terms(const StageDefinition& reduction) {
    std::optional<Scattered> terms = conditional_terms(reduction);
    if (!terms) return {};
    // Which terms there are comes in front of what reads by their index.
    std::vector<Expr> open = reduction.terms_where;
    for (const Expr& condition : terms->conditions)
        if (!solve(*terms, reduction, condition)) open.push_back(condition);
    if (terms->solved.empty()) return {};
    terms->conditions.clear();
    for (const Expr& condition : open)
        if (Expr left = terms->apply(condition); prove(left) != true) terms->conditions.push_back(left);
    terms->value = terms->apply(terms->value);
    for (const Expr& axis : reduction.reduce_axes)
        for (const auto& [solved, value] : terms->solved)
            if (contains(value, axis) && !is_among(terms->choosing, axis)) terms->choosing.push_back(axis);
    return terms;
}

}  // namespace tw
