// Reductions taken apart: one loop's iterations are reduced apart, then their results; or the reduction apart from what
// is made of it.
#include <algorithm>

#include "dsl/edit.h"
#include "dsl/parts.h"
#include "dsl/scan_parts.h"
#include "dsl/simplify.h"
#include "dsl/stream.h"
#include "dsl/update.h"
#include "support/error.h"

namespace tw {
namespace {

using State = Schedule::State;

std::vector<int> other_reduce_loops(const State& state, int stage, int along) {
    std::vector<int> found;
    for (int loop : state.stages[stage].order)
        if (state.loops[loop].reduces && loop != along) found.push_back(loop);
    return found;
}

/// A reduction whose results are its accumulators, of a stage that it was part of.
StageDefinition with_accumulators_as_outputs(StageDefinition reduction, const std::vector<Expr>& shape) {
    auto operation = std::make_shared<Operation>();
    operation->name = reduction.name;
    operation->where = reduction.operation->where;
    operation->shape = shape;
    operation->axes = reduction.axes;
    for (const Expr& accumulator : reduction.accumulators)
        operation->outputs.push_back({accumulator.type(), accumulator});
    reduction.finish = reduction.accumulators;
    reduction.target = nullptr;
    reduction.place.clear();
    reduction.operation = operation;
    return reduction;
}

}  // namespace

Expr axis_like(const LoopRecord& loop) {
    Variable axis{.name = loop.name, .min = 0, .extent = loop.extent};
    if (auto bounds = bounds_of(loop.extent); bounds.max) axis.max = std::max<int64_t>(*bounds.max - 1, 0);
    return make_expr(Type::I64, axis);
}

namespace {

/// The axis of a stage that stands for the reader's: the reader, or what it reads, reads the stage there. None if it is
/// read elsewhere.
Expr axis_read_at(const State& state, int stage, int reader, const Expr& axis) {
    if (stage == reader) return axis;
    for (const ReadSite& site : reads_of(state.stages[reader].definition)) {
        const int producer = state.stage_of(site.read->operation.get());
        if (producer < 0 || (producer != stage && !depends_on(state, producer, stage))) continue;
        for (size_t d = 0; d < site.read->indices.size(); ++d) {
            if (!site.read->indices[d].same(axis)) continue;
            const Expr found = axis_read_at(state, stage, producer, state.stages[producer].definition.axes[d]);
            if (found.defined()) return found;
        }
    }
    return {};
}

/// The loop that the owner's terms are aligned along begins where an element of the owner says: over axes of a stage
/// with the same terms. Where the owner does not read it, any of its elements will do.
void add_axes_of_begin(const State& state, int stage, int owner, Substitution& axes) {
    const StageRecord& record = state.stages[owner];
    const StageDefinition& own = state.stages[stage].definition;
    for (size_t d = 0; d < record.definition.axes.size(); ++d) {
        Expr axis = axis_read_at(state, stage, owner, record.definition.axes[d]);
        if (!axis.defined() && !depends_on(state, owner, stage) && own.axes.size() == record.definition.axes.size() &&
            equal(own.operation->shape[d], record.definition.operation->shape[d]))
            axis = own.axes[d];
        const Expr& variable = state.loops[record.roots[d]].variable;
        const bool begins = std::ranges::any_of(record.relations, [&](const Relation& relation) {
            return relation.kind == Relation::Kind::Align && contains(relation.size, variable);
        });
        user_check(!begins || axis.defined(), state.step_where,
                   "rfactor: a loop of '{}' is aligned along '{}', and '{}', which has the same terms, is not read at "
                   "that index alone; leave out align",
                   record.definition.name, to_string(record.definition.axes[d]), own.name);
        if (begins) axes.emplace_back(variable, axis);
    }
}

}  // namespace

StageDefinition partial_definition(const State& state, int stage, int owner, int along) {
    const StageRecord& loops = state.stages[owner];
    const StageDefinition& whole = state.stages[stage].definition;
    StageDefinition partial = whole;
    partial.name = unique_stage_name(state, whole.name + "_partial");
    const LoopRecord parts = loop_of_parts(state, along);
    partial.axes.insert(partial.axes.begin(), axis_like(parts));
    partial.reduce_axes.clear();
    partial.reduce_extents.clear();
    Substitution axes{{state.loops[along].variable, partial.axes[0]}}, values;
    for (int loop : other_reduce_loops(state, owner, along)) {
        LoopRecord in_part = state.loops[loop];
        in_part.extent = length_in_part(state, stage, owner, along, loop, partial.axes[0]);
        partial.reduce_axes.push_back(axis_like(in_part));
        partial.reduce_extents.push_back(in_part.extent);
        axes.emplace_back(state.loops[loop].variable, partial.reduce_axes.back());
    }
    if (std::ranges::none_of(partial.reduce_extents, depends_on_element)) partial.reduce_extents.clear();
    const size_t rank = loops.definition.axes.size();
    add_axes_of_begin(state, stage, owner, axes);
    for (size_t r = 0; r < whole.reduce_axes.size(); ++r)
        values.emplace_back(whole.reduce_axes[r], substitute(loop_value(state, loops.roots[rank + r]), axes));
    for (Expr& expr : partial.update) expr = simplify(substitute(expr, values));
    for (Expr& condition : partial.terms_where) condition = simplify(substitute(condition, values));
    for (const Relation& relation : loops.relations)
        if (relation.masked && state.loops[relation.whole].reduces &&
            !is_uneven_in_parts(state, owner, along, relation))
            for (const Expr& condition : conditions_of(state, relation, state.loops[relation.whole].extent))
                partial.terms_where.push_back(simplify(substitute(condition, axes)));
    std::vector<Expr> shape = whole.operation->shape;
    shape.insert(shape.begin(), parts.extent);
    return with_accumulators_as_outputs(partial, shape);
}

void combine_parts(StageDefinition& whole, const LoopRecord& loop,
                   const std::function<Expr(size_t component, const Expr& index)>& part) {
    Expr axis = axis_like(loop);
    Substitution fresh, operands;
    for (size_t c = 0; c < whole.accumulators.size(); ++c) {
        Type type = whole.accumulators[c].type();
        Expr accumulator = make_expr(type, Variable{.name = "accumulator", .kind = VariableKind::Scalar});
        fresh.emplace_back(whole.accumulators[c], accumulator);
        operands.emplace_back(whole.reducer->left[c], accumulator);
        operands.emplace_back(whole.reducer->right[c], part(c, axis));
        whole.accumulators[c] = accumulator;
    }
    for (Expr& expr : whole.finish) expr = substitute(expr, fresh);
    for (size_t c = 0; c < whole.update.size(); ++c)
        whole.update[c] = contract(simplify(substitute(whole.reducer->combined[c], operands)));
    whole.reduce_axes = {axis};
    whole.reduce_extents.clear();
    whole.terms_where.clear();
}

namespace {

/// The reduction alone: its accumulators are its outputs.
StageDefinition totals_definition(const State& state, int stage) {
    const StageDefinition& whole = state.stages[stage].definition;
    StageDefinition totals = whole;
    totals.name = unique_stage_name(state, whole.name + "_total");
    return with_accumulators_as_outputs(totals, whole.operation->shape);
}

/// What is left: the element's total is read where the accumulator was.
void read_totals(StageDefinition& whole, const StageDefinition& totals) {
    Substitution reads;
    for (size_t c = 0; c < whole.accumulators.size(); ++c)
        reads.emplace_back(whole.accumulators[c], make_expr(whole.accumulators[c].type(),
                                                            Read{totals.operation, static_cast<int>(c), whole.axes}));
    for (std::vector<Expr>* exprs : {&whole.finish, &whole.place})
        for (Expr& expr : *exprs) expr = substitute(expr, reads);
    whole.reducer = nullptr;
    whole.accumulators.clear();
    whole.update.clear();
    whole.reduce_axes.clear();
    whole.reduce_extents.clear();
    whole.terms_where.clear();
}

/// Both take a stage apart that is a kernel of its own, and that nobody follows.
void check_whole(const State& state, int stage, const std::string& call, std::source_location where) {
    const StageRecord& whole = state.stages[stage];
    user_check(whole.attach < 0, where,
               "{}: '{}' stands in another kernel, its parts would not; take it out, or bind the loop to "
               "threads",
               call, whole.definition.name);
    user_check(shared_loop(state, stage) < 0, where, "{}: '{}' shares its loop with others; do this step before stream",
               call, whole.definition.name);
    for (int loop : whole.order)
        for (int other : attached_to(state, loop))
            user_check(!state.stages[other].after, where, "{}: '{}' follows it under loop '{}'; do this step before",
                       call, state.stages[other].definition.name, state.loops[loop].name);
}

/// A new stage takes over the loops, and with them what was decided about them.
StageRecord& take_over_loops(State& state, int whole, StageDefinition definition, int step) {
    StageRecord taken = state.stages[whole];
    taken.definition = std::move(definition);
    taken.step = step;
    taken.origin = state.origin_of(taken.definition.name);
    taken.handle.clear();
    taken.memory = Memory::Auto;
    taken.rounded.reset();  // what is combined later keeps all digits
    int stage = static_cast<int>(state.stages.size());
    for (LoopRecord& each : state.loops)
        if (each.stage == whole) each.stage = stage;
    state.stages.push_back(std::move(taken));
    return state.stages.back();
}

/// Only of loops that no position of a cut speaks of.
void set_extent(LoopRecord& loop, const Expr& extent) {
    if (equal(loop.extent, extent)) return;
    loop.extent = extent;
    loop.variable = axis_like(loop);
}

/// The index of the parts stands outside of the loops whose length it decides.
void put_before_lengths(const State& state, StageRecord& parts, int along) {
    auto decides = [&](int loop) { return contains(state.loops[loop].extent, parts.definition.axes[0]); };
    const auto first = std::ranges::find_if(parts.order, decides), own = std::ranges::find(parts.order, along);
    if (first < own) std::rotate(first, own, own + 1);
}

}  // namespace

int add_parts(State& state, int whole, int along, StageDefinition definition, int step) {
    const auto rank = static_cast<std::ptrdiff_t>(state.stages[whole].definition.axes.size());
    std::vector<int> roots(state.stages[whole].roots.begin(), state.stages[whole].roots.begin() + rank);
    roots.insert(roots.begin(), along);
    for (int loop : other_reduce_loops(state, whole, along)) roots.push_back(loop);
    const LoopRecord longest = loop_of_parts(state, along);
    set_extent(state.loops[along], longest.extent);
    for (size_t r = 0; r < definition.reduce_extents.size(); ++r)
        set_extent(state.loops[roots[definition.axes.size() + r]], definition.reduce_extents[r]);
    StageRecord& parts = take_over_loops(state, whole, std::move(definition), step);
    parts.roots = roots;
    put_before_lengths(state, parts, along);
    std::erase_if(parts.relations, [&](const Relation& relation) { return state.loops[relation.whole].reduces; });
    state.loops[along].reduces = false;
    return static_cast<int>(state.stages.size()) - 1;
}

void check_parts(const Edit& edit, int whole, int along, const std::string& call) {
    const State& state = edit.state;
    const LoopRecord& record = state.loops[along];
    const StageDefinition& definition = state.stages[whole].definition;
    const std::string& name = definition.name;
    user_check(record.stage == whole && record.reduces, edit.where,
               "{}: the loop is no reduce loop of '{}'; name one of reduce({}), or what it was split into", call, name,
               name);
    user_check(record.level == Level::Serial, edit.where, "{}: the loop is bound to {}; bind(loop, serial) first", call,
               tw::to_string(record.level));
    user_check(
        !record.skips(), edit.where,
        "{}: the loop leaves out iterations, whose parts would have no value; make it whole first: cut({}, {{}})", call,
        record.name);
    check_uneven_parts(state, whole, along, call, edit.where);
    check_whole(state, whole, call, edit.where);
    for (const Relation& relation : state.stages[whole].relations)
        for (size_t d = 0; relation.kind == Relation::Kind::Align && d < definition.axes.size(); ++d) {
            const LoopRecord& data = state.loops[state.stages[whole].roots[d]];
            user_check(!contains(relation.size, data.variable) || data.dead_step < 0, edit.where,
                       "{}: a reduce loop is aligned along '{}', which was split or fused; do this step before that",
                       call, data.name);
        }
    bool first = state.position(along) == state.first_reduce(whole);
    user_check(first || definition.reducer->commutative, edit.where,
               "{}: the reducer '{}' is not commutative, and '{}' is not the outermost reduce loop", call,
               definition.reducer->name, record.name);
}

Stage Schedule::accumulators(const StageRef& reduction, std::source_location where) {
    Edit edit(state_, where);
    State& state = edit.state;
    int whole = edit.stage(reduction, "accumulators");
    const std::string name = state.stages[whole].definition.name;
    user_check(state.stages[whole].definition.reducer != nullptr, where,
               "accumulators({}): '{}' reduces nothing, so there are no totals to take out of it", name, name);
    check_whole(state, whole, fmt::format("accumulators({})", name), where);
    StageDefinition definition = totals_definition(state, whole);
    read_totals(state.stages[whole].definition, definition);
    take_over_loops(state, whole, std::move(definition), edit.step);
    int totals = static_cast<int>(state.stages.size()) - 1;
    state.stages[whole].mma.reset();
    state.stages[whole].scan.reset();
    add_root_loops(state, whole, state.stages[whole].definition.operation->shape);
    std::string taken = edit.stage_as_cpp(whole), made = edit.stage_as_cpp(totals);
    edit.commit(fmt::format("Stage {} = s.accumulators({});", made, taken), fmt::format("accumulators {}", whole));
    return state_->handle_of_stage(totals);
}

Stage Schedule::rfactor(const StageRef& reduction, Loop loop, Combine combine, std::source_location where) {
    Edit edit(state_, where);
    State& state = edit.state;
    int whole = edit.stage(reduction, "rfactor"), along = edit.alive(loop, "rfactor");
    const LoopRecord record = loop_of_parts(state, along);
    const std::string name = state.stages[whole].definition.name;
    const std::string call = fmt::format("rfactor({}, {})", name, record.name);
    check_parts(edit, whole, along, call);
    user_check(combine != Combine::Search, where,
               "{}: Combine::Search is a way of scatter; parts are combined by Combine::Workspace or Combine::Atomic",
               call);
    if (state.stages[whole].scan) {
        user_check(combine == Combine::Workspace, where,
                   "{}: what the parts of a scan make is combined in their order: leave out Combine::Atomic", call);
        std::string taken = edit.stage_as_cpp(whole), cut = edit.loop_as_cpp(along);
        const int totals = scan_in_parts(edit, whole, along, call);
        state.notes.push_back(fmt::format("[{}] the terms of '{}' are combined in parts along '{}'{}", edit.step, name,
                                          record.name, rounding_text(*state.stages[whole].definition.reducer)));
        const std::string made = edit.stage_as_cpp(totals);
        edit.commit(fmt::format("Stage {} = s.rfactor({}, {});", made, taken, cut),
                    fmt::format("rfactor {} {}", whole, along));
        return state_->handle_of_stage(totals);
    }
    std::optional<BinaryOp> update;
    if (combine == Combine::Atomic) update = check_updates(edit, whole, call);
    StageDefinition definition = partial_definition(state, whole, whole, along);
    const int partial = add_parts(state, whole, along, definition, edit.step);
    StageDefinition& left = state.stages[whole].definition;
    if (update) {
        std::vector<Expr> element = left.axes;
        make_update(edit, partial, whole, *update, element, all_of({}));
    } else {
        combine_parts(left, record, [&](size_t component, const Expr& index) {
            std::vector<Expr> indices{index};
            indices.insert(indices.end(), left.axes.begin(), left.axes.end());
            const int output = static_cast<int>(component);
            return make_expr(left.reducer->identity[component].type(), Read{definition.operation, output, indices});
        });
        add_root_loops(state, whole, left.operation->shape);
        state.notes.push_back(fmt::format("[{}] the terms of '{}' are combined in parts along '{}'{}", edit.step, name,
                                          record.name, rounding_text(*left.reducer)));
    }
    std::string taken = edit.stage_as_cpp(whole), cut = edit.loop_as_cpp(along), made = edit.stage_as_cpp(partial);
    edit.commit(fmt::format("Stage {} = s.rfactor({}, {}{});", made, taken, cut, update ? ", Combine::Atomic" : ""),
                fmt::format("rfactor {} {}{}", whole, along, update ? " atomic" : ""));
    return state_->handle_of_stage(partial);
}

}  // namespace tw
