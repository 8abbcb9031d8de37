// Wrong kernels made of right ones: every place of the thread IR where a code generator could have erred, altered.
#pragma once
#include <string>
#include <vector>

#include "codegen/thread_ir/thread_ir.h"

namespace tw::fuzz {

enum class MutationKind {
    Barrier,     ///< removed
    ReadIndex,   ///< of a load, or an offset that a let names: one more, one less, another stride
    WriteIndex,  ///< of a store
    Mask,        ///< a bound one more or one less, negated, always true, a part left out
    Extent,      ///< of a loop, of the grid or of the block: one more, one less
    Stage,       ///< another buffer of a ring, another initial value or one in some threads only, an array with one row
                 ///< less or in the bytes of others, a store left out
    Operator,    ///< another operation, operands exchanged, an operation left out
    Exchange,    ///< with another lane
    Signal,      ///< a wait, an arrival, a fence, a commit or a copy left out; another count, phase, number of threads
    Operand,     ///< of a primitive: bytes, coordinates, ranks, distances of a descriptor, transposition, registers
    Launch,      ///< the wait for the kernels before: left out, moved; what the kernel's head says
    Role,        ///< its threads, its warps, a role left out; blocks of a cluster; boxes and swizzles of tensor maps
    Stream,      ///< of reductions of one pass: the value from before a step for the one behind it, a correction or the
                 ///< guard of what no term has reached left out
};
inline constexpr int kNumMutationKinds = 13;
/// "barrier", "read index", ...
std::string to_string(MutationKind kind);

struct Mutant {
    MutationKind kind;
    std::string text;  ///< what was altered: "a[row * 37 + k]: 37 -> 38"
    codegen::ThreadKernel kernel;
    bool waits = false;                   ///< programmatic_launch has had its turn
    std::string in_text = {}, with = {};  ///< where not empty: the kernel is printed so, and then this is put for that
};

/// A statement as texts of mutants name it: without what stands inside it.
std::string head_of(const codegen::ThreadStmt& stmt);

/// What is loaded of one buffer is loaded of another instead.
Expr with_loads_of(const Expr& expr, const codegen::Buffer& from, const codegen::Buffer& to);

/// Every mutant of a kernel that is about to be printed, in program order.
std::vector<Mutant> mutants_of(const codegen::ThreadKernel& kernel);

}  // namespace tw::fuzz
