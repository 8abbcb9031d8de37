#include "dsl/loop_axes.h"

#include <algorithm>

#include "dsl/parts.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {

LoopAxes::LoopAxes(const Schedule::State& state, int stage, const Expr& element)
    : state_(state), record_(state.stages[stage]) {
    for (int loop : record_.order) axes_.push_back(axis_of(loop));
    join_splits(element);
    for (Axis& axis : axes_) axis.index = simplify(index(axis.loop));
}

LoopAxes::Axis LoopAxes::axis_of(int id) const {
    LoopRecord loop = state_.loops[id];
    loop.extent = simplify(whole(id, covered(id)));
    return {id, axis_like(loop), loop.extent, {}};
}

/// Takes back splits whose loops are both axes, from the last one on.
void LoopAxes::join_splits(const Expr& element) {
    auto find = [&](int loop) { return std::ranges::find(axes_, loop, &Axis::loop); };
    for (auto relation = record_.relations.rbegin(); relation != record_.relations.rend(); ++relation) {
        if (relation->kind != Relation::Kind::Split) continue;
        const auto outer = find(relation->outer), inner = find(relation->inner);
        if (outer == axes_.end() || inner == axes_.end()) continue;
        const std::vector<Axis> apart = axes_;
        const Expr before = over_axes(element);
        const bool reads_outer = contains(before, outer->variable) && !contains(before, inner->variable);
        const Axis whole = axis_of(relation->whole);
        *outer = whole;
        axes_.erase(inner);
        if (reads_outer && contains(over_axes(element), whole.variable)) axes_ = apart;
    }
}

/// How many iterations its parts have.
Expr LoopAxes::covered(int loop) const {
    for (const Relation& relation : record_.relations)
        if (relation.kind == Relation::Kind::Split && relation.whole == loop)
            return covered(relation.outer) * relation.size;
    return state_.loops[loop].extent;
}

/// Under another stage's loop a root loop runs along a part of its axis: all parts together.
Expr LoopAxes::whole(int loop, const Expr& part) const {
    const auto root = std::ranges::find(record_.roots, loop);
    const size_t axis = static_cast<size_t>(root - record_.roots.begin());
    if (record_.attach < 0 || axis >= record_.definition.axes.size()) return part;
    return (record_.definition.operation->shape[axis] + part - 1) / part * part;
}

/// Of a loop, over the axes.
Expr LoopAxes::value(int loop) const {
    const auto found = std::ranges::find(axes_, loop, &Axis::loop);
    if (found != axes_.end()) return found->variable;
    for (const Relation& relation : record_.relations) {
        if (relation.kind == Relation::Kind::Split && relation.whole == loop)
            return value(relation.outer) * relation.size + value(relation.inner);
        if (relation.kind == Relation::Kind::Fuse && relation.outer == loop)
            return value(relation.whole) / relation.size;
        if (relation.kind == Relation::Kind::Fuse && relation.inner == loop)
            return value(relation.whole) % relation.size;
    }
    internal_check(false, "'{}' has no value over the axes of its loops", state_.loops[loop].name);
    return {};
}

/// Of a loop, over the declared axes.
Expr LoopAxes::index(int loop) const {
    const StageDefinition& definition = record_.definition;
    const size_t rank = definition.axes.size();
    for (size_t r = 0; r < record_.roots.size(); ++r)
        if (record_.roots[r] == loop) return r < rank ? definition.axes[r] : definition.reduce_axes[r - rank];
    for (const Relation& relation : record_.relations) {
        if (relation.kind == Relation::Kind::Split && relation.outer == loop)
            return index(relation.whole) / relation.size;
        if (relation.kind == Relation::Kind::Split && relation.inner == loop)
            return index(relation.whole) % relation.size;
        if (relation.kind == Relation::Kind::Fuse && relation.whole == loop)
            return index(relation.outer) * relation.size + index(relation.inner);
    }
    internal_check(false, "'{}' comes from no axis of '{}'", state_.loops[loop].name, definition.name);
    return {};
}

Expr LoopAxes::over_axes(const Expr& expr) const {
    const StageDefinition& definition = record_.definition;
    const size_t rank = definition.axes.size();
    Substitution values;
    for (size_t r = 0; r < record_.roots.size(); ++r) {
        const Expr& axis = r < rank ? definition.axes[r] : definition.reduce_axes[r - rank];
        if (contains(expr, axis)) values.emplace_back(axis, value(record_.roots[r]));
    }
    return simplify(substitute(expr, values));
}

std::vector<Expr> LoopAxes::conditions_of_terms() const {
    std::vector<Expr> conditions;
    for (const Expr& condition : record_.definition.terms_where)
        if (!reads_tensors(condition)) conditions.push_back(over_axes(condition));
    for (const Axis& axis : axes_) {
        const LoopRecord& loop = state_.loops[axis.loop];
        if (loop.reduces && !equal(axis.extent, loop.extent))
            conditions.push_back(simplify(axis.variable < loop.extent));
    }
    for (const Relation& relation : record_.relations) {
        const LoopRecord& whole = state_.loops[relation.whole];
        const bool taken_back = std::ranges::find(axes_, relation.whole, &Axis::loop) != axes_.end();
        if (relation.kind != Relation::Kind::Split || !relation.masked || !whole.reduces || taken_back) continue;
        conditions.push_back(simplify(value(relation.whole) < whole.extent));
    }
    return conditions;
}

}  // namespace tw
