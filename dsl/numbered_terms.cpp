#include "dsl/numbered_terms.h"

#include <algorithm>

#include <fmt/format.h>

#include "dsl/simplify.h"
#include "dsl/update.h"
#include "support/error.h"

namespace tw {
namespace {

const Expr& extent_of(const Expr& axis) { return axis.as<Variable>()->extent; }

}  // namespace

Expr points(const std::vector<Expr>& axes) {
    Expr count = constant(Type::I64, 1);
    for (const Expr& axis : axes) count = count * extent_of(axis);
    return simplify(count);
}

Expr number_of(const std::vector<Expr>& axes, const std::vector<Expr>& values) {
    Expr number = constant(Type::I64, 0);
    for (size_t a = 0; a < axes.size(); ++a) number = number * extent_of(axes[a]) + values[a];
    return simplify(number);
}

Substitution point_of(const std::vector<Expr>& axes, Expr number) {
    Substitution values;
    for (size_t a = axes.size(); a-- > 0;) {
        bool empty = is_constant(extent_of(axes[a]), 0);  // no point: nothing is ever divided
        Expr extent = empty ? constant(Type::I64, 1) : extent_of(axes[a]);
        values.emplace_back(axes[a], simplify(a == 0 ? number : number % extent));
        number = number / extent;
    }
    return values;
}

NumberedTerms::NumberedTerms(Edit& edit, int reduction, const Scattered& terms)
    : edit_(edit), reduction_(reduction), whole_(edit.state.stages[reduction].definition), terms_(terms) {
    user_check(
        whole_.terms_where.empty(), edit.where,
        "the last part of the terms of '{}' is shorter, so that they have no numbers; take parts of a length that "
        "divides the terms, or updates, Combine::Atomic",
        whole_.name);
    for (const Expr& axis : whole_.axes) {
        bool chooses = std::any_of(terms.solved.begin(), terms.solved.end(),
                                   [&](const auto& solved) { return contains(solved.second, axis); });
        if (chooses) sorted_.push_back(axis);
        if (chooses || terms.is_solved(axis)) elements_.push_back(axis);
    }
    size_t choosing = 0;  // up to the last that chooses: no term comes before another that it stood behind
    for (size_t r = 0; r < whole_.reduce_axes.size(); ++r)
        if (is_among(terms.choosing, whole_.reduce_axes[r])) choosing = r + 1;
    sorted_.insert(sorted_.end(), whole_.reduce_axes.begin(), whole_.reduce_axes.begin() + choosing);
    num_terms_ = points(sorted_);
    num_elements_ = points(elements_);
}

Tensor NumberedTerms::declare(const std::string& what, const Shape& shape, const std::function<Expr(Point)>& body) {
    std::string name = unique_stage_name(edit_.state, whole_.name + "_" + what);
    made_.push_back(compute(name, shape, body, edit_.where));
    return made_.back();
}

Expr NumberedTerms::counts_at(const Expr& term) const {
    std::vector<Expr> conditions = own_conditions();
    for (const Expr& condition : terms_.inside()) conditions.push_back(condition);
    return simplify(substitute(all_of(conditions), point_of(sorted_, term)));
}

Expr NumberedTerms::own_counts_at(const Expr& term) const {
    return simplify(substitute(all_of(own_conditions()), point_of(sorted_, term)));
}

Expr NumberedTerms::element_at(const Expr& term) const {
    return simplify(substitute(number_of(elements_, values_of(elements_)), point_of(sorted_, term)));
}

Expr NumberedTerms::counts_for(const Expr& term, const std::vector<Expr>& element) const {
    std::vector<Expr> conditions = own_conditions();
    const std::vector<Expr> values = values_of(elements_);
    const Substitution at = point_of(sorted_, term);
    for (Expr& condition : conditions) condition = substitute(condition, at);
    for (size_t a = 0; a < values.size(); ++a) conditions.push_back(substitute(values[a], at) == element[a]);
    return simplify(all_of(conditions));
}

/// Conditions that decide with the index alone whether a term counts.
std::vector<Expr> NumberedTerms::own_conditions() const {
    std::vector<Expr> own;
    for (const Expr& condition : terms_.conditions)
        if (is_own(condition)) own.push_back(condition);
    return own;
}

bool NumberedTerms::is_own(const Expr& condition) const {
    for (const auto* axes : {&whole_.axes, &whole_.reduce_axes})
        for (const Expr& axis : *axes)
            if (contains(condition, axis) && !is_among(sorted_, axis)) return false;
    return true;
}

std::vector<Expr> NumberedTerms::values_of(const std::vector<Expr>& axes) const {
    std::vector<Expr> values;
    for (const Expr& axis : axes) values.push_back(terms_.apply(axis));
    return values;
}

void NumberedTerms::reduce_terms(const std::vector<Expr>& along, const std::vector<Expr>& lengths, const Expr& term,
                                 const Expr& counts) {
    Schedule::State& state = edit_.state;
    StageDefinition& own = state.stages[reduction_].definition;
    Substitution at = point_of(sorted_, term);
    std::erase_if(at, [&](const auto& known) { return is_among(own.axes, known.first); });
    std::vector<Expr> conditions, axes = along, extents;
    for (const Expr& length : lengths) extents.push_back(simplify(length));
    for (const Expr& condition : terms_.conditions)
        if (!is_own(condition)) conditions.push_back(condition);
    Expr value = terms_.value;
    if (!conditions.empty()) value = select_unchecked(all_of(conditions), value, own.reducer->identity[0]);
    value = substitute(value, at);
    if (counts.defined()) value = select_unchecked(counts, value, own.reducer->identity[0]);
    Substitution operands{{own.reducer->left[0], own.accumulators[0]}, {own.reducer->right[0], simplify(value)}};
    own.update = {contract(simplify(substitute(own.reducer->combined[0], operands)))};
    for (const Expr& axis : own.reduce_axes)
        if (!is_among(sorted_, axis)) {
            axes.push_back(axis);
            extents.push_back(extent_of(axis));
        }
    own.reduce_axes = axes;
    own.reduce_extents = extents;
    add_root_loops(state, reduction_, own.operation->shape);
}

void NumberedTerms::note(std::string_view text) {
    edit_.state.notes.push_back(fmt::format("[{}] {}", edit_.step, fmt::format(fmt::runtime(text), whole_.name)));
}

}  // namespace tw
