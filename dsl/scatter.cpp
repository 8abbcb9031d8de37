// From "each element looks at all terms" to "each term finds its element".
#include <algorithm>

#include "dsl/scattered.h"
#include "dsl/simplify.h"
#include "dsl/update.h"
#include "support/error.h"

namespace tw {
namespace {

using State = Schedule::State;

/// The terms over the axes that choose their element and the data axes that are left; other reduce axes stay.
StageDefinition updates_of(const State& state, const StageDefinition& whole, const Scattered& terms) {
    StageDefinition made;
    made.name = unique_stage_name(state, whole.name + "_updates");
    made.axes = terms.choosing;
    for (const Expr& axis : whole.axes)
        if (!terms.is_solved(axis)) made.axes.push_back(axis);
    Expr value = terms.value;
    std::vector<Expr> inside;
    for (const Expr& axis : whole.reduce_axes)
        if (!is_among(made.axes, axis)) made.reduce_axes.push_back(axis);
    for (const Expr& condition : terms.conditions)
        if (mentions_any(condition, made.reduce_axes)) inside.push_back(condition);
    if (!inside.empty()) value = select_unchecked(all_of(inside), value, whole.reducer->identity[0]);
    made.finish = {value};
    if (!made.reduce_axes.empty()) {
        made.reducer = whole.reducer;
        made.accumulators = whole.accumulators;
        Substitution operands{{whole.reducer->left[0], whole.accumulators[0]}, {whole.reducer->right[0], value}};
        made.update = {contract(simplify(substitute(whole.reducer->combined[0], operands)))};
        made.finish = whole.accumulators;
    }
    auto operation = std::make_shared<Operation>();
    operation->name = made.name;
    operation->where = whole.operation->where;
    operation->axes = made.axes;
    for (const Expr& axis : made.axes) operation->shape.push_back(axis.as<Variable>()->extent);
    operation->outputs = {{value.type(), made.finish[0]}};
    made.operation = operation;
    return made;
}

void check_untouched(const Edit& edit, int stage, const std::string& call) {
    const StageRecord& record = edit.state.stages[stage];
    bool untouched = record.relations.empty();
    for (int id : record.order)
        untouched = untouched && edit.state.loops[id].level == Level::Serial && attached_to(edit.state, id).empty();
    user_check(
        untouched, edit.where,
        "{}: its loops are replaced, but were split, fused, bound or have stages under them; do this step before",
        call);
}

}  // namespace

Scattered terms_to_find(Edit& edit, int whole, const char* step) {
    State& state = edit.state;
    const std::source_location where = edit.where;
    const StageDefinition definition = state.stages[whole].definition;
    const std::string &name = definition.name, call = fmt::format("{}({})", step, name);
    user_check(definition.reducer, where, "{}: it is no reduction", call);
    user_check(!definition.target, where,
               "{}: it updates elements of another stage already, atomically; scatter the reduction instead", call);
    auto reads = reads_of(definition);
    bool sorted = std::any_of(reads.begin(), reads.end(),
                              [&](const ReadSite& site) { return site.read->operation->name == name + "_order"; });
    user_check(!sorted, where, "{}: its terms are sorted by element already", call);
    user_check(definition.reduce_extents.empty(), where,
               "{}: each element decides how many terms it has, so they have no numbers; compute them as a tensor",
               call);
    user_check(state.stages[whole].attach < 0, where,
               "{}: it stands in another kernel, but finds its terms by kernels before; take it out", call);
    check_untouched(edit, whole, call);
    user_check(!definition.reduce_axes.empty(), where,
               "{}: it reduces along no axis, so there are no terms to send; scatter the reduction before taking "
               "parts of it",
               call);
    user_check(is_one_operation(*definition.reducer), where,
               "{}: '{}' combines by more than one operation; scatter reductions by +, *, min, max or an operation on "
               "bits, of one value",
               call, definition.reducer->name);
    std::optional<Scattered> terms = scattered_terms(definition);
    user_check(terms, where,
               "{}: no condition of its terms says which element they belong to; write them as "
               "select(index == i, value, identity) with an index along {}",
               call, tw::to_string(definition.reduce_axes[0]));
    for (int id : state.stages[whole].order) state.loops[id].dead_step = edit.step;
    return *terms;
}

int scatter_atomically(Edit& edit, int reduction, BinaryOp combine, const Scattered& terms) {
    const StageDefinition whole = edit.state.stages[reduction].definition;
    StageDefinition updates = updates_of(edit.state, whole, terms);
    std::vector<Expr> place, conditions;
    for (const Expr& axis : whole.axes) place.push_back(terms.apply(axis));
    for (const Expr& condition : terms.conditions)
        if (!mentions_any(condition, updates.reduce_axes)) conditions.push_back(condition);
    for (const Expr& condition : terms.inside()) conditions.push_back(condition);
    int stage = add_stage(edit.state, std::move(updates), edit.step);
    make_update(edit, stage, reduction, combine, place, all_of(conditions));
    return stage;
}

bool Schedule::scatters(const StageRef& ref) const {
    const StageDefinition& definition = state_->stages[(*this)[ref].id].definition;
    return definition.reducer && scattered_terms(definition);
}

Stage Schedule::scatter(const StageRef& reduction, Combine combine, std::source_location where) {
    Edit edit(state_, where);
    State& state = edit.state;
    int whole = edit.stage(reduction, "scatter");
    const std::string name = stage_text(state, whole);
    const Scattered terms = terms_to_find(edit, whole, "scatter");
    int made = whole;
    bool atomic = combine == Combine::Atomic;
    if (atomic)
        made = scatter_atomically(edit, whole, check_updates(edit, whole, fmt::format("scatter({})", name)), terms);
    else if (combine == Combine::Search)
        search_terms(edit, whole, terms);
    else
        sort_terms(edit, whole, terms);
    std::string scattered = edit.stage_as_cpp(whole);
    std::string returned = atomic ? fmt::format("Stage {} = ", edit.stage_as_cpp(made)) : "";
    const bool searches = combine == Combine::Search;
    edit.commit(fmt::format("{}s.scatter({}{});", returned, scattered,
                            atomic     ? ", Combine::Atomic"
                            : searches ? ", Combine::Search"
                                       : ""),
                fmt::format("scatter {}{}", whole,
                            atomic     ? " atomic"
                            : searches ? " search"
                                       : ""));
    return state_->handle_of_stage(made);
}

}  // namespace tw
