// Thread IR: what one thread of a kernel does, one step away from CUDA text.
//
// Expressions are those of dsl/expr.h over Loads of buffers: global buffers take one flat element offset, shared and
// register buffers one index a physical dimension (row-major over BufferNode::shape). Behind these stand, in threes,
// the checks of indices that data decide (access.h).
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "codegen/access/shared_struct.h"
#include "codegen/access/tensor_map.h"
#include "codegen/instructions/instructions.h"

namespace tw::codegen {

struct ThreadNode;

/// A statement; `step` is the schedule step that it comes from, -1 if none.
class ThreadStmt {
public:
    ThreadStmt() = default;
    explicit ThreadStmt(std::shared_ptr<const ThreadNode> node) : node_(std::move(node)) {}
    bool defined() const { return node_ != nullptr; }
    bool same(const ThreadStmt& other) const { return node_ == other.node_; }
    const ThreadNode& operator*() const { return *node_; }
    template <class T>
    const T* as() const;
    int step() const;

private:
    std::shared_ptr<const ThreadNode> node_;
};

struct ThreadBlock {
    std::vector<ThreadStmt> stmts;
};
/// for (variable = 0; variable < extent; ++variable); `unroll`: fully, its index is a constant for the compiler;
/// `unroll_by`: the compiler makes so many iterations one, or, of 0, as many as it likes; 1 where the body is already
/// as many copies as registers allow, 2 where registers that one iteration fills are the next one's, which else would
/// be waited for at the end of the first, to be copied. If `ends_at` is positive, the body begins with let x = variable
/// * step + first, and the extent is the number of such x below it. With `next`, a register that is the same in all
/// threads, the loop ends as soon as that is not below the extent: its body begins with let ticket = next, and sets
/// `next` to a later ticket, so that these grow. `apart`: the compiler is kept from doing the arithmetic of several
/// steps together, though they are unrolled.
struct ThreadLoop {
    Expr variable;
    Expr extent;
    bool unroll = false;
    ThreadStmt body;
    int unroll_by = 0;
    int64_t ends_at = 0;
    Buffer next = {};
    bool apart = false;
};
struct ThreadIf {
    Expr condition;
    ThreadStmt body;
};
/// const variable = value, visible in the rest of the enclosing block.
struct ThreadLet {
    Expr variable;
    Expr value;
};
/// A register array (shape {} is a scalar), visible in the rest of the enclosing block, uninitialised.
struct ThreadDeclare {
    Buffer buffer;
};
/// `atomic`: combines the element with the value by this operation, as one action.
struct ThreadStore {
    Access to;
    Expr value;
    std::optional<BinaryOp> atomic = {};
};
/// `width` neighbouring elements of the last dimension as one access of memory. Memory to registers, registers to
/// memory, or memory to memory; addresses are multiples of width * bytes. With `where`, of shared to global memory, it
/// is read in any case and stored where that holds.
struct ThreadWide {
    int width;
    Access to;
    Access from;
    Expr where = {};
};
/// Elements that this thread reads or writes here by what no statement shows: an asynchronous copy that has arrived, a
/// matrix that an instruction reads. For insert_barriers, behind which there are none of these.
struct ThreadAccess {
    Access to;
    int width;
    bool writes = true;
};
/// All threads of the block, or, with an id, so many: those of a role, or of one of its groups (the id is then that
/// plus `turn`).
struct ThreadBarrier {
    int id = 0;
    int threads = 0;
    Expr turn = {};
};
/// Warps that run the body, beside others: the block's threads from `first` on.
struct ThreadRole {
    std::string name;
    Expr thread;  ///< Variable: the index among them, in their group; undefined where it is the kernel's
    int first, threads;
    ThreadStmt body;
    Expr turn = {};  ///< Variable: which of `turns` groups
    int turns = 1;
};
/// A line of comment above what follows.
struct ThreadComment {
    std::string text;
    std::string stage = {};  ///< that what follows is a part of
};

struct ThreadNode {
    std::variant<ThreadBlock, ThreadLoop, ThreadIf, ThreadLet, ThreadDeclare, ThreadStore, ThreadWide, Instruction,
                 ThreadAccess, ThreadBarrier, ThreadRole, ThreadComment>
        kind;
    int step = -1;
};
template <class T>
const T* ThreadStmt::as() const {
    return node_ ? std::get_if<T>(&node_->kind) : nullptr;
}
inline int ThreadStmt::step() const { return node_ ? node_->step : -1; }
/// The statement, if it is this instruction.
template <class I>
const I* instruction_of(const ThreadStmt& stmt) {
    const Instruction* instruction = stmt.as<Instruction>();
    return instruction ? std::get_if<I>(instruction) : nullptr;
}
template <class T>
ThreadStmt make_thread(T node, int step = -1) {
    return ThreadStmt(std::make_shared<const ThreadNode>(ThreadNode{std::move(node), step}));
}

/// One kernel before printing.
struct ThreadKernel {
    std::string name;
    std::vector<Buffer> arguments;                   ///< global buffers; pointer parameters in this order
    std::vector<Expr> sizes, scalars;                ///< Variables; parameters after the pointers
    std::vector<TensorMapUse> maps;                  ///< parameters behind the pointers
    std::vector<Buffer> shared;                      ///< arrays of the block's shared memory
    std::vector<SharedUnion> unions;                 ///< of those that take turns
    std::vector<bool> written;                       ///< an argument each: stored to in this kernel
    std::vector<std::pair<Buffer, Buffer>> aliases;  ///< one array: (output, input that it overwrites)
    std::array<Expr, 3> grid;                        ///< blocks in x, y, z, over sizes
    Expr tickets;                                    ///< that blocks take in all, over sizes; undefined: none
    int cluster = 1;                                 ///< blocks, neighbours in x, that run together
    int occupancy = 1;                               ///< blocks that a multiprocessor has room for at least
    int threads = 1;
    int producer_threads = 0;         ///< threads behind those, of roles that have their own
    Expr thread;                      ///< Variable: threadIdx.x, 0 <= thread < threads where statements use it
    std::array<Expr, 3> block;        ///< Variables: blockIdx.x, y, z
    bool starts_early = false;        ///< waits itself for the kernels before it, see programmatic_launch
    int64_t overlaps_from = 0;        ///< blocks; with fewer, neither its start nor its end overlap other kernels
    std::vector<std::string> header;  ///< lines of the comment on top: formula, shapes, schedule
    ThreadStmt body;
    std::vector<std::string> notes;  ///< what passes chose by themselves
};

/// The type of a kernel argument: sizes are 32 bits wide if their bounds allow it, scalars have their own.
Type argument_type(const Expr& argument);

}  // namespace tw::codegen
