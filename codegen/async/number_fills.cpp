// Which stage and phase of a ring an iteration has: how many fills there have been.
#include <algorithm>

#include <fmt/format.h>

#include "codegen/access/access.h"
#include "codegen/async/iterations.h"
#include "codegen/async/mbarrier_rings.h"
#include "dsl/simplify.h"

namespace tw::codegen {

void MbarrierRings::make_numbers() {
    bool all_equal = true;
    for (const TileLoop& segment : segments_) {
        std::vector<TileLoop> nest = around_;
        nest.push_back(segment);
        all_equal = all_equal && equally_long(kernel_, nest);
    }
    for (size_t n = 0; n < numberings_.size(); ++n) {
        Numbering& numbering = numberings_[n];
        if (all_equal) {
            numbering.before = iterations_before(numbering);
            continue;
        }
        numbering.counters.push_back(counter(numbering, 0));
        for (const Ring& ring : rings_) {
            auto known = [&](const Counter& other) { return other.role == ring.role; };
            if (ring.numbering == n && std::ranges::none_of(numbering.counters, known))
                numbering.counters.push_back(counter(numbering, ring.role));
        }
    }
}

Expr MbarrierRings::extent_of(const Numbering& numbering, size_t end) const {
    Expr total = integer(0);
    const bool single = segments_.size() == 1;
    for (size_t s = 0; s < end; ++s) {
        Expr extent = cast_unchecked(Type::I64, loop(s).extent);
        if (numbering.in[s]) total = total + (single || prove(extent >= 0) == true ? extent : max(extent, integer(0)));
    }
    return simplify(total);
}

/// Iterations that these segments have made in earlier iterations of the loops around: stages and phases count on.
Expr MbarrierRings::iterations_before(const Numbering& numbering) const {
    Expr rounds = integer(0);
    for (const TileLoop& loop : around_) rounds = rounds * cast_unchecked(Type::I64, loop.extent) + loop.variable;
    return simplify(rounds * extent_of(numbering, segments_.size()));
}

Expr MbarrierRings::count(size_t numbering, size_t segment, const Expr& iteration, int role) const {
    const Numbering& of = numberings_[numbering];
    Expr before = of.before;
    for (const Counter& counter : of.counters)
        if (counter.role == role)
            before = cast_unchecked(Type::I64, make_expr(Type::I32, Load{counter.iterations, {}}));
    return simplify(before + extent_of(of, segment) + iteration);
}

Expr MbarrierRings::stage_in(const Ring& ring, size_t segment, const Expr& iteration, int role) const {
    return ring.resident ? integer(0) : simplify(count(ring.numbering, segment, iteration, role) % stages());
}

Expr MbarrierRings::stage_of(size_t segment, const Buffer& staged, const Expr& iteration) const {
    for (const Ring& ring : rings_)
        for (const std::vector<TileOp>& copies : ring.copies)
            for (const TileOp& copy : copies)
                if (staged_.at(copy.stores[0].buffer.get()) == staged) return stage_in(ring, segment, iteration);
    Expr number = numberings_.empty() || segments_.size() > 1 ? iteration : count(0, segment, iteration, 0);
    return simplify(number % require_constant(staged->shape[0]));
}

/// The parity of a barrier's phase that ends when the stage has been filled, or, one later, read.
Expr MbarrierRings::phase(const Ring& ring, size_t segment, const Expr& iteration, int later, int role) const {
    if (ring.resident) return integer(0);
    return simplify((count(ring.numbering, segment, iteration, role) / stages() + later) % 2);
}

MbarrierRings::Counter MbarrierRings::counter(const Numbering& numbering, int role) const {
    std::string name = loop_name() + "_count";
    if (&numbering != &numberings_[0]) name += fmt::format("_{}", &numbering - &numberings_[0] + 1);
    BufferNode node = *register_array(name + (role ? "_of_" + kernel_.roles[role].name : ""), Type::I32, {});
    node.below = 2 * stages();
    return {std::make_shared<const BufferNode>(std::move(node)), role};
}

TileOp MbarrierRings::set(const Counter& counter, const Expr& value) const {
    TileOp op{MapOp{}};
    op.role = counter.role;
    op.stores = {{counter.iterations, {}, cast_unchecked(Type::I32, value)}};
    return op;
}

std::vector<TileOp> MbarrierRings::counters() const {
    std::vector<TileOp> start;
    for (const Numbering& numbering : numberings_)
        for (const Counter& counter : numbering.counters) {
            Expr before = integer(0);  // those of the groups whose turn comes first
            for (int turn = 0; counter.role == 0 && turn + 1 < turns_of(kernel_); ++turn)
                before = before + select(kernel_.turn > turn, extent_in(numbering, integer(turn)), integer(0));
            start.push_back(set(counter, simplify(before % (2 * stages()))));
        }
    return start;
}

void MbarrierRings::count_on(TileBlock& block) const {
    for (size_t n = 0; n < numberings_.size(); ++n) {
        Expr here = max(extent_of(numberings_[n], segments_.size()), integer(0));
        for (const Counter& counter : numberings_[n].counters) {
            Expr now = count(n, 0, here, counter.role);
            for (int turn = 1; counter.role == 0 && turn < turns_of(kernel_); ++turn)
                now = now + extent_in(numberings_[n], kernel_.persistent->round + turn);
            block.stmts.push_back(make_tile(set(counter, simplify(now % (2 * stages())))));
        }
    }
}

Expr MbarrierRings::extent_in(const Numbering& numbering, const Expr& round) const {
    Expr tile = tile_of_round(kernel_, round);
    Substitution coordinates;
    for (const GridCoordinate& coordinate : kernel_.grid_coordinates)
        coordinates.emplace_back(coordinate.variable, tile / coordinate.stride % coordinate.extent);
    Expr extent = max(substitute(extent_of(numbering, segments_.size()), coordinates), integer(0));
    return select(tile >= 0 && tile < kernel_.persistent->tiles, extent, integer(0));
}

}  // namespace tw::codegen
