// The stages of a pipelined loop that boxes of tensors fill, by the tensor memory accelerator, and their barriers.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "codegen/tile_ir/tile_ir.h"

namespace tw::codegen {

/// Buffers that a loop fills in advance -> the same with a first dimension, the stages.
using StagedBuffers = std::map<const BufferNode*, Buffer>;

/// One thread asks for boxes, and a barrier for each stage counts their bytes. It is a thread of the role that
/// computes, which runs ahead by all stages but one, or of another, which waits at a second barrier until the readers
/// of a stage are done. Each role has a ring of its own.
class MbarrierRings {
public:
    /// `around`: the loops around it, outermost first.
    MbarrierRings(TileKernel& kernel, const TileLoop& loop, const std::vector<TileLoop>& around,
                  const StagedBuffers& staged)
        : kernel_(kernel), loop_(loop), around_(around), staged_(staged) {}

    void add(const TileOp& copy) { boxes_[copy.role].copies.push_back(copy); }
    bool empty() const { return boxes_.empty(); }
    /// Whether the role that computes asks for boxes itself.
    bool fills_itself() const { return boxes_.count(0) > 0; }
    /// The barriers, for these readers; nothing is added after it.
    void make_barriers(const std::vector<TileStmt>& readers);

    /// This iteration's number among all that the kernel runs of the loop, up to a multiple of twice the stages: stages
    /// and phases count on.
    Expr count(const Expr& iteration) const;
    /// The registers in which each role counts the iterations of a loop that is not always equally long, and what sets
    /// them before all else.
    std::vector<TileOp> counters() const;

    // What the role that computes does: before the loop, in an iteration, and behind.
    void start_first(TileBlock& block) const;
    void await_turn(TileBlock& block) const;
    void await(TileBlock& block) const;
    void start_own(TileBlock& block, const Expr& iteration) const;
    void fence_readers(TileBlock& block) const;
    /// The stage of an iteration may be filled again, if there was that iteration.
    void release(TileBlock& block, const Expr& iteration) const;
    void end_turn(TileBlock& block) const;
    /// Behind all else of the loop.
    void count_on(TileBlock& block) const;

    // What the other roles do, as fast as stages become empty: the whole loop before it, or, of a role that has boxes
    // of loops in the body too, an iteration's part at its start. So each role asks for boxes in the order in which
    // they are awaited.
    void run_others(TileBlock& block, const std::vector<TileStmt>& body) const;
    void start_others(TileBlock& block, const std::vector<TileStmt>& body) const;

private:
    struct Ring {
        Buffer full, empty;              ///< a barrier for each stage; `empty`: if another role fills
        bool by_warpgroup = false;       ///< readers are instructions of whole warpgroups
        std::vector<Expr> shared_along;  ///< coordinates of the cluster; boxes of blocks that differ in them only come
                                         ///< to all of these, whose readers must all be done
    };
    struct Boxes {
        std::vector<TileOp> copies;  ///< as they are in the loop
        Ring ring;
    };
    /// Iterations until now, up to a multiple of twice the stages, in a register of a role's threads.
    struct Counter {
        Buffer iterations;
        int role;
    };

    Expr iterations_before() const;
    /// Whether this is the first, or the last, iteration of the loops between this one and that over rounds.
    Expr in_first_of_round() const;
    Expr in_last_of_round() const;
    Counter counter(int role) const;
    TileOp set(const Counter& counter, const Expr& value) const;
    TileOp seen(const TileOp& copy) const;
    /// Iterations of the loop in a round of a persistent kernel whose rounds run it once each; none behind the last.
    Expr extent_in(const Expr& round) const;
    /// For the role.
    Expr count(const Expr& iteration, int role) const;
    Expr stage_of(const Expr& iteration, int role = 0) const;
    Expr phase(const Expr& iteration, int later, int role = 0) const;
    Buffer barriers(const std::string& what, int64_t arrivals, int64_t count);
    Ring make_ring(int role, const std::vector<TileStmt>& readers);
    void start(TileBlock& block, int role, const Boxes& boxes, const Expr& iteration) const;
    static bool works_in(const std::vector<TileStmt>& body, int role);
    void refill(TileBlock& block, int role, const Boxes& boxes, const Expr& iteration) const;

    TileKernel& kernel_;
    const TileLoop& loop_;
    const std::vector<TileLoop>& around_;
    const StagedBuffers& staged_;
    std::map<int, Boxes> boxes_;  // of each role
    Buffer ring_done_;            // a barrier for each group, if they take turns
    bool done_by_warpgroup_ = false;
    Expr before_ = constant(Type::I64, int64_t{0});
    std::vector<Counter> counters_;  // if `before_` has no formula
};

}  // namespace tw::codegen
