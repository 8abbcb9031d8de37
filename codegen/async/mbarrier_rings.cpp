#include "codegen/async/mbarrier_rings.h"

#include <algorithm>

#include "codegen/access/access.h"
#include "codegen/async/cluster.h"
#include "codegen/async/iterations.h"
#include "codegen/async/choose_tma.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

/// All that reads them are instructions of whole warpgroups.
bool read_as_matrices(const std::vector<TileOp>& copies, const std::vector<TileStmt>& readers) {
    bool all = true;
    for (const TileOp& copy : copies)
        for (const TileStmt& stmt : readers)
            visit_ops(stmt, [&](const TileOp& op) {
                for (const Buffer& buffer : loads_of(op)) all = all && buffer != copy.stores[0].buffer;
            });
    return all;
}

/// In the stage's barrier.
ReadOperand barrier_of(const Buffer& barriers, const Expr& stage) { return {{barriers, {stage}}}; }

/// By all threads of the role that computes.
TileStmt by_all(Instruction instruction) { return make_tile(call_op({std::move(instruction)})); }

/// What threads have read may be overwritten by boxes, which come another way: no barrier alone keeps them behind.
TileStmt fence() { return by_all(FenceProxyAsync{}); }

}  // namespace

/// Iterations that this loop has made in earlier iterations of the loops around it: stages and phases count on.
Expr MbarrierRings::iterations_before() const {
    Expr rounds = integer(0);
    for (const TileLoop& loop : around_) rounds = rounds * cast_unchecked(Type::I64, loop.extent) + loop.variable;
    return simplify(rounds * cast_unchecked(Type::I64, loop_.extent));
}

Expr MbarrierRings::count(const Expr& iteration) const { return count(iteration, 0); }

Expr MbarrierRings::count(const Expr& iteration, int role) const {
    Expr before = before_;
    for (const Counter& counter : counters_)
        if (counter.role == role)
            before = cast_unchecked(Type::I64, make_expr(Type::I32, Load{counter.iterations, {}}));
    return simplify(before + iteration);
}

Expr MbarrierRings::stage_of(const Expr& iteration, int role) const {
    return simplify(count(iteration, role) % loop_.stages);
}

/// The parity of a barrier's phase that ends when the stage has been filled, or, one later, read.
Expr MbarrierRings::phase(const Expr& iteration, int later, int role) const {
    return simplify((count(iteration, role) / loop_.stages + later) % 2);
}

MbarrierRings::Counter MbarrierRings::counter(int role) const {
    const std::string& loop = loop_.variable.as<Variable>()->name;
    BufferNode node =
        *register_array(loop + (role ? "_count_of_" + kernel_.roles[role].name : "_count"), Type::I32, {});
    node.below = 2 * loop_.stages;
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
    for (const Counter& counter : counters_) {
        Expr before = integer(0);  // those of the groups whose turn comes first
        for (int turn = 0; counter.role == 0 && turn + 1 < turns_of(kernel_); ++turn)
            before = before + select(kernel_.turn > turn, extent_in(integer(turn)), integer(0));
        start.push_back(set(counter, simplify(before % (2 * loop_.stages))));
    }
    return start;
}

void MbarrierRings::count_on(TileBlock& block) const {
    Expr here = max(cast_unchecked(Type::I64, loop_.extent), integer(0));
    for (const Counter& counter : counters_) {
        Expr now = count(here, counter.role);
        for (int turn = 1; counter.role == 0 && turn < turns_of(kernel_); ++turn)
            now = now + extent_in(kernel_.persistent->round + turn);
        block.stmts.push_back(make_tile(set(counter, simplify(now % (2 * loop_.stages)))));
    }
}

Expr MbarrierRings::extent_in(const Expr& round) const {
    Expr tile = tile_of_round(kernel_, round);
    Substitution coordinates;
    for (const GridCoordinate& coordinate : kernel_.grid_coordinates)
        coordinates.emplace_back(coordinate.variable, tile / coordinate.stride % coordinate.extent);
    Expr extent = max(substitute(cast_unchecked(Type::I64, loop_.extent), coordinates), integer(0));
    return select(tile >= 0 && tile < kernel_.persistent->tiles, extent, integer(0));
}

Buffer MbarrierRings::barriers(const std::string& what, int64_t arrivals, int64_t count) {
    Buffer barriers = std::make_shared<const BufferNode>(BufferNode{.name = loop_.variable.as<Variable>()->name + what,
                                                                    .type = Type::I64,
                                                                    .memory = Memory::Shared,
                                                                    .shape = {integer(count)},
                                                                    .strides = {},
                                                                    .is_barrier = true});
    kernel_.shared.push_back({barriers, row_major({count}), true});
    kernel_.barriers.push_back({barriers, arrivals});
    return barriers;
}

MbarrierRings::Ring MbarrierRings::make_ring(int role, const std::vector<TileStmt>& readers) {
    Ring ring;
    ring.full = barriers("_full", 1, loop_.stages);
    ring.by_warpgroup = read_as_matrices(boxes_[role].copies, readers);
    if (role == 0) return ring;
    for (const ClusterCoordinate& coordinate : kernel_.cluster_coordinates) {
        auto shared = [&](const TileOp& copy) {
            return std::ranges::any_of(copy.as<TmaCopyOp>()->shared_along,
                                       [&](const Expr& v) { return v.same(coordinate.variable); });
        };
        if (std::ranges::any_of(boxes_[role].copies, shared)) ring.shared_along.push_back(coordinate.variable);
    }
    int64_t readers_done = ring.by_warpgroup ? kernel_.threads / 128 : kernel_.threads;
    int blocks = BlockGroup(kernel_, ring.shared_along).blocks();
    ring.empty = barriers("_empty", readers_done * blocks, loop_.stages);
    // One for all rings of the loop: as the first one's readers are done. Without an iteration, in which a warpgroup
    // meets, each thread tells for itself that it has seen that its turn has come.
    if (turns_of(kernel_) > 1 && !ring_done_) {
        done_by_warpgroup_ = ring.by_warpgroup && prove(loop_.extent >= 1) == true;
        ring_done_ = barriers("_done", done_by_warpgroup_ ? readers_done : kernel_.threads, turns_of(kernel_));
    }
    return ring;
}

void MbarrierRings::make_barriers(const std::vector<TileStmt>& readers) {
    if (empty()) return;
    std::vector<TileLoop> nest = around_;
    nest.push_back(loop_);
    if (equally_long(kernel_, nest)) {
        before_ = iterations_before();
    } else {
        counters_.push_back(counter(0));
        for (const auto& [role, boxes] : boxes_)
            if (role > 0) counters_.push_back(counter(role));
    }
    for (auto& [role, boxes] : boxes_) boxes.ring = make_ring(role, readers);
}

/// By one thread: the only one of a role that copies.
void MbarrierRings::start(TileBlock& block, int role, const Boxes& boxes, const Expr& iteration) const {
    int64_t bytes = 0;
    for (const TileOp& copy : boxes.copies) bytes += tma_bytes(copy);
    Expr active = role > 0 ? all_of({}) : simplify(all_of({iteration_exists(loop_, iteration), kernel_.thread == 0}));
    Expr stage = stage_of(iteration, role);
    std::vector<Instruction> request{MbarrierExpectTx{barrier_of(boxes.ring.full, stage), integer(bytes)}};
    std::vector<TileOp> filled;
    for (const TileOp& copy : boxes.copies) {
        TileOp moved = map_exprs(copy, [&](const Expr& e) { return in_iteration(loop_, e, iteration); });
        TmaRequest one = tma_request(kernel_, moved, staged_.at(copy.stores[0].buffer.get()), boxes.ring.full, stage);
        request.insert(request.end(), one.instructions.begin(), one.instructions.end());
        one.access.active = active;
        one.access.role = role;
        filled.push_back(one.access);
    }
    TileOp call = call_op(std::move(request), active, role);
    call.name = boxes.copies[0].name;
    call.step = boxes.copies[0].step;
    block.stmts.push_back(make_tile(std::move(call)));
    for (TileOp& access : filled) block.stmts.push_back(make_tile(std::move(access)));
}

void MbarrierRings::start_own(TileBlock& block, const Expr& iteration) const {
    if (auto own = boxes_.find(0); own != boxes_.end()) start(block, 0, own->second, iteration);
}

void MbarrierRings::fence_readers(TileBlock& block) const {
    auto own = boxes_.find(0);
    if (own != boxes_.end() && !own->second.ring.by_warpgroup) block.stmts.push_back(fence());
}

/// A thread that reads nothing of a stage waits for it, too, and must have done so before the stage is filled again: it
/// would miss a phase of the barrier. (Of a warpgroup, all threads meet in the instructions that read.)
TileOp MbarrierRings::seen(const TileOp& copy) const {
    const Buffer& staged = staged_.at(copy.stores[0].buffer.get());
    std::vector<Expr> first(staged->shape.size(), integer(0));
    first[0] = stage_of(loop_.variable);
    TileOp access{AccessOp{{staged, first}}, copy.name};
    access.step = copy.step;
    return access;
}

void MbarrierRings::await(TileBlock& block) const {
    for (const auto& [role, boxes] : boxes_)
        block.stmts.push_back(
            by_all(MbarrierWait{barrier_of(boxes.ring.full, stage_of(loop_.variable)), phase(loop_.variable, 0)}));
    auto own = boxes_.find(0);
    if (own == boxes_.end() || own->second.ring.by_warpgroup) return;
    for (const TileOp& copy : own->second.copies) block.stmts.push_back(make_tile(seen(copy)));
}

void MbarrierRings::release(TileBlock& block, const Expr& iteration) const {
    for (const auto& [role, boxes] : boxes_) {
        if (!boxes.ring.empty) continue;
        Expr was = iteration.same(loop_.variable) ? all_of({}) : simplify(iteration >= 0);
        if (is_constant(was, 0)) continue;
        if (!boxes.ring.by_warpgroup) block.stmts.push_back(fence());
        Expr own = kernel_.thread % 128;
        BlockGroup sharers(kernel_, boxes.ring.shared_along);
        ReadOperand barrier = barrier_of(boxes.ring.empty, stage_of(iteration));
        if (sharers.blocks() == 1) {
            Expr one = boxes.ring.by_warpgroup ? own == 0 : all_of({});
            block.stmts.push_back(make_tile(call_op({MbarrierArrive{barrier}}, simplify(all_of({was, one})))));
        } else if (boxes.ring.by_warpgroup) {
            Expr one_each = simplify(all_of({was, own < sharers.blocks()}));
            block.stmts.push_back(make_tile(call_op({MbarrierArriveAt{barrier, sharers.rank_of(own)}}, one_each)));
        } else {
            Expr peer = index_variable("peer", 0, sharers.blocks() - 1);
            TileOp arrive = call_op({MbarrierArriveAt{barrier, sharers.rank_of(peer)}}, was);
            arrive.loops = {{peer, integer(sharers.blocks())}};
            block.stmts.push_back(make_tile(std::move(arrive)));
        }
    }
}

/// This role's boxes of the first iterations.
void MbarrierRings::start_first(TileBlock& block) const {
    auto own = boxes_.find(0);
    if (own == boxes_.end()) return;
    Expr ahead = index_variable("ahead", 0, std::max(loop_.stages - 2, 0));
    TileBlock body;
    start(body, 0, own->second, loop_.stages > 2 ? ahead : integer(0));
    block.stmts.push_back(loop_.stages > 2 ? make_tile(TileLoop{ahead, integer(loop_.stages - 1), false, false,
                                                                make_tile(std::move(body))})
                                           : make_tile(std::move(body)));
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
    MbarrierWait wait{barrier_of(ring_done_, simplify(last % turns)), simplify(last / turns % 2)};
    block.stmts.push_back(make_tile(call_op({wait}, simplify(all_of({last >= 0, in_first_of_round()})))));
}

void MbarrierRings::end_turn(TileBlock& block) const {
    if (!ring_done_) return;
    Expr one = done_by_warpgroup_ ? kernel_.thread % 128 == 0 : all_of({});
    MbarrierArrive arrive{barrier_of(ring_done_, kernel_.turn)};
    block.stmts.push_back(make_tile(call_op({arrive}, simplify(all_of({in_last_of_round(), one})))));
}

/// Whether the role runs a part of these statements, which it then goes through as the one that computes does.
bool MbarrierRings::works_in(const std::vector<TileStmt>& body, int role) {
    bool found = false;
    for (const TileStmt& stmt : body) visit_ops(stmt, [&](const TileOp& op) { found = found || op.role == role; });
    return found;
}

/// As soon as the iteration's stage is empty.
void MbarrierRings::refill(TileBlock& block, int role, const Boxes& boxes, const Expr& iteration) const {
    MbarrierWait wait{barrier_of(boxes.ring.empty, stage_of(iteration, role)), phase(iteration, 1, role)};
    block.stmts.push_back(make_tile(call_op({wait}, all_of({}), role)));
    start(block, role, boxes, iteration);
}

void MbarrierRings::run_others(TileBlock& block, const std::vector<TileStmt>& body) const {
    for (const auto& [role, boxes] : boxes_) {
        if (role == 0 || works_in(body, role)) continue;
        Variable own = *loop_.variable.as<Variable>();
        Expr iteration = make_expr(loop_.variable.type(), own);
        TileBlock refills;
        refill(refills, role, boxes, iteration);
        TileLoop loop{iteration, loop_.extent, false, loop_.reduces, make_tile(std::move(refills))};
        loop.rolled = true;
        block.stmts.push_back(make_tile(std::move(loop)));
    }
}

void MbarrierRings::start_others(TileBlock& block, const std::vector<TileStmt>& body) const {
    for (const auto& [role, boxes] : boxes_)
        if (role > 0 && works_in(body, role)) refill(block, role, boxes, loop_.variable);
}

}  // namespace tw::codegen
