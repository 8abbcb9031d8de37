// Steps on several loops or stages at once: what each of them would be, one step of the trace together.
#include <algorithm>

#include <fmt/ranges.h>

#include "dsl/edit.h"
#include "dsl/operand.h"
#include "dsl/schedule.h"
#include "support/error.h"

namespace tw {
namespace {

/// "{a, b}".
std::string listed(const std::vector<std::string>& all) { return fmt::format("{{{}}}", fmt::join(all, ", ")); }

/// Numbers of handles, and names that a trace has for them.
struct Named {
    std::vector<int> numbers = {};
    std::vector<std::string> names = {};

    void add_loop(Edit& edit, const Loop& loop, const char* what) {
        numbers.push_back(edit.alive(loop, what));
        names.push_back(edit.loop_as_cpp(numbers.back()));
    }
    void add_stage(Edit& edit, const StageRef& stage, const char* what) {
        numbers.push_back(edit.stage(stage, what));
        names.push_back(edit.stage_as_cpp(numbers.back()));
    }
};

Named loops_named(Edit& edit, const std::vector<Loop>& loops, const char* what) {
    Named all;
    for (const Loop& loop : loops) all.add_loop(edit, loop, what);
    return all;
}

Named stages_named(Edit& edit, const std::vector<StageRef>& stages, const char* what) {
    Named all;
    for (const StageRef& stage : stages) all.add_stage(edit, stage, what);
    return all;
}

/// The only reduce loop of a stage, if it is the innermost of three loops or more and its extent is known; else -1. Of
/// what shares another one's loop sums stand around that.
int only_terms(const Schedule::State& state, int stage, const std::vector<Loop>& loops) {
    if (state.stages[stage].streams >= 0) return -1;
    const auto reduces = [&](const Loop& loop) { return state.loops[loop.id].reduces; };
    if (loops.size() < 3 || !reduces(loops.back()) || std::ranges::count_if(loops, reduces) != 1) return -1;
    const auto extent = as_constant(state.loops[loops.back().id].extent);
    return extent && *extent > 0 ? loops.back().id : -1;
}

}  // namespace

std::vector<Loop> Schedule::split(Loop loop, const std::vector<int64_t>& sizes, Tail tail,
                                  const std::vector<std::string>& names, std::source_location where) {
    user_check(!sizes.empty(), where, "split: no sizes; name at least one");
    user_check(names.empty() || names.size() == sizes.size() + 1, where,
               "split: {} names for {} loops; name each of them, or none", names.size(), sizes.size() + 1);
    Named whole;
    ListStep list(*this, where, [&](Edit& edit) { whole.add_loop(edit, loop, "split"); });
    std::vector<Loop> made;
    Loop rest = loop;
    for (size_t k = 0; k < sizes.size(); ++k) {
        SplitNames own;
        if (!names.empty()) own.outer = names[k];
        if (!names.empty() && k + 1 == sizes.size()) own.inner = names[k + 1];
        const auto [outer, inner] = split(rest, sizes[k], tail, own, where);
        made.push_back(outer);
        rest = inner;
    }
    made.push_back(rest);
    std::vector<std::string> quoted_names, saved;
    for (const std::string& name : names) quoted_names.push_back(quoted(name)), saved.push_back(saved_name(name));
    const std::string shown = names.empty() ? "" : ", " + listed(quoted_names);
    Edit edit(state_, where);
    list.commit(
        fmt::format("auto [{}] = s.split({}, {{{}}}, {}{});", fmt::join(loops_named(edit, made, "split").names, ", "),
                    whole.names[0], fmt::join(sizes, ", "), tail == Tail::Mask ? "Tail::Mask" : "Tail::Divide", shown),
        fmt::format("split_by {} {} {} {} {}", whole.numbers[0], tail == Tail::Mask ? "mask" : "divide", sizes.size(),
                    fmt::join(sizes, " "), fmt::join(saved, " ")));
    return made;
}

Loop Schedule::fuse(const std::vector<Loop>& loops, const std::string& name, std::source_location where) {
    user_check(!loops.empty(), where, "fuse: no loops; name at least one");
    if (loops.size() == 1) return loops[0];
    if (loops.size() == 2) return fuse(loops[0], loops[1], name, where);
    Named all;
    ListStep list(*this, where, [&](Edit& edit) { all = loops_named(edit, loops, "fuse"); });
    Loop fused = loops[0];
    for (size_t d = 1; d < loops.size(); ++d) fused = fuse(fused, loops[d], d + 1 == loops.size() ? name : "", where);
    Edit edit(state_, where);
    list.commit(fmt::format("Loop {} = s.fuse({}{});", edit.loop_as_cpp(fused.id), listed(all.names),
                            name.empty() ? "" : ", " + quoted(name)),
                fmt::format("fuse_all {} {}{}", loops.size(), fmt::join(all.numbers, " "),
                            name.empty() ? "" : " " + saved_name(name)));
    return fused;
}

void Schedule::bind(const std::vector<Loop>& loops, Level level, std::source_location where) {
    user_check(!loops.empty(), where, "bind: no loops; name at least one");
    Named all;
    ListStep list(*this, where, [&](Edit& edit) { all = loops_named(edit, loops, "bind"); });
    for (const Loop& loop : loops) bind(loop, level, where);
    list.commit(fmt::format("s.bind({}, {});", listed(all.names), level_text(level)),
                fmt::format("bind_all {} {}", tw::to_string(level), fmt::join(all.numbers, " ")));
}

void Schedule::at(const std::vector<StageRef>& stages, Loop loop, Memory memory, std::source_location where) {
    user_check(!stages.empty(), where, "at: no stages; name at least one");
    Named all, under;
    ListStep list(*this, where, [&](Edit& edit) {
        all = stages_named(edit, stages, "at");
        under.add_loop(edit, loop, "at");
    });
    for (const StageRef& stage : stages) {
        at(stage, loop, where);
        if (memory != Memory::Auto) set_memory(stage, memory, where);
    }
    list.commit(fmt::format("s.at({}, {}{});", listed(all.names), under.names[0],
                            memory == Memory::Auto ? "" : ", " + memory_text(memory)),
                fmt::format("at_all {} {} {}", under.numbers[0], tw::to_string(memory), fmt::join(all.numbers, " ")));
}

std::vector<Stage> Schedule::stage(std::span<const CopyOf> copies, Memory memory, Loop loop,
                                   std::optional<Type> rounded, std::source_location where) {
    user_check(!copies.empty(), where, "stage: no copies; name at least one consumer and its operand");
    Named under;
    std::vector<std::string> shown, saved;
    ListStep list(*this, where, [&](Edit& edit) {
        for (const CopyOf& copy : copies) {
            const Named readers = stages_named(edit, copy.consumers, "stage");
            shown.push_back(fmt::format("{{{}, {}}}",
                                        readers.names.size() == 1 ? readers.names[0] : listed(readers.names),
                                        operand_as_cpp(edit, copy.operand)));
            saved.push_back(fmt::format("{} {} {}", readers.numbers.size(), fmt::join(readers.numbers, " "),
                                        saved_operand(edit, copy.operand)));
        }
        under.add_loop(edit, loop, "stage");
    });
    std::vector<Stage> made;
    for (const CopyOf& copy : copies) {
        made.push_back(stage(copy.consumers, copy.operand, memory, loop, where));
        if (rounded) round_to(made.back(), *rounded, where);
    }
    Edit edit(state_, where);
    Named all = stages_named(edit, {made.begin(), made.end()}, "stage");
    list.commit(fmt::format("auto [{}] = s.stage({}, {}, {}{});", fmt::join(all.names, ", "), listed(shown),
                            memory_text(memory), under.names[0], rounded ? ", " + std::string(name_of(*rounded)) : ""),
                fmt::format("stages {} {} {} {} {}", tw::to_string(memory), under.numbers[0],
                            rounded ? name_of(*rounded) : "as_it_is", copies.size(), fmt::join(saved, " ")));
    return made;
}

void Schedule::mma(const std::vector<StageRef>& stages, MatrixUnit unit, std::source_location where) {
    user_check(!stages.empty(), where, "mma: no stages; name at least one");
    Named all;
    ListStep list(*this, where, [&](Edit& edit) { all = stages_named(edit, stages, "mma"); });
    for (size_t k = 0; k < stages.size(); ++k) {
        const StageRef& stage = stages[k];
        std::vector<Loop> loops = all_loops(stage, where);
        if (const int terms = only_terms(*state_, all.numbers[k], loops); terms >= 0) {  // all sums of a tile are kept
            const LoopRecord of_terms = state_->loops[terms];
            const auto [around, inside] =
                split(loops.back(), *as_constant(of_terms.extent), {"", of_terms.name}, where);
            order({around, loops.end()[-3], loops.end()[-2], inside}, where);
            loops = all_loops(stage, where);
        }
        user_check(loops.size() >= 3, where, "mma: a stage has {} loops; it takes three, m, n and k", loops.size());
        mma(stage, unit, {.m = loops.end()[-3], .n = loops.end()[-2], .k = loops.back()}, where);
    }
    list.commit(fmt::format("s.mma({}, {});", listed(all.names), tw::to_string(unit)),
                fmt::format("mma_all {} {}", tw::to_string(unit), fmt::join(all.numbers, " ")));
}

}  // namespace tw
