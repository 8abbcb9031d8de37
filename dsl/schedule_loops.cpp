// The primitives that transform loops.
#include <algorithm>

#include <fmt/ranges.h>

#include "dsl/check_sizes.h"
#include "dsl/cut.h"
#include "dsl/edit.h"
#include "dsl/schedule.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {

std::string level_text(Level level) {
    switch (level) {
        case Level::Unroll: return "unrolled";
        default: return to_string(level);
    }
}

namespace {

/// Not bound, and not a matrix instruction's.
void require_own_serial(const Edit& edit, int loop, const char* what) {
    const LoopRecord& record = edit.state.loops[loop];
    user_check(record.level == Level::Serial, edit.where,
               "{}: loop '{}' is bound to {}; {} it before binding, or bind(loop, serial) first", what, record.name,
               to_string(record.level), what);
    const auto& mma = edit.state.owner(loop).mma;
    user_check(!mma || (loop != mma->m && loop != mma->n && loop != mma->k), edit.where,
               "{}: loop '{}' is run by a matrix instruction; {} it before mma", what, record.name, what);
}

}  // namespace

void require_serial(const Edit& edit, int loop, const char* what) {
    const LoopRecord& record = edit.state.loops[loop];
    require_own_serial(edit, loop, what);
    user_check(record.stages == 1, edit.where,
               "{}: loop '{}' is pipelined; {} it before, or pipeline(loop, {{.stages = 1}}) first", what, record.name,
               what);
    user_check(!record.reversed, edit.where, "{}: loop '{}' runs backwards; {} it before reverse, or reverse it again",
               what, record.name, what);
    user_check(record.delay.iterations == 0, edit.where,
               "{}: a stage is delayed in loop '{}'; {} it before, or delay(stage, loop, 0) first", what, record.name,
               what);
    user_check(
        record.is_whole(), edit.where,
        "{}: loop '{}' is cut into segments, or skips some; {} it before, or make it whole first: cut(loop, {{}})",
        what, record.name, what);
}

namespace {

/// As asked for, the rest by default.
SplitNames names_of(const LoopRecord& whole, const SplitNames& asked) {
    SplitNames usual = default_names(whole.name);
    return {asked.outer.empty() ? usual.outer : asked.outer, asked.inner.empty() ? usual.inner : asked.inner};
}

bool is_usual(const LoopRecord& whole, const SplitNames& names) {
    SplitNames usual = default_names(whole.name);
    return names.outer == usual.outer && names.inner == usual.inner;
}

}  // namespace

std::array<Loop, 2> Schedule::split(Loop loop, int64_t size, Tail tail, std::source_location where) {
    return split(loop, size, tail, {}, where);
}

std::array<Loop, 2> Schedule::split(Loop loop, int64_t size, const SplitNames& names, std::source_location where) {
    return split(loop, size, Tail::Divide, names, where);
}

std::array<Loop, 2> Schedule::split(Loop loop, int64_t size, Tail tail, const SplitNames& asked,
                                    std::source_location where) {
    Edit edit(state_, where, Edit::Regions::OfItsLoops);
    int id = edit.alive(loop, "split");
    LoopRecord whole = edit.state.loops[id];
    user_check(size >= 1, where, "split({}, {}): the size must be at least 1", whole.name, size);
    user_check(size <= (int64_t{1} << 30), where, "split({}, {}): the size is larger than any loop of a kernel",
               whole.name, size);
    require_serial(edit, id, "split");
    bool divides = divisor_of(whole.extent) % size == 0;
    if (!divides && tail == Tail::Divide)
        user_error(where,
                   "split({}, {}): {} does not divide axis '{}' ({}). Use a divisor, or split({}, {}, Tail::Mask)",
                   whole.name, size, size, whole.name, tw::to_string(whole.extent), whole.name, size);
    Expr inner_extent = constant(Type::I64, size);
    Expr outer_extent = simplify((whole.extent + (size - 1)) / inner_extent);
    SplitNames names = names_of(whole, asked);
    int outer = edit.state.add_loop(names.outer, outer_extent, whole.stage, whole.reduces);
    int inner = edit.state.add_loop(names.inner, inner_extent, whole.stage, whole.reduces);
    StageRecord& record = edit.state.stages[whole.stage];
    auto place = std::find(record.order.begin(), record.order.end(), id);
    *place = outer;
    record.order.insert(place + 1, inner);
    record.relations.push_back({Relation::Kind::Split, id, outer, inner, inner_extent, !divides});
    // One iteration of the inner loop is one of the whole.
    move_under(edit.state, id, inner);
    edit.state.loops[id].dead_step = edit.step;
    std::string shown, saved;
    if (!is_usual(whole, names)) {
        shown = fmt::format(", {{{}, {}}}", quoted(names.outer), quoted(names.inner));
        saved = fmt::format(" {} {}", saved_name(names.outer), saved_name(names.inner));
    }
    std::string split = edit.loop_as_cpp(id), first = edit.loop_as_cpp(outer), second = edit.loop_as_cpp(inner);
    bool masks = tail == Tail::Mask;
    edit.commit(fmt::format("auto [{}, {}] = s.split({}, {}{}{});", first, second, split, size,
                            masks ? ", Tail::Mask" : "", shown),
                fmt::format("split {} {} {}{}", id, size, masks ? "mask" : "divide", saved));
    return {state_->handle_of_loop(outer), state_->handle_of_loop(inner)};
}

Loop Schedule::fuse(Loop outer, Loop inner, std::source_location where) { return fuse(outer, inner, "", where); }

Loop Schedule::fuse(Loop outer, Loop inner, const std::string& name, std::source_location where) {
    Edit edit(state_, where, Edit::Regions::OfItsLoops);
    int first = edit.alive(outer, "fuse"), second = edit.alive(inner, "fuse");
    const LoopRecord a = edit.state.loops[first], b = edit.state.loops[second];
    user_check(a.stage == b.stage, where, "fuse({}, {}): the loops belong to '{}' and '{}'; fuse loops of one stage",
               a.name, b.name, stage_text(edit.state, a.stage), stage_text(edit.state, b.stage));
    user_check(edit.state.position(second) == edit.state.position(first) + 1, where,
               "fuse({}, {}): '{}' does not stand directly around '{}'; order them first", a.name, b.name, a.name,
               b.name);
    user_check(a.reduces == b.reduces, where, "fuse({}, {}): one is a data loop, the other a reduce loop", a.name,
               b.name);
    require_serial(edit, first, "fuse");
    require_serial(edit, second, "fuse");
    user_check(
        attached_to(edit.state, first).empty(), where,
        "fuse({}, {}): '{}' stands under '{}', between them; move it first", a.name, b.name,
        stage_text(edit.state, attached_to(edit.state, first).empty() ? a.stage : attached_to(edit.state, first)[0]),
        a.name);
    int64_t iterations = 0;
    bool leaves =
        __builtin_mul_overflow(bounds_of(a.extent).min.value_or(0), bounds_of(b.extent).min.value_or(0), &iterations);
    user_check(!leaves && iterations <= most_iterations, where,
               "fuse({}, {}): {} times {} iterations are more than 2^62; fuse shorter loops, or split them before",
               a.name, b.name, tw::to_string(a.extent), tw::to_string(b.extent));
    const std::string usual = a.name + "_" + b.name;
    int fused = edit.state.add_loop(name.empty() ? usual : name, simplify(a.extent * b.extent), a.stage, a.reduces);
    StageRecord& record = edit.state.stages[a.stage];
    auto place = std::find(record.order.begin(), record.order.end(), first);
    *place = fused;
    record.order.erase(place + 1);
    Expr size =
        is_constant(b.extent, 0) ? constant(Type::I64, 1) : b.extent;  // of an empty loop nothing is ever divided
    record.relations.push_back({Relation::Kind::Fuse, fused, first, second, size});
    move_under(edit.state, second, fused);
    edit.state.loops[first].dead_step = edit.state.loops[second].dead_step = edit.step;
    std::string around = edit.loop_as_cpp(first), inside = edit.loop_as_cpp(second), made = edit.loop_as_cpp(fused);
    bool named = !name.empty() && name != usual;
    edit.commit(fmt::format("Loop {} = s.fuse({}, {}{});", made, around, inside, named ? ", " + quoted(name) : ""),
                fmt::format("fuse {} {}{}", first, second, named ? " " + saved_name(name) : ""));
    return state_->handle_of_loop(fused);
}

Loop Schedule::fuse(const std::vector<Loop>& loops, std::source_location where) { return fuse(loops, "", where); }

void Schedule::order(const std::vector<Loop>& loops, std::source_location where) {
    Edit edit(state_, where, Edit::Regions::OfItsLoops);
    user_check(!loops.empty(), where, "order: name at least one loop");
    std::vector<int> wanted;
    for (Loop loop : loops) {
        int id = edit.alive(loop, "order");
        user_check(edit.state.loops[id].stage == edit.state.loops[loops[0].id].stage, where,
                   "order: '{}' belongs to '{}', '{}' to '{}'; order the loops of one stage at a time",
                   edit.state.loops[loops[0].id].name, stage_text(edit.state, edit.state.loops[loops[0].id].stage),
                   edit.state.loops[id].name, stage_text(edit.state, edit.state.loops[id].stage));
        user_check(std::find(wanted.begin(), wanted.end(), id) == wanted.end(), where,
                   "order: loop '{}' is named twice", edit.state.loops[id].name);
        wanted.push_back(id);
    }
    StageRecord& record = edit.state.stages[edit.state.loops[wanted[0]].stage];
    std::vector<int> reduce_before, reduce_after;
    auto reduce_loops = [&](std::vector<int>& list) {
        for (int id : record.order)
            if (edit.state.loops[id].reduces) list.push_back(id);
    };
    reduce_loops(reduce_before);
    size_t next = 0;
    for (int& id : record.order)
        if (std::find(wanted.begin(), wanted.end(), id) != wanted.end()) id = wanted[next++];
    reduce_loops(reduce_after);
    if (reduce_before != reduce_after) {
        user_check(!record.scan, where,
                   "order: '{}' runs along its reduce loops, each iteration from what the ones before have made; keep "
                   "them in their order",
                   record.definition.name);
        user_check(record.definition.reducer->commutative, where,
                   "order: the reducer '{}' of '{}' is not commutative; keep its reduce loops in their order",
                   record.definition.reducer->name, record.definition.name);
        edit.state.notes.push_back(fmt::format("[{}] the terms of '{}' are combined in another order{}", edit.step,
                                               record.definition.name, rounding_text(*record.definition.reducer)));
    }
    std::vector<std::string> names, ids;
    for (int id : wanted) {
        names.push_back(edit.loop_as_cpp(id));
        ids.push_back(std::to_string(id));
    }
    edit.commit(fmt::format("s.order({{{}}});", fmt::join(names, ", ")), fmt::format("order {}", fmt::join(ids, " ")));
}

namespace {

void check_cut(const Edit& edit, int loop) {
    const LoopRecord& record = edit.state.loops[loop];
    user_check(record.level == Level::Serial, edit.where,
               "cut({}, ...): the loop is bound to {}; only a serial loop runs in segments, one after another",
               record.name, to_string(record.level));
}

std::string position_as_saved(const Edit& edit, int loop, const Expr& position) {
    const std::string& name = edit.state.loops[loop].name;
    user_check(position.defined() && is_integer(position.type()), edit.where,
               "cut({}, ...): a position is an integer: the first iteration of a segment", name);
    std::string saved = saved_position(edit.state, position);
    user_check(
        !saved.empty(), edit.where,
        "cut({}, {{{}}}): positions are made of integers, named sizes and index(loop) of loops around '{}', with "
        "+ - * / % min max",
        name, to_string(position), name);
    return saved;
}

}  // namespace

void Schedule::cut(Loop loop, const std::vector<Expr>& positions, std::source_location where) {
    Edit edit(state_, where);
    int id = edit.alive(loop, "cut");
    check_cut(edit, id);
    std::vector<std::string> shown;
    std::string saved;
    edit.state.loops[id].cuts.clear();
    if (positions.empty()) edit.state.loops[id].kept = {};
    for (const Expr& position : positions) {
        saved += " " + position_as_saved(edit, id, position);
        shown.push_back(position_as_cpp(edit, position));
        edit.state.loops[id].cuts.push_back(cast_unchecked(Type::I64, position));
    }
    edit.commit(fmt::format("s.cut({}, {{{}}});", edit.loop_as_cpp(id), fmt::join(shown, ", ")),
                fmt::format("cut {} {}{}", id, positions.size(), saved));
}

void Schedule::cut(Loop loop, const WherePartial& conditions, std::source_location where) {
    Edit edit(state_, where);
    int id = edit.alive(loop, "cut"), stage = edit.stage(conditions.stage, "where_partial");
    check_cut(edit, id);
    LoopRecord& record = edit.state.loops[id];
    record.cuts.clear();
    record.cuts = where_conditions_hold(edit.state, id, stage, where);
    user_check(
        !record.cuts.empty(), where,
        "cut({}, where_partial({})): no mask or select of '{}' holds in some iterations of '{}' and not in others: "
        "there is nothing to cut",
        record.name, stage_text(edit.state, stage), stage_text(edit.state, stage), record.name);
    std::string cut = edit.loop_as_cpp(id), conditional = edit.stage_as_cpp(stage);
    edit.commit(fmt::format("s.cut({}, where_partial({}));", cut, conditional),
                fmt::format("cut_partial {} {}", id, stage));
}

void check_level(const Edit& edit, const LoopRecord& loop, Level level) {
    auto extent = as_constant(loop.extent);
    std::string asked = fmt::format("bind({}, {})", loop.name, to_string(level));
    user_check(!(is_grid(level) || level == Level::Vector) || !loop.reduces, edit.where,
               "{}: '{}' runs along a reduction: its terms can be shared among threads, not {}", asked, loop.name,
               is_grid(level) ? "among blocks; rfactor(...) makes a kernel of each part" : "as a vector; unroll it");
    if (level == Level::Cluster) {
        user_check(edit.state.target.has_clusters, edit.where, "{}: needs {}, the target is {}", asked,
                   first_target_with(&Target::has_clusters), edit.state.target.arch);
        user_check(extent && *extent >= 1 && *extent <= most_cluster_blocks, edit.where,
                   "{}: a cluster has 2 to {} blocks, the loop has {} iterations; split it", asked, most_cluster_blocks,
                   to_string(loop.extent));
    }
    user_check(is_grid(level) || level == Level::Serial || extent, edit.where,
               "{}: the extent {} is not constant; split it and bind the inner loop", asked, to_string(loop.extent));
    if (level == Level::Vector)
        user_check(*extent == 2 || *extent == 4 || *extent == 8 || *extent == 16, edit.where,
                   "{}: a vector has 2, 4, 8 or 16 elements, the loop {}; split it", asked, *extent);
    if (level == Level::Unroll)
        user_check(*extent <= 256, edit.where,
                   "{}: unrolling {} iterations makes a huge kernel; split it (256 at most)", asked, *extent);
    if (is_thread(level)) user_check(*extent >= 1, edit.where, "{}: the loop has no iterations", asked);
}

void Schedule::bind(Loop loop, Level level, std::source_location where) {
    Edit edit(state_, where, Edit::Regions::OfItsLoops);
    int id = edit.alive(loop, "bind");
    LoopRecord& record = edit.state.loops[id];
    check_level(edit, record, level);
    user_check(record.level == Level::Serial || level == Level::Serial, where,
               "bind({}, {}): the loop is already bound to {}; bind(loop, serial) frees it", record.name,
               tw::to_string(level), tw::to_string(record.level));
    user_check(
        record.stages == 1, where,
        "bind({}, {}): the loop is pipelined: its iterations follow each other; pipeline(loop, {{.stages = 1}}) first",
        record.name, tw::to_string(level));
    user_check(record.delay.iterations == 0 || level == Level::Serial, where,
               "bind({}, {}): a stage is delayed in the loop: its iterations follow each other; delay(stage, loop, 0) "
               "first",
               record.name, tw::to_string(level));
    user_check(record.is_whole() || level == Level::Serial, where,
               "bind({}, {}): the loop is cut: its segments follow each other; join them first: cut({}, {{}})",
               record.name, tw::to_string(level), record.name);
    user_check(!record.reversed || level == Level::Serial, where,
               "bind({}, {}): the loop runs backwards: its iterations follow each other; reverse it again first",
               record.name, tw::to_string(level));
    record.level = level;
    record.bind_step = level == Level::Serial ? -1 : edit.step;
    if (record.reduces && is_thread(level))
        edit.state.notes.push_back(fmt::format("[{}] the threads combine their parts of '{}' in pairs{}", edit.step,
                                               edit.state.stages[record.stage].definition.name,
                                               rounding_text(*edit.state.stages[record.stage].definition.reducer)));
    edit.commit(fmt::format("s.bind({}, {});", edit.loop_as_cpp(id), level_text(level)),
                fmt::format("bind {} {}", id, tw::to_string(level)));
}

void Schedule::reverse(Loop loop, std::source_location where) {
    Edit edit(state_, where);
    int id = edit.alive(loop, "reverse");
    LoopRecord& record = edit.state.loops[id];
    user_check(record.reduces, where,
               "reverse({}): it is no reduce loop; the order of others does not matter, or what stands under them "
               "needs it",
               record.name);
    require_own_serial(edit, id, "reverse");
    record.reversed = !record.reversed;
    const std::string& name = edit.state.stages[record.stage].definition.name;
    edit.state.notes.push_back(fmt::format("[{}] '{}' takes its terms in another order{}", edit.step, name,
                                           rounding_text(*edit.state.stages[record.stage].definition.reducer)));
    edit.commit(fmt::format("s.reverse({});", edit.loop_as_cpp(id)), fmt::format("reverse {}", id));
}

void Schedule::pipeline(Loop loop, PipelineOptions options, std::source_location where) {
    Edit edit(state_, where);
    int id = edit.alive(loop, "pipeline");
    LoopRecord& record = edit.state.loops[id];
    user_check(record.level == Level::Serial, where,
               "pipeline({}, ...): the loop is bound to {}; only iterations that follow each other can overlap",
               record.name, tw::to_string(record.level));
    user_check(options.stages >= 1 && options.stages <= most_stages, where,
               "pipeline({}, {{.stages = {}}}): each copy can have 2 to {} buffers; 1 ends a pipeline", record.name,
               options.stages, most_stages);
    user_check(has_shared_copies(edit.state, id), where,
               "pipeline({}, ...): nothing in shared memory stands under the loop; stage an operand there first: "
               "stage(consumer, operand, Memory::Shared, {})",
               record.name, record.name);
    user_check(
        options.in_flight >= 0 && options.in_flight < options.stages, where,
        "pipeline({}, {{.stages = {}, .in_flight = {}}}): fewer iterations than stages can be in flight, as each "
        "keeps its buffers; give .stages = {} or more",
        record.name, options.stages, options.in_flight, std::max(options.in_flight, 0) + 1);
    record.stages = options.stages;
    record.in_flight = options.in_flight;
    record.pipeline_step = edit.step;
    std::string flight = options.in_flight ? fmt::format(", .in_flight = {}", options.in_flight) : "";
    edit.commit(fmt::format("s.pipeline({}, {{.stages = {}{}}});", edit.loop_as_cpp(id), options.stages, flight),
                fmt::format("pipeline {} {} {}", id, options.stages, options.in_flight));
}

void Schedule::delay(const StageRef& stage, Loop loop, const DelayOptions& options, std::source_location where) {
    constexpr int most_iterations = 8;
    Edit edit(state_, where);
    const int iterations = options.iterations;
    int id = edit.alive(loop, "delay"), late = edit.stage(stage, "delay");
    const bool in_front = options.before.stage_.id >= 0 || options.before.tensor_.defined();
    const int before = in_front ? edit.stage(options.before, "delay") : -1;
    LoopRecord& record = edit.state.loops[id];
    const std::string name = edit.state.stages[late].definition.name;
    user_check(iterations >= 0 && iterations <= most_iterations, where,
               "delay({}, {}, {}): a stage can come 1 to {} iterations later, or 0: as it stands", name, record.name,
               iterations, most_iterations);
    if (iterations > 0) require_own_serial(edit, id, "delay");
    bool own = record.stage == late;
    user_check(own || edit.state.stages[late].attach == id || edit.state.stages[late].streams == id, where,
               "delay({}, {}, {}): '{}' does not stand under the loop; place it there first: at({}, {})", name,
               record.name, iterations, name, name, record.name);
    record.delay = {late, iterations, before};
    std::string delayed = edit.stage_as_cpp(late), along = edit.loop_as_cpp(id), saved, shown;
    if (before >= 0) {
        saved = fmt::format(" {}", before);
        shown = fmt::format("{{.iterations = {}, .before = {}}}", iterations, edit.stage_as_cpp(before));
    } else {
        shown = std::to_string(iterations);
    }
    edit.commit(fmt::format("s.delay({}, {}, {});", delayed, along, shown),
                fmt::format("delay {} {} {}{}", late, id, iterations, saved));
}

}  // namespace tw
