#include "codegen/to_threads/fragment_tile.h"

#include <algorithm>

#include "codegen/access/conditions.h"
#include "dsl/simplify.h"

namespace tw::codegen {

Expr replaced(const Expr& e, const Substitution& values) { return simplify(substitute(e, values)); }

Access replaced(Access access, const Substitution& values) {
    for (Expr& index : access.indices) index = replaced(index, values);
    return access;
}

bool mentions(const Access& access, const Expr& variable) {
    return std::any_of(access.indices.begin(), access.indices.end(),
                       [&](const Expr& index) { return contains(index, variable); });
}

bool loads(const Expr& e, const Buffer& buffer) {
    bool found = false;
    visit(e, [&](const Expr& node) { found = found || (node.as<Load>() && node.as<Load>()->buffer == buffer); });
    return found;
}

bool loads(const Expr& e, Memory memory) {
    bool found = false;
    visit(e,
          [&](const Expr& node) { found = found || (node.as<Load>() && node.as<Load>()->buffer->memory == memory); });
    return found;
}

bool runs_in_whole_warps(const TileOp& op) {
    if (!op.lanes) return false;
    bool whole_warps = std::all_of(op.threads.begin(), op.threads.end(), [&](const ThreadCoordinate& digit) {
        return digit.variable.same(op.lanes->row) || digit.variable.same(op.lanes->column) ||
               digit.stride % lanes_of_warp == 0;
    });
    return whole_warps && std::none_of(op.loops.begin(), op.loops.end(), [&](const OpLoop& loop) {
               return loop.reduces || contains(loop.extent, op.lanes->row) || contains(loop.extent, op.lanes->column) ||
                      contains(loop.extent, op.lanes->thread);
           });
}

bool is_place_of_fragment(const TileOp& op, const Access& place) {
    return std::none_of(place.indices.begin(), place.indices.end(), [&](const Expr& index) {
        return contains(index, op.lanes->thread) || loads(index, Memory::Registers);
    });
}

bool same_in_warp(const TileOp& op, const Expr& condition) {
    const Expr& thread = op.lanes->thread;
    if (!contains(condition, thread)) return true;
    Expr warp = index_variable("warp", 0, {}), lane = index_variable("lane", 0, lanes_of_warp - 1);
    Expr split = replaced(condition, {{thread, warp * lanes_of_warp + lane}});
    return uniform_over(split, lane, lanes_of_warp).defined();
}

ThreadStmt computed(const std::vector<OpLoop>& loops, const Buffer& out, const Expr& value, int step) {
    Expr place = integer(0);
    for (const OpLoop& loop : loops) place = place * require_constant(loop.extent) + loop.variable;
    ThreadStmt compute = make_thread(ThreadStore{{out, {simplify(place)}}, value}, step);
    for (auto loop = loops.rbegin(); loop != loops.rend(); ++loop)
        compute = make_thread(ThreadLoop{loop->variable, loop->extent, true, compute}, step);
    return compute;
}

}  // namespace tw::codegen
