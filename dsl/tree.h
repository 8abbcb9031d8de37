// The schedule tree: loops, sequences, allocations and leaves, executed sequentially with bindings ignored.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "dsl/atoms.h"
#include "dsl/expr.h"

namespace tw {

enum class Memory {
    Auto,  ///< registers if only the producing thread reads an element, else shared
    Global,
    Shared,     ///< one copy a block
    Registers,  ///< one copy a thread
};

/// How a copy moves its elements.
enum class Copy {
    Automatic,  ///< the best way that is legal; explain() names it
    Vector,     ///< wide loads and stores through registers
    Async,      ///< cp.async, from global to shared memory while threads go on
    Tma,        ///< boxes of a tensor by the tensor memory accelerator, from sm_90 on; in pipelined loops
};
std::string to_string(Copy copy);
struct Via {
    Copy copy = Copy::Automatic;
    int step = -1;  ///< that asked for it
};

/// What a loop runs on.
enum class Level { Serial, Unroll, Vector, GridX, GridY, GridZ, Cluster, Thread, Warpgroup, Warp, Lane };
/// Runs on blocks; those of a cluster are neighbours in grid.x that run together.
inline bool is_grid(Level level) {
    return level == Level::GridX || level == Level::GridY || level == Level::GridZ || level == Level::Cluster;
}
/// Runs on the threads of a block.
inline bool is_thread(Level level) {
    return level == Level::Thread || level == Level::Warpgroup || level == Level::Warp || level == Level::Lane;
}
std::string to_string(Level level);
std::string to_string(Memory memory);

/// A piece of memory, indexed by one expression a dimension. Identity is the node's address.
struct BufferNode {
    std::string name;
    Type type;
    Memory memory;
    std::vector<Expr> shape;             ///< constants unless global
    std::vector<Expr> strides;           ///< global: elements; dense row-major if empty
    std::vector<Expr> joined_from = {};  ///< the shape that the user knows, if dimensions of it are joined
    enum class Role { Input, Output, Workspace, Local } role = Role::Local;
    int step = -1;  ///< the schedule step that made it, -1 for none
    /// Shared: bytes of a row, 128, 64 or 32, whose pieces of 16 bytes stand in another order in each of eight rows:
    /// piece c of row r is at c ^ (r / (128 / swizzle)) % (swizzle / 16). 0: as they are.
    int swizzle = 0;
    int alignment = 1;        ///< shared: bytes that its start is a multiple of, at least
    bool is_barrier = false;  ///< shared: its elements are not numbers but barriers that count arrivals and bytes
    int64_t below = 0;        ///< if positive: its elements are integers from 0 up to this, exclusive
    bool is_counter = false;  ///< global: zeros before each launch, which leaves zeros behind
};
using BufferRef = std::shared_ptr<const BufferNode>;
/// As who gives or takes the memory knows it.
inline const std::vector<Expr>& declared_shape(const BufferNode& buffer) {
    return buffer.joined_from.empty() ? buffer.shape : buffer.joined_from;
}

struct StmtNode;
class Stmt {
public:
    Stmt() = default;
    explicit Stmt(std::shared_ptr<const StmtNode> node) : node_(std::move(node)) {}
    bool defined() const { return node_ != nullptr; }
    bool same(const Stmt& other) const { return node_ == other.node_; }
    const StmtNode& operator*() const { return *node_; }
    template <class T>
    const T* as() const;

private:
    std::shared_ptr<const StmtNode> node_;
};

/// What a matrix instruction takes a loop for.
enum class AtomRole { None, M, N, K };

/// for variable in 0..extent-1
struct For {
    Expr variable;
    Expr extent;
    Level level;
    int bind_step;  ///< order of binding: earlier is slower in the mixed radix of threads; -1 if not bound
    int loop;       ///< the handle's id
    bool reduces;   ///< runs along a reduction axis
    Stmt body;
    int stages = 1;     ///< how many iterations' copies in shared memory exist at a time
    int in_flight = 0;  ///< iterations whose matrix instructions still run when the next one's start
    AtomRole role = AtomRole::None;
    int pipeline_step = -1;  ///< the schedule step that pipelined it
    bool is_part = false;    ///< of the loop's iterations it has some, numbered from 0
};
struct Sequence {
    std::vector<Stmt> stmts;
};
/// `buffer` lives in `body`, uninitialised at its start.
struct Allocate {
    BufferRef buffer;
    Stmt body;
};
struct StoreTo {
    BufferRef buffer;
    std::vector<Expr> indices;
    Expr value;
    std::optional<BinaryOp> atomic = {};  ///< Add, Min or Max: the element is combined with the value, as one action
};
/// "c[i] = x", "atomic c[i] += x": a store's parts as text.
std::string store_text(const std::string& element, const std::string& value, std::optional<BinaryOp> atomic);
/// A Combine's loop, over whose iterations partial results were made. Each of them gets the total: neighbours are
/// combined in pairs, then neighbouring pairs, and so on, the earlier one on the left; what has no neighbour waits.
/// Stores behind the totals, none or one for each of them, are what iterations have before their own part: for all of
/// the part on the right of a pair, `left`, and what they had so far, are combined in their values.
struct Across {
    Expr variable;
    int64_t extent = 1;
    std::vector<Expr> left, right;  ///< Variables that stand for the operands in the stores' values, one a total
};
/// If mask: all values are computed, then all are stored.
struct Leaf {
    enum class Kind { Init, Update, Combine, Finish, Copy };
    Kind kind;
    int stage;         ///< index in Schedule
    std::string name;  ///< of the stage
    int step;          ///< the schedule step that this leaf comes from, -1 for the declaration
    std::vector<StoreTo> stores;
    Expr mask;           ///< bool
    Across across = {};  ///< of a Combine
    Via via = {};
    const Atom* atom = nullptr;  ///< the matrix instruction that an Update is left to, over the loops with roles
    Expr readers_mask = {};      ///< of an Update: the part of the mask that whoever reads its results has, too
    std::shared_ptr<const ReducerNode> reducer = {};  ///< of an Update: how its terms are combined
    std::string purpose = {};                         ///< of a Finish that is not all of the stage: "correct"
    Expr iteration = {};  ///< in a loop that runs in parts, of which stages are late: the one that it belongs to
};

struct StmtNode {
    std::variant<For, Sequence, Allocate, Leaf> kind;
};
template <class T>
const T* Stmt::as() const {
    return node_ ? std::get_if<T>(&node_->kind) : nullptr;
}

template <class T>
Stmt make_stmt(T node) {
    return Stmt(std::make_shared<const StmtNode>(StmtNode{std::move(node)}));
}
/// Nothing for an empty list, the statement itself for one.
Stmt sequence(std::vector<Stmt> stmts);
/// The statement with every expression rewritten.
Stmt map_exprs(const Stmt& stmt, const std::function<Expr(const Expr&)>& rule);
/// The statement with other buffers in the places of these.
using Buffers = std::map<const BufferNode*, BufferRef>;
Stmt in_buffers(const Stmt& stmt, const Buffers& others);

/// A group of warps of a kernel and the stages that it runs.
struct RoleSpec {
    std::string name;
    int warps = 0;
    int registers = 0;        ///< of each thread; 0: as the compiler gives them
    int ping_pong = 1;        ///< groups of its warps that take tiles in turn
    std::vector<int> stages;  ///< indices in Schedule
    int step = -1;
};

/// Stages at which the warpgroups that compute take turns, from in front of the first to behind the last.
struct ExclusiveSection {
    std::vector<int> stages;  ///< indices in Schedule
    int step = -1;
};

/// Blocks of a kernel that a multiprocessor has room for at least.
struct Occupancy {
    int blocks = 1;
    int step = -1;  ///< that asked for it
};

/// One kernel of a program: a nest that writes global buffers.
struct Nest {
    std::string name;
    Stmt body;
    std::vector<RoleSpec> roles = {};  ///< none, or first the one that computes, then those that copy for it
    int persistent_blocks = 0;         ///< so many blocks take the grid's iterations in turn; 0: each block has one
    bool longest_first = false;        ///< see PersistentOptions
    int persistent_stages = 1;
    BufferRef tickets = {};  ///< the counter that blocks take iterations by; none: each has every `blocks`-th
    Occupancy occupancy = {};
    std::vector<ExclusiveSection> exclusive = {};
};
/// Kernels in launch order. Buffers: inputs, outputs, workspaces that live between kernels.
struct Tree {
    std::vector<Nest> nests;
    std::vector<BufferRef> inputs, outputs, workspaces;
    std::vector<Expr> sizes, scalars;                       ///< Variables given at launch
    std::vector<std::pair<BufferRef, BufferRef>> in_place;  ///< (output, input) pairs that share memory
};

/// The loop nest as indented text.
std::string to_string(const Tree& tree);

}  // namespace tw
