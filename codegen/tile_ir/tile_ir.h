// Tile IR: what a block of threads does. An op is a loop nest around one leaf of the schedule tree; loops around
// several ops are statements. Loops that run on blocks or threads are gone: their variables are coordinates of the
// block's and the thread's index, which any op may mention.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "codegen/access/layout.h"
#include "codegen/access/shared_struct.h"
#include "codegen/access/tensor_map.h"
#include "codegen/instructions/instructions.h"
#include "dsl/tree.h"

namespace tw::codegen {

struct TileNode;

class TileStmt {
public:
    TileStmt() = default;
    explicit TileStmt(std::shared_ptr<const TileNode> node) : node_(std::move(node)) {}
    bool defined() const { return node_ != nullptr; }
    const TileNode& operator*() const { return *node_; }
    template <class T>
    const T* as() const;

private:
    std::shared_ptr<const TileNode> node_;
};

/// variable = block[dimension] / stride % extent
struct GridCoordinate {
    Expr variable;
    int dimension;
    Expr stride, extent;
};
/// variable = rank in the cluster / stride % extent
struct ClusterCoordinate {
    Expr variable;
    int64_t stride, extent;
};
/// variable = thread / stride % extent
struct ThreadCoordinate {
    Expr variable;
    int64_t stride, extent;
    bool reduces = false;  ///< the threads share the terms of a reduction
};

enum class Execution {
    Serial,
    Unroll,
    Vector,  ///< neighbours in memory, to be moved by wide accesses
};
struct OpLoop {
    Expr variable, extent;
    Execution execution = Execution::Serial;
    bool reduces = false;
    AtomRole role = AtomRole::None;
    bool chosen = false;  ///< of a Vector: the user asked for none
};

/// The coordinates lane / 4 and lane % 4 of a warp's threads.
struct FragmentLanes {
    Expr thread, row, column;
};

// What an op does with its stores.

/// They are the identities of a reduction.
struct InitOp {};
/// They add terms to a reduction.
struct UpdateOp {
    const Atom* atom = nullptr;  ///< the matrix instruction that use_atoms puts in its place
    Expr readers_mask = {};      ///< the part of the mask that whoever reads its results has, too; or undefined
    std::shared_ptr<const ReducerNode> reducer = {};  ///< how terms are combined
    std::vector<ThreadCoordinate> around = {};        ///< in whose loops it stands
    std::vector<ThreadCoordinate> sharing = {};       ///< along which threads have terms of their own: combine_lanes
};
/// They combine what threads have of a reduction; lower_thread_reductions spells it out.
struct CombineOp {
    Across across;
};
struct MapOp {};
struct CopyOp {
    Via via;
};
/// They start to be copied; what is stored may be used behind an AwaitedOp.
struct AsyncCopyOp {};
/// What an AsyncCopyOp of the same stores wrote is there.
struct AwaitedOp {};
/// Boxes of a tensor; the passes pipeline and store_boxes make instructions of it.
struct TmaCopyOp {
    std::vector<Expr> shared_along = {};  ///< coordinates of the cluster; blocks that differ in them only all get it,
                                          ///< each loading a part
};
/// An operand of a matrix instruction to registers; the last loop runs over a lane's neighbours.
struct FragmentOp {};

// Without stores.

/// Threads read or write these elements here, by instructions around: for insert_barriers.
struct AccessOp {
    Access place;
    int elements = 1;
    bool writes = false;
};
/// The instructions and nothing else.
struct CallOp {
    std::vector<Instruction> instructions;
};

/// In each thread that is `active`, for all values of the loops: where `mask` holds, the values are computed and
/// stored; elsewhere `otherwise` is stored, if defined.
struct TileOp {
    std::variant<InitOp, UpdateOp, CombineOp, MapOp, CopyOp, AsyncCopyOp, AwaitedOp, TmaCopyOp, FragmentOp, AccessOp,
                 CallOp>
        action;
    std::string name = {};  ///< of the stage; empty: what it does speaks for itself
    int stage = -1, step = -1;
    int role = 0;                    ///< the group of threads that runs it: index in TileKernel::roles
    std::vector<OpLoop> loops = {};  ///< outermost first
    std::vector<StoreTo> stores = {};
    Expr mask = constant(Type::Bool, int64_t{1});
    Expr otherwise = {};
    std::vector<ThreadCoordinate> threads = {};      ///< the coordinates that it mentions, slowest first
    Expr active = constant(Type::Bool, int64_t{1});  ///< over the thread, coordinates and loops: who runs it
    std::optional<FragmentLanes> lanes = {};         ///< of ops whose loops lanes share as the parts of matrices lie
    std::vector<std::string> notes = {};             ///< the defaults taken and why
    Expr iteration = {};                             ///< see Leaf
    std::string purpose = {};                        ///< behind the name in comments: what the action is not called
    bool reads_ahead = false;  ///< what a value chooses among is there to be read, whatever it chooses

    template <class Action>
    const Action* as() const {
        return std::get_if<Action>(&action);
    }
    template <class Action>
    bool is() const {
        return std::holds_alternative<Action>(action);
    }
};
/// An op of these instructions, which belongs to no stage.
TileOp call_op(std::vector<Instruction> instructions, const Expr& active = all_of({}), int role = 0);
/// The op's instruction, if it is that one alone.
template <class I>
const I* lone_instruction(const TileOp& op) {
    const CallOp* call = op.as<CallOp>();
    return call && call->instructions.size() == 1 ? std::get_if<I>(&call->instructions[0]) : nullptr;
}

struct TileLoop {
    Expr variable, extent;
    bool unroll = false;
    bool reduces = false;
    TileStmt body;
    int stages = 1;       ///< buffers that fills inside of it have in turn, see the pass pipeline
    int in_flight = 0;    ///< iterations whose asynchronous matrix instructions may still run when the next one's start
    bool rolled = false;  ///< copies of its body would only take registers
    int pipeline_step = -1;  ///< the schedule step that pipelined it
    int loop = -1;           ///< of the schedule: segments of one have it in common
    bool is_block = false;   ///< around all that a block does, or does in a round
};
struct TileBlock {
    std::vector<TileStmt> stmts;
};
/// Registers of each thread that live in `body`.
struct TileAllocate {
    Buffer buffer;
    TileStmt body;
    std::vector<Expr> around = {};  ///< coordinates of the thread that stay the same while the registers live
};

struct TileNode {
    std::variant<TileOp, TileLoop, TileBlock, TileAllocate> kind;
};
template <class T>
const T* TileStmt::as() const {
    return node_ ? std::get_if<T>(&node_->kind) : nullptr;
}
template <class T>
TileStmt make_tile(T node) {
    return TileStmt(std::make_shared<const TileNode>(TileNode{std::move(node)}));
}

struct SharedBuffer {
    Buffer buffer;                  ///< as the schedule knows it
    Layout layout;                  ///< where its elements are
    bool fixed = false;             ///< by an instruction
    int alignment = 1;              ///< bytes
    std::vector<Expr> around = {};  ///< variables of loops in each of whose iterations it begins without values
};

/// Barriers in shared memory that are there before all else.
struct BarrierArray {
    Buffer buffer;
    int64_t arrivals;  ///< that end a phase
};

/// Blocks that take the iterations of the grid in turn: `tile` = block + round * blocks; of longest_first ones the last
/// first. Or those that they take as they come, by tickets from a counter: `tile` = ticket, or tiles - 1 - ticket.
struct Persistence {
    Expr round;  ///< Variable of the loop around all that a block does
    Expr tile;   ///< Variable
    int blocks;
    Expr tiles;                  ///< how many there are
    bool longest_first = false;  ///< later ones take longer
    Buffer tickets = {};         ///< the counter, in global memory, if they take them as they come
    Buffer next = {};            ///< then: the ticket of the tile whose turn comes, in registers of each thread,
    Expr ticket = {};            ///< and its name in the round; see take_tickets
};

struct TileKernel {
    std::string name;
    std::vector<Buffer> arguments;
    std::vector<Expr> sizes, scalars;
    std::array<Expr, 3> grid;   ///< number of blocks
    std::array<Expr, 3> block;  ///< Variables: the block's index
    int threads = 1;
    Expr thread;  ///< Variable: the thread's index
    std::vector<GridCoordinate> grid_coordinates;
    std::vector<ThreadCoordinate> thread_coordinates;
    Expr fragment_row, fragment_column;                  ///< lane / 4 and lane % 4, if there are matrix instructions
    Expr fragment_warp;                                  ///< of the warpgroup, if they are a warpgroup's
    int cluster = 1;                                     ///< blocks, neighbours in x, that run together
    std::vector<ClusterCoordinate> cluster_coordinates;  ///< of the rank of a block in its cluster, slowest first
    std::optional<Persistence> persistent;
    Occupancy occupancy = {};
    std::vector<RoleSpec> roles;  ///< none, or first the one that computes, on `threads` threads a turn
    std::vector<ExclusiveSection> exclusive;
    Expr turn;  ///< Variable: which group of the role that computes, if several take turns
    std::vector<TensorMapUse> maps;
    std::vector<SharedBuffer> shared;
    std::vector<SharedUnion> unions;  ///< of buffers that are there
    std::vector<BarrierArray> barriers;
    TileStmt body;
    std::vector<std::string> notes;
};

/// A whole number of warpgroups.
int threads_of(const RoleSpec& role);
/// Groups of the role that computes.
int turns_of(const TileKernel& kernel);
/// Threads of a block, those of all roles.
int all_threads(const TileKernel& kernel);
/// Which iteration of the grid a block of a persistent kernel has in a round; by tickets, in the one that it is in.
Expr tile_of_round(const TileKernel& kernel, const Expr& round);

// Walking.

/// The statements directly inside, in order.
std::vector<TileStmt> children(const TileStmt& stmt);
/// The same statement around other children.
TileStmt with_children(const TileStmt& stmt, std::vector<TileStmt> kids);
/// Each child replaced; ops as they are.
TileStmt map_children(const TileStmt& stmt, const std::function<TileStmt(const TileStmt&)>& rule);
/// Calls `see` on every statement, parents first, in program order.
void visit(const TileStmt& root, const std::function<void(const TileStmt&)>& see);
TileStmt replace_ops(const TileStmt& stmt, const std::function<TileStmt(const TileOp&)>& rule);
using OpRule = std::function<TileOp(const TileOp&)>;
TileStmt map_ops(const TileStmt& stmt, const OpRule& rule);
void visit_ops(const TileStmt& stmt, const std::function<void(const TileOp&)>& see);
/// Every expression of the op rewritten: extents, indices, values, masks.
TileOp map_exprs(const TileOp& op, const std::function<Expr(const Expr&)>& rule);
void visit_exprs(const TileOp& op, const std::function<void(const Expr&)>& see);
/// The buffers that the op's expressions load from, each once.
std::vector<Buffer> loads_of(const TileOp& op);
/// Each place that it stores to, or has instructions or other threads access; not what expressions load.
void visit_places(const TileOp& op, const std::function<void(const Buffer&)>& see);
/// The op with loads and all those places elsewhere; what stays in its buffer stays as it is.
TileOp map_places(const TileOp& op, const std::function<Access(const Access&)>& rule);
bool mentions(const TileOp& op, const Expr& variable);
bool stores_to(const TileOp& op, Memory memory);
/// Updates memory: done twice, it would count twice.
bool is_atomic(const TileOp& op);
bool loads_from(const TileOp& op, Memory memory);

/// The grammar: variables are bound where they are used, buffers exist, ranks and types fit. Throws InternalError that
/// names the pass.
void verify_tile_ir(const TileKernel& kernel, const std::string& pass);
std::string to_string(const TileOp& op);
std::string to_string(const TileKernel& kernel);

}  // namespace tw::codegen
