#include "codegen/async/mbarrier_rings.h"

#include <algorithm>
#include <functional>
#include <set>

#include <fmt/format.h>

#include "codegen/access/access.h"
#include "codegen/async/choose_tma.h"
#include "codegen/async/cluster.h"
#include "codegen/async/iterations.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

/// All that reads them are instructions of whole warpgroups.
bool read_as_matrices(const std::vector<std::vector<TileOp>>& copies,
                      const std::vector<std::vector<TileStmt>>& readers) {
    bool all = true;
    for (const std::vector<TileOp>& segment : copies)
        for (const TileOp& copy : segment)
            for (const std::vector<TileStmt>& stmts : readers)
                for (const TileStmt& stmt : stmts)
                    visit_ops(stmt, [&](const TileOp& op) {
                        for (const Buffer& buffer : loads_of(op)) all = all && buffer != copy.stores[0].buffer;
                    });
    return all;
}

bool touches(const TileStmt& stmt, const std::function<bool(const Buffer&)>& among) {
    bool found = false;
    visit_ops(stmt, [&](const TileOp& op) {
        visit_places(op, [&](const Buffer& buffer) { found = found || among(buffer); });
        for (const Buffer& buffer : loads_of(op)) found = found || among(buffer);
    });
    return found;
}

/// The stages of the schedule whose matrix products read the buffer.
std::set<int> products_of(const Buffer& buffer, const std::vector<std::vector<TileStmt>>& readers) {
    std::set<int> found;
    for (const std::vector<TileStmt>& segment : readers)
        for (const TileStmt& stmt : segment)
            visit_ops(stmt, [&](const TileOp& op) {
                if (!lone_instruction<Wgmma>(op)) return;
                visit_places(op, [&](const Buffer& read) {
                    if (read == buffer) found.insert(op.stage);
                });
            });
    return found;
}

/// In the stage's barrier.
ReadOperand barrier_of(const Buffer& barriers, const Expr& stage) { return {{barriers, {stage}}}; }

/// By all threads of the role that computes.
TileStmt by_all(Instruction instruction) { return make_tile(call_op({std::move(instruction)})); }

/// What threads have read may be overwritten by boxes, which come another way: no barrier alone keeps them behind.
TileStmt fence() { return by_all(FenceProxyAsync{}); }

}  // namespace

bool MbarrierRings::empty() const {
    return std::ranges::all_of(copies_, [](const std::vector<TileOp>& copies) { return copies.empty(); });
}

bool MbarrierRings::fills_itself() const {
    return std::ranges::any_of(copies_, [](const std::vector<TileOp>& copies) {
        return std::ranges::any_of(copies, [](const TileOp& copy) { return copy.role == 0; });
    });
}

std::string MbarrierRings::loop_name() const { return segments_[0].variable.as<Variable>()->name; }

// ---- which rings there are ------------------------------------------------------------------------------------------

size_t MbarrierRings::numbering_of(const std::vector<bool>& in) {
    auto found = std::ranges::find_if(numberings_, [&](const Numbering& one) { return one.in == in; });
    if (found != numberings_.end()) return static_cast<size_t>(found - numberings_.begin());
    numberings_.push_back({in});
    return numberings_.size() - 1;
}

void MbarrierRings::add_ring(int role, const std::vector<bool>& in, const std::vector<Buffer>& buffers) {
    Ring ring{role, numbering_of(in), std::vector<std::vector<TileOp>>(segments_.size())};
    for (size_t s = 0; s < segments_.size(); ++s)
        for (const TileOp& copy : copies_[s])
            if (copy.role == role && std::ranges::find(buffers, copy.stores[0].buffer) != buffers.end())
                ring.copies[s].push_back(copy);
    rings_.push_back(std::move(ring));
}

/// Copies of a role that different products read are apart, and those that are made in different segments.
void MbarrierRings::sort_copies(const std::vector<std::vector<TileStmt>>& readers) {
    struct Kind {
        int role;
        std::vector<bool> in;
        std::set<int> products;
        std::vector<Buffer> buffers;
        bool resident;
    };
    std::vector<Kind> kinds;
    for (size_t s = 0; s < segments_.size(); ++s)
        for (const TileOp& copy : copies_[s]) {
            const Buffer& buffer = copy.stores[0].buffer;
            auto fills = [&](const TileOp& other) { return other.stores[0].buffer == buffer; };
            Kind kind{copy.role, {}, {}, {buffer}, is_resident(kernel_, loop(s), copy)};
            if (copy.role > 0) kind.products = products_of(buffer, readers);
            for (const std::vector<TileOp>& copies : copies_) kind.in.push_back(std::ranges::any_of(copies, fills));
            auto same = std::ranges::find_if(kinds, [&](const Kind& other) {
                return other.role == kind.role && other.in == kind.in && other.products == kind.products &&
                       other.resident == kind.resident;
            });
            if (same == kinds.end())
                kinds.push_back(std::move(kind));
            else if (std::ranges::find(same->buffers, buffer) == same->buffers.end())
                same->buffers.push_back(buffer);
        }
    std::ranges::stable_sort(kinds, {}, &Kind::role);
    // What threads read of the same segments comes with the first product's.
    for (size_t k = 0; k < kinds.size(); ++k) {
        auto joined = std::ranges::find_if(kinds, [&](const Kind& other) {
            return &other != &kinds[k] && other.role == kinds[k].role && other.in == kinds[k].in &&
                   other.resident == kinds[k].resident;
        });
        if (!kinds[k].products.empty() || joined == kinds.end()) continue;
        joined->buffers.insert(joined->buffers.end(), kinds[k].buffers.begin(), kinds[k].buffers.end());
        kinds.erase(kinds.begin() + static_cast<std::ptrdiff_t>(k--));
    }
    for (const Kind& kind : kinds) {
        add_ring(kind.role, kind.in, kind.buffers);
        rings_.back().resident = kind.resident;
    }
}

void MbarrierRings::make_rings(const std::vector<std::vector<TileStmt>>& readers) {
    if (empty()) return;
    sort_copies(readers);
    make_numbers();
    for (Ring& ring : rings_) {
        auto same_role = [&](const Ring& other) { return other.role == ring.role; };
        make_barriers(ring, readers, std::ranges::count_if(rings_, same_role) == 1);
    }
}

Buffer MbarrierRings::barriers(const std::string& name, int64_t arrivals, int64_t count) {
    Buffer barriers = std::make_shared<const BufferNode>(BufferNode{.name = name,
                                                                    .type = Type::I64,
                                                                    .memory = Memory::Shared,
                                                                    .shape = {integer(count)},
                                                                    .strides = {},
                                                                    .is_barrier = true});
    kernel_.shared.push_back({barriers, row_major({count}), true});
    kernel_.barriers.push_back({barriers, arrivals});
    return barriers;
}

/// `only`: of its role. Others are called after what they bring first.
void MbarrierRings::make_barriers(Ring& ring, const std::vector<std::vector<TileStmt>>& readers, bool only) {
    auto first = std::ranges::find_if(ring.copies, [](const auto& copies) { return !copies.empty(); });
    const bool by_copy = !only || segments_[0].is_block;
    const std::string name = by_copy ? (*first)[0].stores[0].buffer->name : loop_name();
    ring.full = barriers(name + "_full", 1, ring.resident ? 1 : stages());
    ring.by_warpgroup = read_as_matrices(ring.copies, readers);
    for (const std::vector<TileOp>& copies : ring.copies)
        for (const TileOp& copy : copies) ring.by_products |= !products_of(copy.stores[0].buffer, readers).empty();
    if (ring.role == 0 || ring.resident) return;
    for (const ClusterCoordinate& coordinate : kernel_.cluster_coordinates) {
        auto shared = [&](const TileOp& copy) {
            return std::ranges::any_of(copy.as<TmaCopyOp>()->shared_along,
                                       [&](const Expr& v) { return v.same(coordinate.variable); });
        };
        if (std::ranges::any_of(ring.copies, [&](const auto& copies) { return std::ranges::any_of(copies, shared); }))
            ring.shared_along.push_back(coordinate.variable);
    }
    const bool once = segments_.size() == 1 && around_.empty() && is_constant(segments_[0].extent, 1);
    if (once && segments_[0].is_block) return;
    int64_t readers_done = ring.by_warpgroup ? kernel_.threads / 128 : kernel_.threads;
    int blocks = BlockGroup(kernel_, ring.shared_along).blocks();
    ring.empty = barriers(name + "_empty", readers_done * blocks, stages());
    // One for all rings of the loop. Each thread tells for itself that it has seen that its turn has come: one that is
    // late would miss a phase, were it told for by another.
    if (turns_of(kernel_) > 1 && !ring_done_)
        ring_done_ = barriers(loop_name() + "_done", kernel_.threads, turns_of(kernel_));
}

// ---- the role that computes -----------------------------------------------------------------------------------------

/// By one thread: the only one of a role that copies.
void MbarrierRings::start(TileBlock& block, const Ring& ring, size_t segment, const Expr& iteration) const {
    const std::vector<TileOp>& copies = ring.copies[segment];
    int64_t bytes = 0;
    for (const TileOp& copy : copies) bytes += tma_bytes(copy);
    Expr active = ring.role > 0 ? all_of({})
                                : simplify(all_of({iteration_exists(loop(segment), iteration), kernel_.thread == 0}));
    if (ring.resident) active = in_first_rounds(1);
    Expr stage = stage_in(ring, segment, iteration, ring.role);
    std::vector<Instruction> request{MbarrierExpectTx{barrier_of(ring.full, stage), integer(bytes)}};
    std::vector<TileOp> filled;
    for (const TileOp& copy : copies) {
        TileOp moved = map_exprs(copy, [&](const Expr& e) { return in_iteration(loop(segment), e, iteration); });
        TmaRequest one = tma_request(kernel_, moved, staged_.at(copy.stores[0].buffer.get()), ring.full, stage);
        request.insert(request.end(), one.instructions.begin(), one.instructions.end());
        one.access.active = active;
        one.access.role = ring.role;
        filled.push_back(one.access);
    }
    TileOp call = call_op(std::move(request), active, ring.role);
    call.name = copies[0].name;
    call.step = copies[0].step;
    // In front: from there on, others must have read what was there.
    for (TileOp& access : filled) block.stmts.push_back(make_tile(std::move(access)));
    block.stmts.push_back(make_tile(std::move(call)));
}

void MbarrierRings::start_own(TileBlock& block, const Expr& iteration) const {
    for (const Ring& ring : rings_)
        if (ring.role == 0) start(block, ring, 0, iteration);
}

/// A thread that reads nothing of a stage waits for it, too, and must have done so before the stage is filled again: it
/// would miss a phase of the barrier. (Of a warpgroup, all threads meet in the instructions that read.)
TileOp MbarrierRings::seen(size_t segment, const TileOp& copy) const {
    const Buffer& staged = staged_.at(copy.stores[0].buffer.get());
    std::vector<Expr> first(staged->shape.size(), integer(0));
    first[0] = stage_of(segment, staged, loop(segment).variable);
    TileOp access{AccessOp{{staged, first}}, copy.name};
    access.step = copy.step;
    return access;
}

void MbarrierRings::await(const Ring& ring, size_t segment, TileBlock& block) const {
    const Expr& iteration = loop(segment).variable;
    MbarrierWait wait{barrier_of(ring.full, stage_in(ring, segment, iteration)), phase(ring, segment, iteration, 0)};
    block.stmts.push_back(make_tile(call_op({wait}, ring.resident ? in_first_rounds(turns_of(kernel_)) : all_of({}))));
}

/// Of the loop over rounds, what is filled once has come then: each group has had its first.
Expr MbarrierRings::in_first_rounds(int64_t count) const {
    const TileLoop& rounds = loop(0);
    return prove(rounds.extent <= count) == true ? all_of({}) : simplify(rounds.variable < count);
}

/// Awaited in front of all of an iteration: the only ring of its role, and one that other loops do not stand beside.
bool MbarrierRings::is_only(const Ring& ring) const {
    return !segments_[0].is_block &&
           std::ranges::none_of(rings_, [&](const Ring& other) { return &other != &ring && other.role == ring.role; });
}

/// Products of a loop in the body may read it on behind that loop, until what waits for them.
bool MbarrierRings::stays_to_end(const Ring& ring) const { return ring.by_products && is_only(ring); }

void MbarrierRings::await(size_t segment, TileBlock& block) const {
    for (const Ring& ring : rings_)
        if (is_only(ring) && is_in(ring, segment)) await(ring, segment, block);
    for (const Ring& ring : rings_) {
        if (ring.role > 0 || ring.by_warpgroup) continue;
        for (const TileOp& copy : ring.copies[segment]) block.stmts.push_back(make_tile(seen(segment, copy)));
    }
}

/// All of them, if none does.
MbarrierRings::Readers MbarrierRings::readers_of(const Ring& ring, size_t segment,
                                                 const std::vector<TileStmt>& stmts) const {
    auto filled = [&](const Buffer& buffer) {
        return std::ranges::any_of(ring.copies[segment],
                                   [&](const TileOp& copy) { return copy.stores[0].buffer == buffer; });
    };
    std::vector<size_t> found;
    for (size_t n = 0; n < stmts.size(); ++n)
        if (touches(stmts[n], filled)) found.push_back(n);
    if (found.empty()) return {0, stmts.empty() ? 0 : stmts.size() - 1};
    return {found.front(), found.back()};
}

/// Of a loop of products the wait for them, if that stands behind it; else the statement itself.
size_t MbarrierRings::behind_products(const std::vector<TileStmt>& stmts, size_t last) {
    if (last >= stmts.size() || !stmts[last].as<TileLoop>()) return last;
    for (size_t n = last + 1; n < stmts.size(); ++n) {
        const TileOp* op = stmts[n].as<TileOp>();
        if (op && lone_instruction<WgmmaWait>(*op)) return n;
    }
    return last;
}

void MbarrierRings::run_readers(size_t segment, TileBlock& block, const std::vector<TileStmt>& stmts,
                                const std::function<TileStmt(const TileStmt&)>& staged) const {
    std::vector<Readers> readers;
    for (const Ring& ring : rings_) readers.push_back(readers_of(ring, segment, stmts));
    for (size_t r = 0; r < rings_.size(); ++r)
        if (rings_[r].by_products) readers[r].last = behind_products(stmts, readers[r].last);
    for (size_t n = 0; n < stmts.size(); ++n) {
        for (size_t r = 0; r < rings_.size(); ++r)
            if (!is_only(rings_[r]) && is_in(rings_[r], segment) && readers[r].first == n)
                await(rings_[r], segment, block);
        block.stmts.push_back(staged(stmts[n]));
        for (size_t r = 0; r < rings_.size(); ++r)
            if (!stays_to_end(rings_[r]) && is_in(rings_[r], segment) && readers[r].last == n &&
                !read_on(rings_[r], segment))
                release(rings_[r], segment, block, loop(segment).variable);
    }
    for (const Ring& ring : rings_)
        if ((stays_to_end(ring) || stmts.empty()) && is_in(ring, segment) && !read_on(ring, segment))
            release(ring, segment, block, loop(segment).variable);
}

void MbarrierRings::fence_readers(TileBlock& block) const {
    for (const Ring& ring : rings_)
        if (ring.role == 0 && !ring.by_warpgroup) block.stmts.push_back(fence());
}

/// This role's boxes of the first iterations.
void MbarrierRings::start_first(TileBlock& block) const {
    for (const Ring& ring : rings_) {
        if (ring.role > 0) continue;
        Expr ahead = index_variable("ahead", 0, std::max(stages() - 2, 0));
        TileBlock body;
        start(body, ring, 0, stages() > 2 ? ahead : integer(0));
        block.stmts.push_back(
            stages() > 2 ? make_tile(TileLoop{ahead, integer(stages() - 1), false, false, make_tile(std::move(body))})
                         : make_tile(std::move(body)));
    }
}

/// Whether the role runs a part of these statements, which it then goes through as the one that computes does.
bool MbarrierRings::works_in(const std::vector<TileStmt>& body, int role) {
    bool found = false;
    for (const TileStmt& stmt : body) visit_ops(stmt, [&](const TileOp& op) { found = found || op.role == role; });
    return found;
}

// ---- the others -----------------------------------------------------------------------------------------------------

/// As soon as the iteration's stage is empty.
void MbarrierRings::refill(TileBlock& block, const Ring& ring, size_t segment, const Expr& iteration) const {
    if (!ring.empty) return start(block, ring, segment, iteration);
    MbarrierWait wait{barrier_of(ring.empty, stage_in(ring, segment, iteration, ring.role)),
                      phase(ring, segment, iteration, 1, ring.role)};
    block.stmts.push_back(make_tile(call_op({wait}, all_of({}), ring.role)));
    start(block, ring, segment, iteration);
}

/// The role's rings in the segment, in the order of their first readers.
std::vector<const MbarrierRings::Ring*> MbarrierRings::rings_of(int role, size_t segment,
                                                                const std::vector<TileStmt>& body) const {
    std::vector<const Ring*> found;
    for (const Ring& ring : rings_)
        if (ring.role == role && is_in(ring, segment)) found.push_back(&ring);
    std::ranges::stable_sort(found, {}, [&](const Ring* ring) { return readers_of(*ring, segment, body).first; });
    return found;
}

void MbarrierRings::run_others(size_t segment, TileBlock& block, const std::vector<TileStmt>& body) const {
    for (int role = 1; role < static_cast<int>(kernel_.roles.size()); ++role) {
        std::vector<const Ring*> rings = rings_of(role, segment, body);
        if (rings.empty() || loop(segment).is_block || works_in(body, role)) continue;
        Variable own = *loop(segment).variable.as<Variable>();
        Expr iteration = make_expr(loop(segment).variable.type(), own);
        TileBlock refills;
        for (const Ring* ring : rings) refill(refills, *ring, segment, iteration);
        TileLoop loop_of_role{iteration, loop(segment).extent, false, loop(segment).reduces,
                              make_tile(std::move(refills))};
        loop_of_role.rolled = true;
        block.stmts.push_back(make_tile(std::move(loop_of_role)));
    }
}

void MbarrierRings::start_others(size_t segment, TileBlock& block, const std::vector<TileStmt>& body) const {
    for (int role = 1; role < static_cast<int>(kernel_.roles.size()); ++role)
        if (loop(segment).is_block || works_in(body, role))
            for (const Ring* ring : rings_of(role, segment, body))
                refill(block, *ring, segment, loop(segment).variable);
}

}  // namespace tw::codegen
