// The stages of a pipelined loop that boxes of tensors fill, by the tensor memory accelerator, and their barriers.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "codegen/async/staged_buffers.h"
#include "codegen/tile_ir/tile_ir.h"

namespace tw::codegen {

/// One thread asks for boxes, and a barrier for each stage counts their bytes. It is a thread of the role that
/// computes, which runs ahead by all stages but one, or of another, which waits at a second barrier until the readers
/// of a stage are done. Each role has a ring of its own; copies that different matrix products read have, too: each is
/// awaited in front of its first reader and given back behind its last one. A ring goes through all segments of a loop
/// that runs in parts, as far as they fill it.
class MbarrierRings {
public:
    /// `segments` of one loop, in order; `around`: the loops around them, outermost first.
    MbarrierRings(TileKernel& kernel, const std::vector<TileLoop>& segments, const std::vector<TileLoop>& around,
                  const StagedBuffers& staged)
        : kernel_(kernel), segments_(segments), around_(around), staged_(staged), copies_(segments.size()) {}

    void add(size_t segment, const TileOp& copy) { copies_[segment].push_back(copy); }
    bool empty() const;
    /// Whether the role that computes asks for boxes itself.
    bool fills_itself() const;
    bool is_last(size_t segment) const { return segment + 1 == segments_.size(); }
    /// The rings and their barriers, for the statements of each segment; nothing is added after it.
    void make_rings(const std::vector<std::vector<TileStmt>>& readers);

    /// The stage that the buffer's elements of an iteration are in; of one that no ring fills, too.
    Expr stage_of(size_t segment, const Buffer& staged, const Expr& iteration) const;
    /// The registers in which each role counts the iterations of a loop that is not always equally long, and what sets
    /// them before all else.
    std::vector<TileOp> counters() const;

    // What the role that computes does: before a segment, in an iteration, and behind.
    void start_first(TileBlock& block) const;
    void await_turn(TileBlock& block) const;
    /// The statements of an iteration, in the stages that they read (`staged`). A ring is given back behind its last
    /// reader, or, the only one of a role that products read, behind all; one that products read is not given back here
    /// where these are in flight. Several rings of a role are awaited in front of their first reader.
    void run_readers(size_t segment, TileBlock& block, const std::vector<TileStmt>& stmts,
                     const std::function<TileStmt(const TileStmt&)>& staged) const;
    void start_own(TileBlock& block, const Expr& iteration) const;
    void fence_readers(TileBlock& block) const;
    /// The ring that is the only one of its role is awaited in front of an iteration's statements.
    void await(size_t segment, TileBlock& block) const;
    /// The stage of an iteration may be filled again, if there was that one: of products in flight.
    void release(size_t segment, TileBlock& block, const Expr& iteration) const;
    /// Those of the segment's last iterations.
    void release_last(TileBlock& block, size_t segment) const;
    /// Whether the products of the last iterations run on into the next iteration of the loop around, which gives back
    /// their stages.
    bool runs_on() const;
    /// Then: those of the last iterations of all, behind the loop around.
    void release_last_around(TileBlock& block) const;
    void end_turn(TileBlock& block) const;
    /// In the last iteration, behind await: of rings that are all awaited there. The next group waits for later fills
    /// only, and each group gives back its own.
    bool can_end_turn_early(const TileLoop& last) const;
    TileStmt end_turn_in(const TileLoop& loop) const;
    /// Behind all else of the loop.
    void count_on(TileBlock& block) const;

    // What the other roles do, as fast as stages become empty: the whole segment before it, or, of a role that has
    // boxes of loops in the body too, an iteration's part at its start. So each role asks for boxes in the order in
    // which they are awaited.
    void run_others(size_t segment, TileBlock& block, const std::vector<TileStmt>& body) const;
    void start_others(size_t segment, TileBlock& block, const std::vector<TileStmt>& body) const;

private:
    /// Iterations until now, up to a multiple of twice the stages, in a register of a role's threads.
    struct Counter {
        Buffer iterations;
        int role;
    };
    /// How fills are numbered that are made in the same segments.
    struct Numbering {
        std::vector<bool> in;  ///< of each segment: whether it has one an iteration
        Expr before = integer(0);
        std::vector<Counter> counters = {};  ///< if `before` has no formula
    };
    struct Ring {
        int role = 0;
        size_t numbering = 0;
        std::vector<std::vector<TileOp>> copies;  ///< of each segment, as they are in the loop
        Buffer full = {}, empty = {};             ///< a barrier for each stage; `empty`: if another role fills
        bool resident = false;                    ///< filled in the first round, and never again
        bool by_products = false;                 ///< some readers are asynchronous products
        bool by_warpgroup = false;                ///< readers are instructions of whole warpgroups
        std::vector<Expr> shared_along = {};  ///< coordinates of the cluster; boxes of blocks that differ in them only
                                              ///< come to all of these, whose readers must all be done
    };
    /// The first and the last of a segment's statements that touch the ring's buffers.
    struct Readers {
        size_t first = 0, last = 0;
    };

    const TileLoop& loop(size_t segment) const { return segments_[segment]; }
    int stages() const { return segments_[0].stages; }
    std::string loop_name() const;
    bool is_in(const Ring& ring, size_t segment) const { return !ring.copies[segment].empty(); }
    size_t numbering_of(const std::vector<bool>& in);
    void add_ring(int role, const std::vector<bool>& in, const std::vector<Buffer>& buffers);
    void sort_copies(const std::vector<std::vector<TileStmt>>& readers);
    void make_numbers();
    void make_barriers(Ring& ring, const std::vector<std::vector<TileStmt>>& readers, bool only);
    bool is_only(const Ring& ring) const;
    bool stays_to_end(const Ring& ring) const;
    static size_t behind_products(const std::vector<TileStmt>& stmts, size_t last);
    Readers readers_of(const Ring& ring, size_t segment, const std::vector<TileStmt>& stmts) const;
    std::vector<const Ring*> rings_of(int role, size_t segment, const std::vector<TileStmt>& body) const;

    /// Iterations in which the segments fill: of all, or of those in front of one.
    Expr extent_of(const Numbering& numbering, size_t end) const;
    Expr iterations_before(const Numbering& numbering) const;
    /// Whether this is the first, or the last, iteration of the loops between this one and that over rounds.
    Expr in_first_of_round() const;
    Expr in_last_of_round() const;
    TileStmt end_turn_where(const Expr& condition) const;
    Counter counter(const Numbering& numbering, int role) const;
    TileOp set(const Counter& counter, const Expr& value) const;
    TileOp seen(size_t segment, const TileOp& copy) const;
    /// Iterations in a round of a persistent kernel whose rounds run the loop once each; none behind the last.
    Expr extent_in(const Numbering& numbering, const Expr& round) const;
    /// This iteration's number among all that the kernel runs, up to a multiple of twice the stages: stages and phases
    /// count on.
    Expr count(size_t numbering, size_t segment, const Expr& iteration, int role) const;
    Expr stage_in(const Ring& ring, size_t segment, const Expr& iteration, int role = 0) const;
    Expr phase(const Ring& ring, size_t segment, const Expr& iteration, int later, int role = 0) const;
    Buffer barriers(const std::string& name, int64_t arrivals, int64_t count);
    void await(const Ring& ring, size_t segment, TileBlock& block) const;
    bool read_on(const Ring& ring, size_t segment) const;
    void release(const Ring& ring, size_t segment, TileBlock& block, const Expr& iteration) const;
    void release_where(const Expr& was, const Ring& ring, size_t segment, TileBlock& block,
                       const Expr& iteration) const;
    void start(TileBlock& block, const Ring& ring, size_t segment, const Expr& iteration) const;
    Expr in_first_rounds(int64_t count) const;
    static bool works_in(const std::vector<TileStmt>& body, int role);
    void refill(TileBlock& block, const Ring& ring, size_t segment, const Expr& iteration) const;

    TileKernel& kernel_;
    const std::vector<TileLoop>& segments_;
    const std::vector<TileLoop>& around_;
    const StagedBuffers& staged_;
    std::vector<std::vector<TileOp>> copies_;  // of each segment
    std::vector<Ring> rings_;                  // of a role in the order in which they are awaited
    std::vector<Numbering> numberings_;
    Buffer ring_done_;  // a barrier for each group, if they take turns
};

}  // namespace tw::codegen
