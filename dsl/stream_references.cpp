// References: what terms of a stream read in the place of reductions that still run.
#include <algorithm>

#include "dsl/stream.h"

namespace tw {

using State = Schedule::State;

std::string word_of(Reference::Kind kind) {
    switch (kind) {
        case Reference::Kind::Running: return "running";
        case Reference::Kind::Lazy: return "lazy";
        case Reference::Kind::Offset: return "offset";
        default: return "constant";
    }
}

bool is_relative(const State& state, int stage) {
    const Chain chain = chain_along(state, shared_loop(state, stage));
    const auto is_running = [&](int member) { return state.stages[member].reference.kind == Reference::Kind::Running; };
    if (!chain.has(stage) || std::ranges::all_of(chain.members, is_running)) return false;
    const StreamLink link = stream_link(state, stage, chain, state.step_where);
    return std::ranges::any_of(link.values, [&](const RunningValue& value) {
        const int producer = state.stage_of(value.now.as<Read>()->operation.get());
        return !is_running(producer) || is_relative(state, producer);
    });
}

bool keeps_reference(const State& state, int stage) {
    return is_read_running(state, stage) &&
           (state.stages[stage].reference.kind == Reference::Kind::Lazy || is_relative(state, stage));
}

bool is_free_of_corrections(const State& state, const StreamLink& link) {
    return std::ranges::all_of(link.values, [&](const RunningValue& value) {
        const int producer = state.stage_of(value.now.as<Read>()->operation.get());
        return state.stages[producer].reference.kind == Reference::Kind::Constant;
    });
}

namespace {

Expr to_calculate(const Expr& value) {
    return is_float(value.type()) && bytes_of(value.type()) < 4 ? cast_unchecked(f32, value) : value;
}

}  // namespace

Expr plus_offset(const Expr& value, double by) {
    const Expr wide = to_calculate(value);
    return is_float(value.type()) ? cast_unchecked(value.type(), wide + constant(wide.type(), by)) : value;
}

Expr differ(const Expr& a, const Expr& b) { return !(to_calculate(a) == to_calculate(b)); }

Expr is_within(const Expr& a, const Expr& b, double by) {
    if (!is_float(a.type())) return Expr(false);
    const Expr wide = to_calculate(a);
    return abs(wide - to_calculate(b)) <= constant(wide.type(), by);
}

}  // namespace tw
