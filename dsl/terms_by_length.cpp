// Reductions of terms that a condition lets through from the first one on, or up to the last, as reductions that are as
// long as the element says.
#include <algorithm>

#include "dsl/running.h"
#include "dsl/scattered.h"
#include "dsl/simplify.h"

namespace tw {
namespace {

/// What is at least 0 exactly where the comparison of integers holds; undefined if it is none.
Expr at_least_zero(const Expr& condition) {
    const Binary* node = condition.as<Binary>();
    if (!node || (node->op != BinaryOp::Less && node->op != BinaryOp::LessEqual) || node->a.type() != Type::I64)
        return {};
    return simplify(node->op == BinaryOp::Less ? node->b - node->a - 1 : node->b - node->a);
}

/// The terms [first, behind) of an element.
struct Range {
    Expr first, behind;
};

/// Those that the condition leaves of `extent` terms; nothing if it bounds them on no side, or beyond what there is.
std::optional<Range> range_of(const Expr& condition, const Expr& term, const Expr& extent) {
    const Expr distance = at_least_zero(condition);
    if (!distance.defined()) return {};
    const int64_t factor = coefficient(affine_of(distance), term).value_or(0);
    if (factor != 1 && factor != -1) return {};
    const Expr rest = simplify(distance - term * factor);
    if (contains(rest, term)) return {};
    const Range range = factor == 1 ? Range{simplify(-rest), extent} : Range{integer(0), simplify(rest + 1)};
    const bool inside = prove(simplify(range.first >= 0)) == true && prove(simplify(range.behind <= extent)) == true;
    return inside ? std::optional(range) : std::nullopt;
}

/// Whether the condition, which mentions no term, holds wherever there are terms.
bool holds_with_terms(const Expr& condition, const Expr& length) {
    const Expr distance = at_least_zero(condition);
    return distance.defined() && prove(simplify(distance >= length - 1)) == true;
}

}  // namespace

std::optional<StageDefinition> with_terms_by_length(const StageDefinition& definition) {
    if (!definition.reducer || definition.reduce_axes.size() != 1 || !definition.reduce_extents.empty()) return {};
    const auto terms = conditional_terms(definition);
    if (!terms) return {};
    const Expr term = definition.reduce_axes[0], extent = term.as<Variable>()->extent;
    auto of_term = [&](const Expr& condition) { return contains(condition, term); };
    if (std::ranges::count_if(terms->conditions, of_term) != 1) return {};
    const auto range = range_of(*std::ranges::find_if(terms->conditions, of_term), term, extent);
    if (!range) return {};
    const Expr length = simplify(range->behind - range->first);
    for (const Expr& condition : terms->conditions)
        if (!of_term(condition) && !holds_with_terms(condition, length)) return {};
    StageDefinition made = definition;
    const Substitution shifted{{term, range->first + term}};
    const Substitution operands{{made.reducer->left[0], made.accumulators[0]},
                                {made.reducer->right[0], substitute(terms->value, shifted)}};
    made.update = {contract(simplify(substitute(made.reducer->combined[0], operands)))};
    for (Expr& condition : made.terms_where) condition = simplify(substitute(condition, shifted));
    made.reduce_extents = {length};
    return made;
}

}  // namespace tw
