// Where the results of a stage live: in which loop, and in registers or shared memory.
#include <algorithm>
#include <functional>
#include <set>

#include "dsl/schedule_state.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {

using State = Schedule::State;

namespace {

bool all_readers_below(const State& state, int stage, int loop) {
    const StageDefinition& definition = state.stages[stage].definition;
    for (size_t s = 0; s < state.stages.size(); ++s) {
        if (state.stages[s].inlined) continue;
        for (const ReadSite& site : reads_of(state.stages[s].definition))
            if (site.read->operation == definition.operation &&
                !stands_below(state, static_cast<int>(s), site.in_update, loop))
                return false;
    }
    return true;
}

/// The outermost of the stage's own loops under which readers stand; -1 if some stand under none.
int own_loop_of_readers(const State& state, int stage) {
    int found = -1;
    for (size_t s = 0; s < state.stages.size(); ++s) {
        const StageRecord& reader = state.stages[s];
        if (reader.inlined || !reads_stage(reader.definition, state.stages[stage].definition)) continue;
        int loop = reader.attach;
        while (loop >= 0 && state.loops[loop].stage != stage) loop = state.owner(loop).attach;
        if (loop < 0) return -1;
        if (found < 0 || state.position(loop) < state.position(found)) found = loop;
    }
    return found;
}

}  // namespace

int storage_loop(const State& state, int stage) {
    if (state.is_result(stage) || target_of(state, stage) >= 0) return -1;
    const StageRecord& record = state.stages[stage];
    if (record.attach >= 0 && !record.after) return record.attach;
    int own = own_loop_of_readers(state, stage);
    if (own >= 0) return own;
    if (record.attach < 0) return -1;
    const std::vector<int> around = enclosing_loops(state, record.attach);  // outermost first
    auto innermost =
        std::find_if(around.rbegin(), around.rend(), [&](int loop) { return all_readers_below(state, stage, loop); });
    return innermost == around.rend() ? -1 : *innermost;
}

namespace {

/// Thread loops between the storage loop and the leaf that accesses the stage's elements.
std::vector<int> threads_below(const State& state, int stage, int storage) {
    int attach = stage;
    std::vector<int> path;
    while (attach >= 0) {
        const StageRecord& record = state.stages[attach];
        path.insert(path.end(), record.order.begin(), record.order.end());
        if (state.loops[storage].stage == attach || record.attach < 0) break;
        attach = state.loops[record.attach].stage;
    }
    std::vector<int> above = enclosing_loops(state, storage);
    std::erase_if(path, [&](int l) {
        return !is_thread(state.loops[l].level) || std::find(above.begin(), above.end(), l) != above.end();
    });
    return path;
}

/// Threads that share the terms of a reduction, and nothing else, all have its result.
bool all_threads_have(const State& state, int stage, const std::vector<int>& threads) {
    return !threads.empty() && std::all_of(threads.begin(), threads.end(), [&](int l) {
        return state.loops[l].stage == stage && state.loops[l].reduces && !state.stages[stage].scan;
    });
}

/// Whether loops are as long as the stage's elements say: each thread that runs one needs them.
bool decides_lengths(const State& state, int stage) {
    bool found = false;
    for (const StageRecord& other : state.stages)
        for (int id : other.order)
            visit(state.loops[id].extent, [&](const Expr& e) {
                const Read* read = e.as<Read>();
                found = found || (read && read->operation == state.stages[stage].definition.operation);
            });
    return found;
}

}  // namespace

Memory resolved_memory(const State& state, int stage) {
    int storage = storage_loop(state, stage);
    return storage < 0 ? Memory::Global : memory_inside(state, stage, storage);
}

Memory memory_inside(const State& state, int stage, int storage) {
    const StageRecord& record = state.stages[stage];
    if (record.memory != Memory::Auto && record.memory != Memory::Global) return record.memory;
    if (!updaters_of(state, stage).empty()) return Memory::Shared;  // by any thread
    if (decides_lengths(state, stage)) return Memory::Registers;
    std::vector<int> makers = threads_below(state, stage, storage);
    if (all_threads_have(state, stage, makers)) return Memory::Registers;
    if (!makers.empty()) return Memory::Shared;
    for (size_t s = 0; s < state.stages.size(); ++s)
        if (!state.stages[s].inlined && reads_stage(state.stages[s].definition, record.definition) &&
            !threads_below(state, static_cast<int>(s), storage).empty())
            return Memory::Shared;
    return Memory::Registers;
}

}  // namespace tw
