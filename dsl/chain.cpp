// Reductions over the same terms that need each other's results: what steps on them have in common.
#include <algorithm>
#include <functional>

#include "dsl/edit.h"
#include "dsl/stream.h"
#include "support/error.h"

namespace tw {

using State = Schedule::State;

std::string terms_text(const StageDefinition& reduction) {
    std::string text;
    for (const Expr& axis : reduction.reduce_axes)
        text += (text.empty() ? "" : " x ") + to_string(axis.as<Variable>()->extent);
    return text;
}

Chain chain_along(const State& state, int loop) {
    Chain chain{"stream", streamed_along(state, loop)};
    if (loop >= 0) chain.members.push_back(state.loops[loop].stage);
    return chain;
}

namespace {

/// What must hold of a reduction that is to share a loop.
void check_reduction(const State& state, int stage, const char* step, std::source_location where) {
    const StageRecord& record = state.stages[stage];
    const StageDefinition& definition = record.definition;
    const std::string call = fmt::format("{}(.., {}, ..)", step, definition.name);
    user_check(definition.reducer != nullptr, where,
               "{}: it reduces nothing; name reductions only, what stands between them comes along", call);
    user_check(definition.reducer->commutative, where,
               "{}: its reducer '{}' is not commutative, so its terms cannot be taken in another order", call,
               definition.reducer->name);
    user_check(!definition.target && updaters_of(state, stage).empty(), where,
               "{}: its elements are made by atomic updates", call);
    user_check(shared_loop(state, stage) < 0, where, "{}: it shares a loop already", call);
}

void check_alike(const State& state, int member, int owner, const char* step, std::source_location where) {
    const StageDefinition &one = definition_of(state, member), &other = definition_of(state, owner);
    bool alike = one.reduce_axes.size() == other.reduce_axes.size();
    for (size_t r = 0; alike && r < one.reduce_axes.size(); ++r) {
        const Expr &own = one.reduce_axes[r].as<Variable>()->extent, &its = other.reduce_axes[r].as<Variable>()->extent;
        // What elements decide is compared where the loops stand.
        alike = depends_on_element(own) ? depends_on_element(its) : equal(own, its);
    }
    user_check(alike, where, "{}: '{}' reduces {} terms, '{}' {}; only reductions over the same terms share a loop",
               step, one.name, terms_text(one), other.name, terms_text(other));
    const StageRecord& record = state.stages[member];
    user_check(record.attach < 0 && !record.mma, where, "{}(.., {}, ..): it has a place already; do this step before",
               step, one.name);
    for (int id : record.order)
        user_check(
            record.relations.empty() && state.loops[id].level == Level::Serial && state.loops[id].is_whole() &&
                state.loops[id].stages == 1 && state.loops[id].delay.iterations == 0 && attached_to(state, id).empty(),
            where,
            "{}(.., {}, ..): its loops were split, bound, cut, pipelined or have stages under them; it gets fresh "
            "loops, so do this step before those",
            step, one.name);
}

}  // namespace

void check_chain(const State& state, const Chain& chain, std::source_location where) {
    const int owner = chain.members.back();
    check_reduction(state, owner, chain.step, where);
    for (int member : chain.members) {
        user_check(std::ranges::count(chain.members, member) == 1, where, "{}: '{}' is named twice", chain.step,
                   stage_text(state, member));
        if (member == owner) continue;
        check_reduction(state, member, chain.step, where);
        check_alike(state, member, owner, chain.step, where);
        user_check(!depends_on(state, member, owner), where, "{}: '{}' reads '{}', which is named last", chain.step,
                   stage_text(state, member), stage_text(state, owner));
    }
}

std::vector<int> stages_between(const State& state, const Chain& chain) {
    auto depends = [&](int stage) {
        return std::ranges::any_of(chain.members, [&](int member) { return depends_on(state, stage, member); });
    };
    std::vector<int> found;
    std::function<void(const std::vector<Expr>&)> follow = [&](const std::vector<Expr>& exprs) {
        for (int producer : producers_of(state, exprs)) {
            const StageDefinition& between = definition_of(state, producer);
            if (chain.has(producer) || between.reducer || !depends(producer)) continue;
            if (std::ranges::find(found, producer) == found.end()) found.push_back(producer);
            follow(between.finish);
        }
    };
    for (int member : chain.members) follow(definition_of(state, member).update);
    return found;
}

}  // namespace tw
