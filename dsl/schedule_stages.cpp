// The primitives that place stages, copy them and choose their memories.
#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

#include "dsl/copy_definition.h"
#include "dsl/edit.h"
#include "dsl/following.h"
#include "dsl/operand.h"
#include "dsl/schedule.h"
#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "support/error.h"

namespace tw {

using State = Schedule::State;

namespace {

std::string copy_text(Copy how) {
    switch (how) {
        case Copy::Automatic: return "Copy::Automatic";
        case Copy::Vector: return "Copy::Vector";
        case Copy::Async: return "Copy::Async";
        case Copy::Tma: return "Copy::Tma";
    }
    return "?";
}

}  // namespace

std::optional<Type> copied_rounding(const State& state, const StageRecord& stage) {
    if (!stage.is_copy || stage.after) return {};
    const Read& read = *reads_of(stage.definition)[0].read;
    int source = state.stage_of(read.operation.get());
    return source < 0 ? std::nullopt : state.stages[source].rounded;
}

namespace {

void put_under(Edit& edit, int stage, int loop, bool is_after) {
    StageRecord& record = edit.state.stages[stage];
    record.attach = loop;
    record.after = is_after;
    record.step = edit.step;
    for (int id : record.order) edit.state.loops[id].dead_step = edit.step;
    record.order.clear();
    add_root_loops(edit.state, stage, record.definition.operation->shape);
}

/// Updates go where the elements are that they update, unless they were scheduled.
std::vector<int> untouched_updaters(const State& state, int stage) {
    std::vector<int> found;
    for (int updates : updaters_of(state, stage)) {
        const StageRecord& record = state.stages[updates];
        const bool is_free = record.attach < 0 && record.relations.empty() && !record.scan &&
                             std::ranges::all_of(record.order, [&](int loop) {
                                 return state.loops[loop].level == Level::Serial && attached_to(state, loop).empty();
                             });
        if (is_free) found.push_back(updates);
    }
    return found;
}

}  // namespace

void Schedule::at(const StageRef& ref, Loop loop, std::source_location where) {
    Edit edit(state_, where);
    State& state = edit.state;
    int stage = edit.stage(ref, "at"), under = edit.alive(loop, "at");
    int owner = state.loops[under].stage;
    StageRecord& record = state.stages[stage];
    user_check(owner != stage, where, "at({}, {}): the loop is the stage's own", stage_text(state, stage),
               state.loops[under].name);
    for (int loop_around : enclosing_loops(state, under))
        user_check(state.loops[loop_around].stage != stage, where, "at({}, {}): the loop stands inside '{}' itself",
                   stage_text(state, stage), state.loops[under].name, stage_text(state, stage));
    for (int id : record.order)
        user_check(
            attached_to(state, id).empty(), where,
            "at({}, {}): '{}' stands under its loop '{}'; place that one again after this step, or place '{}' first",
            stage_text(state, stage), state.loops[under].name,
            attached_to(state, id).empty() ? "" : stage_text(state, attached_to(state, id)[0]), state.loops[id].name,
            stage_text(state, stage));
    user_check(!record.scan, where, "at({}, {}): '{}' runs along a loop of its own; place it before running",
               stage_text(state, stage), state.loops[under].name, stage_text(state, stage));
    const bool is_after = !depends_on(state, owner, stage);
    put_under(edit, stage, under, is_after);
    const std::vector<int> updates = is_after ? std::vector<int>() : untouched_updaters(state, stage);
    for (int each : updates) put_under(edit, each, under, false);
    check_rules(state, where);
    for (int around : enclosing_loops(state, under))
        user_check(
            !follows_terms(state, stage) || !state.loops[around].skips(), where,
            "at({}, {}): skip leaves iterations of '{}' out; place '{}', which keeps what they make, before that",
            stage_text(state, stage), state.loops[under].name, state.loops[around].name, stage_text(state, stage));
    fit_root_loops(state, stage, where);
    for (int each : updates) fit_root_loops(state, each, where);
    std::string placed = edit.stage_as_cpp(stage), around = edit.loop_as_cpp(under);
    edit.commit(fmt::format("s.at({}, {});", placed, around), fmt::format("at {} {}", stage, under));
}

namespace {

/// The expression with Reads of `definition`'s operation replaced by its expression.
Expr inlined(const Expr& root, const StageDefinition& definition) {
    return transform(root, [&](const Expr& e) -> Expr {
        const Read* read = e.as<Read>();
        if (!read || read->operation != definition.operation) return {};
        Substitution axes;
        for (size_t d = 0; d < definition.axes.size(); ++d) axes.emplace_back(definition.axes[d], read->indices[d]);
        Expr body = substitute(definition.finish[read->output], axes);
        if (!read->guarded) return body;
        return transform(body, [](const Expr& inner) -> Expr {  // evaluated only where the outer read is
            const Read* inside = inner.as<Read>();
            if (!inside || inside->guarded) return {};
            Read guarded = *inside;
            guarded.guarded = true;
            return make_expr(inner.type(), guarded);
        });
    });
}

}  // namespace

void Schedule::inline_stage(const StageRef& ref, std::source_location where) {
    Edit edit(state_, where);
    State& state = edit.state;
    int stage = edit.stage(ref, "inline_stage");
    StageRecord& record = state.stages[stage];
    const std::string name = stage_text(state, stage);
    user_check(!record.inlined, where, "inline_stage({}): it is inlined already", name);
    user_check(!record.definition.reducer, where,
               "inline_stage({}): it is a reduction, and each reader would repeat it; use at({}, loop)", name, name);
    user_check(!state.is_result(stage), where, "inline_stage({}): it is an output of the schedule", name);
    user_check(!record.definition.target && updaters_of(state, stage).empty(), where,
               "inline_stage({}): its elements are made by atomic updates, which are no expression", name);
    for (int id : record.order)
        user_check(attached_to(state, id).empty(), where,
                   "inline_stage({}): '{}' stands under its loop '{}'; move it first", name,
                   attached_to(state, id).empty() ? "" : stage_text(state, attached_to(state, id)[0]),
                   state.loops[id].name);
    user_check(
        !record.rounded, where,
        "inline_stage({}): its elements are rounded to {}, which only memory does; leave out the round_to, or write "
        "round_to in its expression",
        name, name_of(*record.rounded));
    StageDefinition definition = record.definition;
    for (StageRecord& reader : state.stages) {
        for (Expr& expr : reader.definition.update) expr = inlined(expr, definition);
        for (Expr& expr : reader.definition.finish) expr = inlined(expr, definition);
        for (Expr& expr : reader.definition.place) expr = inlined(expr, definition);
    }
    record.inlined = true;
    record.attach = -1;
    edit.commit(fmt::format("s.inline_stage({});", edit.stage_as_cpp(stage)), fmt::format("inline {}", stage));
}

namespace {

/// Replaces reads of (operation, output) by reads of the copy; says whether there were any.
bool redirect(std::vector<Expr>& exprs, const Operation* from, int output, const std::shared_ptr<const Operation>& to,
              int to_output = 0) {
    bool found = false;
    for (Expr& root : exprs)
        root = transform(root, [&](const Expr& e) -> Expr {
            const Read* read = e.as<Read>();
            if (!read || read->operation.get() != from || read->output != output) return {};
            found = true;
            return make_expr(e.type(), Read{to, to_output, read->indices, read->guarded});
        });
    return found;
}

/// The copy of what was made for updates makes the updates.
void move_update(StageDefinition& made, StageDefinition& copy) {
    Substitution axes;
    for (size_t d = 0; d < made.axes.size(); ++d) axes.emplace_back(made.axes[d], copy.axes[d]);
    copy.target = std::exchange(made.target, {});
    copy.combine = made.combine;
    for (const Expr& index : std::exchange(made.place, {})) copy.place.push_back(substitute(index, axes));
}

std::string suffix_of(Memory memory) { return memory == Memory::Auto ? "copy" : tw::to_string(memory); }

}  // namespace

Stage Schedule::stage(const StageRef& consumer, const StageRef& operand, Memory memory, Loop loop,
                      std::source_location where) {
    return stage(std::vector{consumer}, operand, memory, loop, where);
}

Stage Schedule::stage(const std::vector<StageRef>& consumers, const StageRef& operand, Memory memory, Loop loop,
                      std::source_location where) {
    Edit edit(state_, where);
    State& state = edit.state;
    user_check(!consumers.empty(), where, "stage({{}}, ...): no reader is named; name those that the copy is for");
    std::vector<int> readers;
    for (const StageRef& consumer : consumers) readers.push_back(edit.stage(consumer, "stage"));
    const int under = edit.alive(loop, "stage"), owner = state.loops[under].stage;
    OperandOf source = operand_of(edit, operand);
    StageDefinition definition = copy_definition(state, source.operation, source.output,
                                                 fmt::format("{}_{}", source.operation->name, suffix_of(memory)),
                                                 state.stages[readers[0]].definition, under);
    for (int reader : readers) {
        StageDefinition& into = state.stages[reader].definition;
        bool only_update = owner == reader && state.position(under) >= state.around_results(reader);
        bool found = redirect(into.update, source.operation.get(), source.output, definition.operation);
        if (!only_update)
            for (auto* exprs : {&into.finish, &into.place})
                found |= redirect(*exprs, source.operation.get(), source.output, definition.operation);
        user_check(found, where, "stage({}, {}, ..., {}): '{}' does not read '{}' inside loop '{}'", into.name,
                   source.operation->name, state.loops[under].name, into.name, source.operation->name,
                   state.loops[under].name);
    }
    int copy = add_stage(state, std::move(definition), edit.step);
    StageRecord& record = state.stages[copy];
    record.is_copy = true;
    record.rounded = copied_rounding(state, record);
    record.attach = under;
    record.memory = memory;
    check_rules(state, where);
    fit_root_loops(state, copy, where);
    std::vector<std::string> into;
    for (int reader : readers) into.push_back(edit.stage_as_cpp(reader));
    std::string into_cpp = into.size() == 1 ? into[0] : fmt::format("{{{}}}", fmt::join(into, ", ")),
                from = operand_as_cpp(edit, operand), around = edit.loop_as_cpp(under), made = edit.stage_as_cpp(copy);
    std::string saved = readers.size() == 1 ? fmt::format("stage {}", readers[0])
                                            : fmt::format("stage_for {} {}", readers.size(), fmt::join(readers, " "));
    edit.commit(fmt::format("Stage {} = s.stage({}, {}, {}, {});", made, into_cpp, from, memory_text(memory), around),
                fmt::format("{} {} {} {}", saved, saved_operand(edit, operand), tw::to_string(memory), under));
    return state_->handle_of_stage(copy);
}

Stage Schedule::stage(const StageRef& consumer, const StageRef& operand, Memory memory, std::source_location where) {
    Edit edit(state_, where);
    State& state = edit.state;
    int reader = edit.stage(consumer, "stage");
    OperandOf source = operand_of(edit, operand);
    user_check(memory == Memory::Global, where,
               "stage({}, {}, {}): a copy in {} needs the loop whose iteration it serves: stage(consumer, operand, "
               "memory, loop)",
               stage_text(state, reader), source.operation->name, memory_text(memory), tw::to_string(memory));
    StageDefinition& into = state.stages[reader].definition;
    StageDefinition definition =
        copy_definition(state, source.operation, source.output, source.operation->name + "_global", into, -1);
    bool in_update = redirect(into.update, source.operation.get(), source.output, definition.operation);
    bool in_finish = redirect(into.finish, source.operation.get(), source.output, definition.operation);
    in_finish |= redirect(into.place, source.operation.get(), source.output, definition.operation);
    user_check(in_update || in_finish, where, "stage({}, {}, ...): '{}' does not read '{}'", into.name,
               source.operation->name, into.name, source.operation->name);
    int copy = add_stage(state, std::move(definition), edit.step);
    state.stages[copy].is_copy = true;
    state.stages[copy].rounded = copied_rounding(state, state.stages[copy]);
    std::string into_cpp = edit.stage_as_cpp(reader), from = operand_as_cpp(edit, operand),
                made = edit.stage_as_cpp(copy);
    edit.commit(fmt::format("Stage {} = s.stage({}, {}, {});", made, into_cpp, from, memory_text(memory)),
                fmt::format("stage {} {} {} -1", reader, saved_operand(edit, operand), tw::to_string(memory)));
    return state_->handle_of_stage(copy);
}

Stage Schedule::stage(const StageRef& result, Memory memory, Loop loop, std::source_location where) {
    Edit edit(state_, where);
    State& state = edit.state;
    int stage = edit.stage(result, "stage"), under = edit.alive(loop, "stage");
    const StageDefinition& made = state.stages[stage].definition;
    const bool is_stored = state.stages[stage].attach < 0 && resolved_memory(state, stage) == Memory::Global;
    user_check(
        state.is_result(stage) || made.target || is_stored, where,
        "stage({}, {}, {}): '{}' is no output and lies in no memory between kernels; to choose where it lives use "
        "set_memory({}, ...)",
        made.name, memory_text(memory), state.loops[under].name, made.name, made.name);
    user_check(made.finish.size() == 1, where,
               "stage({}, ...): it has {} outputs; only a single result can be staged. Compute them as they are, or "
               "declare each by a compute() of its own",
               made.name, made.finish.size());
    std::shared_ptr<const Operation> source = made.operation;
    StageDefinition definition = copy_definition(state, source, 0, made.name + "_out", made, under);
    for (const Operation*& operation : state.result)
        if (operation == source.get()) operation = definition.operation.get();
    for (size_t s = 0; s < state.stages.size(); ++s) {  // readers elsewhere take the finished result
        StageRecord& reader = state.stages[s];
        if (reader.after && stands_below(state, static_cast<int>(s), true, under)) continue;
        redirect(reader.definition.update, source.get(), 0, definition.operation);
        redirect(reader.definition.finish, source.get(), 0, definition.operation);
        redirect(reader.definition.place, source.get(), 0, definition.operation);
    }
    if (made.target) move_update(state.stages[stage].definition, definition);
    int copy = add_stage(state, std::move(definition), edit.step);
    state.stages[stage].memory = memory;
    StageRecord& record = state.stages[copy];
    record.is_copy = record.after = true;
    record.attach = under;
    std::string from = edit.stage_as_cpp(stage), around = edit.loop_as_cpp(under), left = edit.stage_as_cpp(copy);
    edit.commit(fmt::format("Stage {} = s.stage({}, {}, {});", left, from, memory_text(memory), around),
                fmt::format("result {} {} {}", stage, tw::to_string(memory), under));
    return state_->handle_of_stage(copy);
}

void Schedule::set_memory(const StageRef& ref, Memory memory, std::source_location where) {
    Edit edit(state_, where);
    int stage = edit.stage(ref, "set_memory");
    StageRecord& record = edit.state.stages[stage];
    const bool is_pipelined = record.attach >= 0 && edit.state.loops[record.attach].stages > 1;
    const bool was_shared = is_pipelined && has_shared_copies(edit.state, record.attach);
    record.memory = memory;
    if (was_shared && !has_shared_copies(edit.state, record.attach)) {
        const std::string& loop = edit.state.loops[record.attach].name;
        user_error(where,
                   "set_memory({}, {}): the loop '{}' is pipelined, and nothing in shared memory would stand under it, "
                   "which is all that has several buffers; pipeline({}, {{.stages = 1}}) first",
                   record.definition.name, memory_text(memory), loop, loop);
    }
    edit.commit(fmt::format("s.set_memory({}, {});", edit.stage_as_cpp(stage), memory_text(memory)),
                fmt::format("memory {} {}", stage, tw::to_string(memory)));
}

void Schedule::via(const StageRef& ref, Copy how, std::source_location where) {
    Edit edit(state_, where);
    int stage = edit.stage(ref, "via");
    StageRecord& record = edit.state.stages[stage];
    const std::string name = stage_text(edit.state, stage);
    user_check(record.is_copy, where,
               "via({}, ...): it is no copy; name what stage(consumer, operand, ...) or stage(result, ...) returned",
               name);
    user_check(!record.after || how != Copy::Async, where,
               "via({}, {}): it is a copy out of {}; asynchronous copies go into shared memory, boxes (Copy::Tma) both "
               "ways",
               name, tw::to_string(how), tw::to_string(memory_of_source(edit.state, stage)));
    Memory shared = record.after ? memory_of_source(edit.state, stage) : resolved_memory(edit.state, stage);
    user_check((how != Copy::Async && how != Copy::Tma) || shared == Memory::Shared, where,
               "via({}, {}): {} in {}; asynchronous copies go into shared memory, boxes (Copy::Tma) both ways", name,
               tw::to_string(how), record.after ? "what it copies lives" : "it lives", tw::to_string(shared));
    user_check(how != Copy::Tma || edit.state.target.has_tma, where, "via({}, tma): needs {}, the target is {}", name,
               first_target_with(&Target::has_tma), edit.state.target.arch);
    record.via = {how, edit.step};
    edit.commit(fmt::format("s.via({}, {});", edit.stage_as_cpp(stage), copy_text(how)),
                fmt::format("via {} {}", stage, tw::to_string(how)));
}

namespace {

/// Copies, and copies of copies, hold the elements of what they copy.
void round_copies(State& state) {
    for (bool changed = true; changed;) {
        changed = false;
        for (StageRecord& copy : state.stages) {
            if (copy.inlined || copy.rounded) continue;
            copy.rounded = copied_rounding(state, copy);
            changed |= copy.rounded.has_value();
        }
    }
}

}  // namespace

void Schedule::round_to(const StageRef& ref, Type type, std::source_location where) {
    Edit edit(state_, where);
    int stage = edit.stage(ref, "round_to");
    StageRecord& record = edit.state.stages[stage];
    const std::string name = stage_text(edit.state, stage);
    user_check(!record.inlined, where, "round_to({}, {}): it is inlined; its elements are in no memory", name,
               name_of(type));
    user_check(!edit.state.is_result(stage), where,
               "round_to({}, {}): it is an output of the schedule, whose type is declared; declare it as {}", name,
               name_of(type), name_of(type));
    user_check(
        target_of(edit.state, stage) < 0, where,
        "round_to({}, {}): its elements are combined with those of '{}' atomically and are in no memory of their own",
        name, name_of(type), record.definition.target->name);
    std::vector<int> updaters = updaters_of(edit.state, stage);
    user_check(updaters.empty(), where,
               "round_to({}, {}): '{}' updates its elements atomically, in the type of the sum; round the stage that "
               "reads them",
               name, name_of(type), edit.state.stages[updaters[0]].definition.name);
    user_check(is_float(type), where, "round_to({}, {}): name a float type, such as bf16", name, name_of(type));
    for (const Operation::Output& output : record.definition.operation->outputs)
        user_check(is_float(output.type) && unit_roundoff(type) > unit_roundoff(output.type), where,
                   "round_to({}, {}): its elements are {}, which {} does not narrow; name a type of fewer digits", name,
                   name_of(type), name_of(output.type), name_of(type));
    record.rounded = type;
    round_copies(edit.state);
    edit.state.notes.push_back(fmt::format("[{}] '{}' is rounded to {}: each element by up to {:.2g} of itself",
                                           edit.step, name, name_of(type), unit_roundoff(type)));
    edit.commit(fmt::format("s.round_to({}, {});", edit.stage_as_cpp(stage), name_of(type)),
                fmt::format("round_to {} {}", stage, name_of(type)));
}

}  // namespace tw
