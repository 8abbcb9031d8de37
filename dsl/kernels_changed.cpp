// Which kernels of a schedule a step has changed: in all others, stages compute what they did.
#include <algorithm>

#include "dsl/remember_regions.h"

namespace tw {
namespace {

using State = Schedule::State;

bool are_same(const std::vector<Expr>& a, const std::vector<Expr>& b) {
    return std::ranges::equal(a, b, [](const Expr& x, const Expr& y) { return x.same(y); });
}

bool is_as_before(const StageDefinition& a, const StageDefinition& b) {
    return a.operation == b.operation && a.target == b.target && a.declared == b.declared && a.reducer == b.reducer &&
           are_same(a.axes, b.axes) && are_same(a.reduce_axes, b.reduce_axes) && are_same(a.update, b.update) &&
           are_same(a.finish, b.finish) && are_same(a.terms_where, b.terms_where) &&
           are_same(a.reduce_extents, b.reduce_extents) && are_same(a.place, b.place);
}

bool is_as_before(const Relation& a, const Relation& b) {
    return a.kind == b.kind && a.whole == b.whole && a.outer == b.outer && a.inner == b.inner && a.masked == b.masked &&
           a.size.same(b.size);
}

/// Streams and scans go by more than is compared here.
bool is_as_before(const StageRecord& a, const StageRecord& b) {
    return a.streams < 0 && b.streams < 0 && !a.scan && !b.scan && a.is_copy == b.is_copy && a.attach == b.attach &&
           a.after == b.after && a.inlined == b.inlined && a.memory == b.memory && a.via.copy == b.via.copy &&
           a.mma.has_value() == b.mma.has_value() && a.rounded == b.rounded && a.roots == b.roots &&
           a.order == b.order &&
           std::ranges::equal(a.relations, b.relations,
                              [](const Relation& x, const Relation& y) { return is_as_before(x, y); }) &&
           is_as_before(a.definition, b.definition);
}

bool is_as_before(const LoopRecord& a, const LoopRecord& b) {
    return a.variable.same(b.variable) && a.extent.same(b.extent) && a.stage == b.stage && a.level == b.level &&
           a.delay.iterations == b.delay.iterations && a.delay.stage == b.delay.stage && are_same(a.cuts, b.cuts) &&
           a.kept.first.same(b.kept.first) && a.kept.behind.same(b.kept.behind) && a.reversed == b.reversed &&
           a.dead_step == b.dead_step;
}

}  // namespace

std::set<int> kernels_changed(const State& before, const State& now) {
    std::set<int> stages;
    const bool has_other_results = before.result != now.result;
    for (size_t s = 0; s < now.stages.size(); ++s)
        if (has_other_results || s >= before.stages.size() || !is_as_before(before.stages[s], now.stages[s]))
            stages.insert(static_cast<int>(s));
    for (size_t l = 0; l < now.loops.size(); ++l) {
        if (l < before.loops.size() && is_as_before(before.loops[l], now.loops[l])) continue;
        stages.insert(now.loops[l].stage);
        if (l < before.loops.size()) stages.insert(before.loops[l].stage);
    }
    std::set<int> kernels;
    for (const int stage : stages) {
        if (stage < 0) continue;
        kernels.insert(now.kernel_of(stage));
        if (stage < static_cast<int>(before.stages.size())) kernels.insert(now.kernel_of(before.kernel_of(stage)));
    }
    return kernels;
}

}  // namespace tw
