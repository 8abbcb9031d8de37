#include "dsl/update.h"

#include "support/error.h"

namespace tw {

using State = Schedule::State;

namespace {

/// What is left of a reduction when others combine its terms.
void drop_reduction(StageDefinition& definition) {
    definition.reducer = nullptr;
    definition.accumulators.clear();
    definition.update.clear();
    definition.reduce_axes.clear();
    definition.terms_where.clear();
}

bool stores_what_it_reduces(const StageDefinition& definition) {
    return definition.finish.size() == 1 && definition.finish[0].same(definition.accumulators[0]);
}

StageDefinition identity_like(const State& state, const StageDefinition& reduction) {
    auto operation = std::make_shared<Operation>();
    Expr identity = reduction.reducer->identity[0];
    operation->name = unique_stage_name(state, fmt::format("{}_{}", reduction.name, reduction.reducer->name));
    operation->where = reduction.operation->where;
    operation->shape = reduction.operation->shape;
    operation->axes = reduction.axes;
    operation->outputs = {{identity.type(), identity}};
    return {operation->name, operation, operation->axes, {}, {}, {}, {}, {identity}};
}

/// Returns the stage that stores the identity.
int make_start(Edit& edit, int reduction) {
    State& state = edit.state;
    StageDefinition& own = state.stages[reduction].definition;
    StageDefinition start = identity_like(state, own);
    if (stores_what_it_reduces(own)) {
        own.finish = start.finish;
    } else {
        Expr complete = make_expr(start.finish[0].type(), Read{start.operation, 0, own.axes});
        for (Expr& expr : own.finish) expr = substitute(expr, {{own.accumulators[0], complete}});
        int added = add_stage(state, start, edit.step);
        drop_reduction(state.stages[reduction].definition);
        return added;
    }
    drop_reduction(own);
    return reduction;
}

}  // namespace

BinaryOp check_updates(const Edit& edit, int reduction, const std::string& asked) {
    const StageRecord& record = edit.state.stages[reduction];
    const StageDefinition& definition = record.definition;
    user_check(!definition.target, edit.where, "{}: '{}' already updates the elements of '{}' atomically", asked,
               definition.name, definition.target ? definition.target->name : "");
    auto operation = atomic_operation(*definition.reducer);
    user_check(
        operation, edit.where,
        "{}: no atomic operation combines by '{}' in {}; atomics add f32, f64, i32, u32 and i64, and take min and "
        "max of those but f64: use Combine::Workspace",
        asked, definition.reducer->name, name_of(definition.reducer->identity[0].type()));
    user_check(!record.rounded || !stores_what_it_reduces(definition), edit.where,
               "{}: the elements of '{}' are rounded to {}, but atomics combine in {}; leave out the round_to, or use "
               "Combine::Workspace",
               asked, definition.name, name_of(*record.rounded), name_of(definition.reducer->identity[0].type()));
    return *operation;
}

void make_update(Edit& edit, int updates, int reduction, BinaryOp combine, const std::vector<Expr>& place,
                 const Expr& condition) {
    State& state = edit.state;
    const std::string name = state.stages[reduction].definition.name;
    int start = make_start(edit, reduction);
    add_root_loops(state, reduction, state.stages[reduction].definition.operation->shape);
    StageDefinition& definition = state.stages[updates].definition;
    definition.target = state.stages[start].definition.operation;
    definition.combine = combine;
    definition.place = place;
    definition.place.push_back(condition);
    bool rounds = is_float(definition.finish[0].type()) && combine == BinaryOp::Add;
    state.notes.push_back(fmt::format("[{}] the terms of '{}' are combined atomically, {}", edit.step, name,
                                      rounds ? "in no fixed order: floats may differ by rounding, from run to run too"
                                             : "which gives the same in any order"));
}

}  // namespace tw
