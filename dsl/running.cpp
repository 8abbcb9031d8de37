// Reductions whose terms are those of a neighbouring element and one more.
#include "dsl/running.h"

#include <algorithm>

#include "dsl/edit.h"
#include "dsl/simplify.h"
#include "dsl/stream.h"
#include "support/error.h"

namespace tw {
namespace {

using State = Schedule::State;

/// The stage's data axes in loop variables, one of them that of `known`.
Substitution axes_in_loops(const State& state, int stage, int known, std::source_location where) {
    const StageRecord& record = state.stages[stage];
    const Region region = region_of(state, stage, where);
    Substitution axes;
    for (size_t d = 0; d < record.definition.axes.size(); ++d)
        axes.emplace_back(record.definition.axes[d], region.lo[d] + loop_value_over(state, record.roots[d], known));
    return axes;
}

bool are_equal(const Expr& a, const Expr& b) { return prove(simplify(a == b)) == true; }

/// How a reduction runs along a data loop.
struct Run {
    bool reversed = false, exclusive = false;
    bool other_order = false;  ///< of terms than the declared one
    Expr newest;               ///< over the data axes: the index of the term that comes with an element
};

/// Looks for it: the number of terms grows by one with each iteration, and what the terms are does not depend on it.
class RunFinder {
public:
    RunFinder(const State& state, int stage, int loop, std::source_location where)
        : definition_(state.stages[stage].definition),
          loop_(state.loops[loop]),
          axes_(axes_in_loops(state, stage, loop, where)),
          term_(definition_.reduce_axes[0]),
          length_(definition_.reduce_extents.empty() ? term_.as<Variable>()->extent : definition_.reduce_extents[0]) {}

    const Expr& length() const { return length_; }
    Expr length_in_loops() const { return simplify(substitute(length_, axes_)); }

    /// Which way it goes; nothing if the lengths are no such ones.
    std::optional<Run> direction() const {
        for (bool reversed : {false, true})
            for (bool exclusive : {false, true}) {
                const Expr place = reversed ? loop_.extent - 1 - loop_.variable : loop_.variable;
                if (are_equal(length_in_loops(), exclusive ? place : place + 1))
                    return Run{.reversed = reversed, .exclusive = exclusive, .newest = {}};
            }
        return {};
    }

    /// With the newest term; nothing if terms differ from iteration to iteration.
    std::optional<Run> with_terms(Run run) const {
        const Expr term = index_variable("term", 0);
        if (are_the_same(term)) {
            run.newest = run.exclusive ? length_ : simplify(length_ - 1);
            return run;
        }
        if (!are_the_same(length_in_loops() - 1 - term)) return {};
        run.newest = integer(run.exclusive ? -1 : 0);
        run.other_order = true;
        return run;
    }

private:
    /// Whether the term at this index is the same in all iterations of the loop.
    bool are_the_same(const Expr& index) const {
        Substitution values = axes_;
        values.emplace_back(term_, index);
        auto is_the_same = [&](const Expr& expr) {
            return !contains(simplify(substitute(expr, values)), loop_.variable);
        };
        return std::ranges::all_of(definition_.update, is_the_same) &&
               std::ranges::all_of(definition_.terms_where, is_the_same);
    }

    const StageDefinition& definition_;
    const LoopRecord& loop_;
    Substitution axes_;
    Expr term_, length_;
};

/// Whether the term that comes with the last element, which an exclusive scan does not need, is there to be read.
bool reads_inside(const StageDefinition& definition) {
    bool inside = true;
    for (const Expr& update : definition.update)
        visit(update, [&](const Expr& e) {
            const Read* read = e.as<Read>();
            for (size_t d = 0; read && d < read->indices.size(); ++d)  // also where what guards it holds for all others
                inside = inside && prove(simplify(read->indices[d] >= 0)) == true &&
                         prove(simplify(read->indices[d] < read->operation->shape[d])) == true;
        });
    return inside;
}

/// From "each element reduces its terms" to "each element adds a term".
void take_newest(StageDefinition& definition, const Run& run, const Expr& length, const Expr& extent) {
    const Substitution newest{{definition.reduce_axes[0], run.newest}};
    for (auto* exprs : {&definition.update, &definition.terms_where})
        for (Expr& expr : *exprs) expr = simplify(substitute(expr, newest));
    definition.reduce_axes.clear();
    definition.reduce_extents.clear();
    if (run.exclusive && !reads_inside(definition)) definition.terms_where.push_back(simplify(length < extent - 1));
}

void check_may_run(const Edit& edit, int stage, int along, const std::string& call) {
    const State& state = edit.state;
    const StageRecord& record = state.stages[stage];
    const StageDefinition& definition = record.definition;
    const std::string& name = definition.name;
    user_check(definition.reducer != nullptr, edit.where, "{}: '{}' reduces nothing, so there is nothing to scan", call,
               name);
    user_check(!record.scan, edit.where, "{}: '{}' runs already, along '{}'", call, name,
               record.scan ? state.loops[record.scan->loop].name : "");
    user_check(state.loops[along].stage == stage && !state.loops[along].reduces, edit.where,
               "{}: '{}' is no data loop of '{}'; name the loop from whose iterations to the next a term is added",
               call, state.loops[along].name, name);
    user_check(definition.reduce_axes.size() == 1, edit.where,
               "{}: '{}' reduces along {} axes; give what each term is a stage of its own, and scan that", call, name,
               definition.reduce_axes.size());
    user_check(updaters_of(state, stage).empty() && !record.mma && shared_loop(state, stage) < 0, edit.where,
               "{}: '{}' is already computed by atomics, a matrix instruction or a stream; run it instead", call, name);
    const LoopRecord& terms = state.loops[record.roots.back()];
    user_check(terms.dead_step < 0 && terms.level == Level::Serial && attached_to(state, record.roots.back()).empty(),
               edit.where, "{}: loop '{}' over the terms, which goes, was scheduled already; do this step before", call,
               terms.name);
}

/// The loop that runs: the same, or one in its place that counts from the other end.
int running_loop(Edit& edit, int stage, int along, bool reversed) {
    State& state = edit.state;
    state.loops[along].reduces = true;
    if (!reversed) return along;
    const LoopRecord whole = state.loops[along];
    const int back = state.add_loop(whole.name, whole.extent, stage, true);
    StageRecord& record = state.stages[stage];
    std::ranges::replace(record.order, along, back);
    record.relations.push_back({Relation::Kind::Mirror, along, -1, back, whole.extent});
    move_under(state, along, back);
    state.loops[along].dead_step = edit.step;
    return back;
}

}  // namespace

bool Schedule::terms_vary(const StageRef& stage) const {
    const StageDefinition& given = state_->stages[(*this)[stage].id].definition;
    if (!given.reducer || given.reduce_axes.size() != 1) return false;
    const auto by_length = with_terms_by_length(given);
    const StageDefinition& definition = by_length ? *by_length : given;
    const Expr length = definition.reduce_extents.empty() ? definition.reduce_axes[0].as<Variable>()->extent
                                                          : definition.reduce_extents[0];
    return std::ranges::any_of(definition.axes, [&](const Expr& axis) { return contains(length, axis); });
}

Loop Schedule::running(const StageRef& scan, Loop loop, std::source_location where) {
    Edit edit(state_, where);
    State& state = edit.state;
    const int stage = edit.stage(scan, "running"), along = edit.alive(loop, "running");
    const std::string name = stage_text(state, stage), loop_name = state.loops[along].name;
    const std::string call = fmt::format("running({}, {})", name, loop_name);
    check_may_run(edit, stage, along, call);
    require_serial(edit, along, "running");
    if (auto definition = with_terms_by_length(state.stages[stage].definition))
        state.stages[stage].definition = std::move(*definition);
    const RunFinder finder(state, stage, along, where);
    const auto direction = finder.direction();
    user_check(direction.has_value(), where,
               "{}: an element has {} terms, which is neither the iteration nor one more, nor that from the other end: "
               "declare it as scan(...), and split its loop after this step",
               call, tw::to_string(finder.length_in_loops()));
    const auto run = finder.with_terms(*direction);
    user_check(run.has_value(), where,
               "{}: the terms themselves change with '{}': those of an element are not a neighbour's and one more",
               call, loop_name);
    StageRecord& record = state.stages[stage];
    user_check(!run->other_order || record.definition.reducer->commutative, where,
               "{}: the reducer '{}' is not commutative, and terms would come in the other order; declare the scan in "
               "reverse",
               call, record.definition.reducer->name);
    if (run->other_order)
        state.notes.push_back(fmt::format("[{}] the terms of '{}' are combined in another order{}", edit.step, name,
                                          rounding_text(*record.definition.reducer)));
    std::string running = edit.stage_as_cpp(stage), around = edit.loop_as_cpp(along);
    ScanRecord made{.length = finder.length(), .is_exclusive = run->exclusive};
    take_newest(record.definition, *run, finder.length(), state.loops[along].extent);
    state.loops[record.roots.back()].dead_step = edit.step;
    std::erase(record.order, record.roots.back());
    record.roots.pop_back();
    made.loop = running_loop(edit, stage, along, run->reversed);
    state.stages[stage].scan = made;
    const std::string back = run->reversed ? fmt::format("Loop {} = ", edit.loop_as_cpp(made.loop)) : "";
    edit.commit(fmt::format("{}s.running({}, {});", back, running, around), fmt::format("running {} {}", stage, along));
    return state_->handle_of_loop(made.loop);
}

void check_scan(const State& state, int stage, std::source_location where) {
    const StageRecord& record = state.stages[stage];
    const std::string& name = record.definition.name;
    const int known = record.scan->loop;
    const Expr length = simplify(substitute(record.scan->length, axes_in_loops(state, stage, known, where)));
    const Expr& place = state.loops[known].variable;
    user_check(
        are_equal(length, record.scan->is_exclusive ? place : place + 1), where,
        "'{}' runs along a loop from the first of its terms on, which this step would change; do it before running",
        name);
    user_check(shared_loop(state, stage) < 0, where, "'{}' runs along a loop of its own, and cannot share another one",
               name);
    bool bound = false, serial_again = false;
    for (int id : record.order) {
        const LoopRecord& loop = state.loops[id];
        if (!loop.reduces) continue;
        user_check(!loop.reversed && !loop.skips(), where,
                   "loop '{}' of '{}' cannot go the other way or leave out iterations: each needs the ones before",
                   loop.name, name);
        const bool is_bound = is_thread(loop.level) && !is_constant(loop.extent, 1);
        user_check(!is_bound || !serial_again, where,
                   "loop '{}' of '{}', bound to {}, stands inside a serial part of it, around which others are bound; "
                   "bind parts that stand directly in each other",
                   loop.name, name, to_string(loop.level));
        serial_again = serial_again || (bound && !is_bound);
        bound = bound || is_bound;
        internal_check(!bound || as_constant(loop.extent), "what a thread keeps of '{}' has no constant size", name);
    }
}

}  // namespace tw
