// Stages of a ring that have been read are given back; turns of groups.
#include <algorithm>

#include "codegen/async/cluster.h"
#include "codegen/async/mbarrier_rings.h"
#include "dsl/simplify.h"

namespace tw::codegen {

/// Products of the iteration may still read it when the next one begins.
bool MbarrierRings::read_on(const Ring& ring, size_t segment) const {
    return ring.by_products && loop(segment).in_flight > 0;
}

bool MbarrierRings::runs_on() const {
    return segments_.size() == 1 && loop(0).in_flight > 0 && !around_.empty() && around_.back().in_flight > 0;
}

void MbarrierRings::release(size_t segment, TileBlock& block, const Expr& iteration) const {
    for (const Ring& ring : rings_)
        if (is_in(ring, segment) && read_on(ring, segment)) release(ring, segment, block, iteration);
}

void MbarrierRings::release(const Ring& ring, size_t segment, TileBlock& block, const Expr& iteration) const {
    if (iteration.same(loop(segment).variable)) return release_where(all_of({}), ring, segment, block, iteration);
    Expr was = iteration >= 0;
    if (runs_on()) was = around_.back().variable >= 1 || was;
    release_where(simplify(was), ring, segment, block, iteration);
}

void MbarrierRings::release_where(const Expr& was, const Ring& ring, size_t segment, TileBlock& block,
                                  const Expr& iteration) const {
    if (!ring.empty || is_constant(was, 0)) return;
    if (!ring.by_warpgroup) block.stmts.push_back(make_tile(call_op({FenceProxyAsync{}})));
    Expr own = kernel_.thread % 128;
    BlockGroup sharers(kernel_, ring.shared_along);
    ReadOperand barrier{{ring.empty, {stage_in(ring, segment, iteration)}}};
    if (sharers.blocks() == 1) {
        Expr one = ring.by_warpgroup ? own == 0 : all_of({});
        block.stmts.push_back(make_tile(call_op({MbarrierArrive{barrier}}, simplify(all_of({was, one})))));
    } else if (ring.by_warpgroup) {
        Expr one_each = simplify(all_of({was, own < sharers.blocks()}));
        block.stmts.push_back(make_tile(call_op({MbarrierArriveAt{barrier, sharers.rank_of(own)}}, one_each)));
    } else {
        Expr peer = index_variable("peer", 0, sharers.blocks() - 1);
        TileOp arrive = call_op({MbarrierArriveAt{barrier, sharers.rank_of(peer)}}, was);
        arrive.loops = {{peer, integer(sharers.blocks())}};
        block.stmts.push_back(make_tile(std::move(arrive)));
    }
}

void MbarrierRings::release_last(TileBlock& block, size_t segment) const {
    for (int last = loop(segment).in_flight; last > 0; --last)
        release(segment, block, simplify(cast_unchecked(Type::I64, loop(segment).extent) - last));
}

void MbarrierRings::release_last_around(TileBlock& block) const {
    const TileLoop& around = around_.back();
    const Expr rounds = cast_unchecked(Type::I64, around.extent), count = cast_unchecked(Type::I64, loop(0).extent);
    TileBlock last_ones;
    for (int last = loop(0).in_flight; last > 0; --last)
        for (const Ring& ring : rings_) {
            const bool counted = !numberings_[ring.numbering].counters.empty();  // on, over the whole loop
            if (is_in(ring, 0) && read_on(ring, 0))
                release_where(simplify(rounds >= 1), ring, 0, last_ones, counted ? integer(-last) : count - last);
        }
    for (const TileStmt& stmt : last_ones.stmts)
        block.stmts.push_back(map_ops(stmt, [&](const TileOp& op) {
            return map_exprs(op, [&](const Expr& e) {
                return simplify(substitute(e, {{around.variable, rounds - 1}}));
            });
        }));
}

// Groups that take turns go through the ring one behind another: a phase's parity tells two apart, not three. A turn is
// all that a round runs of the loop.

Expr MbarrierRings::in_first_of_round() const {
    std::vector<Expr> conditions;
    for (size_t l = 1; l < around_.size(); ++l) conditions.push_back(around_[l].variable == 0);
    return all_of(conditions);
}

Expr MbarrierRings::in_last_of_round() const {
    std::vector<Expr> conditions;
    for (size_t l = 1; l < around_.size(); ++l)
        conditions.push_back(around_[l].variable == cast_unchecked(Type::I64, around_[l].extent) - 1);
    return all_of(conditions);
}

void MbarrierRings::await_turn(TileBlock& block) const {
    if (!ring_done_) return;
    int turns = turns_of(kernel_);
    Expr last = kernel_.persistent->round - 1;
    MbarrierWait wait{{{ring_done_, {simplify(last % turns)}}}, simplify(last / turns % 2)};
    block.stmts.push_back(make_tile(call_op({wait}, simplify(all_of({last >= 0, in_first_of_round()})))));
}

TileStmt MbarrierRings::end_turn_where(const Expr& condition) const {
    MbarrierArrive arrive{{{ring_done_, {kernel_.turn}}}};
    return make_tile(call_op({arrive}, simplify(all_of({condition, in_last_of_round()}))));
}

void MbarrierRings::end_turn(TileBlock& block) const {
    if (ring_done_) block.stmts.push_back(end_turn_where(all_of({})));
}

TileStmt MbarrierRings::end_turn_in(const TileLoop& loop) const {
    return end_turn_where(loop.variable == cast_unchecked(Type::I64, loop.extent) - 1);
}

bool MbarrierRings::can_end_turn_early(const TileLoop& last) const {
    return ring_done_ && prove(cast_unchecked(Type::I64, last.extent) >= 1) == true &&
           std::ranges::all_of(rings_, [&](const Ring& ring) { return ring.resident || is_only(ring); });
}

}  // namespace tw::codegen
