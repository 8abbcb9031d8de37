// Instructions of the GPU that kernels call by the device vocabulary: one struct each, with named operands. Whoever
// must know them all visits the variant without a default, so that a new one is a compile error until it is handled.
#pragma once
#include <array>
#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "codegen/instructions/operands.h"
#include "dsl/atoms.h"

namespace tw::codegen {

// Barriers in shared memory (mbarrier).

/// Before any use: a phase ends when so many have arrived, and all bytes that it expects have.
struct MbarrierInit {
    WriteOperand barrier;
    Expr arrivals;
};
/// Arrives, and has the phase expect so many bytes.
struct MbarrierExpectTx {
    ReadOperand barrier;
    Expr bytes;
};
/// Until the phase of that parity has ended.
struct MbarrierWait {
    ReadOperand barrier;
    Expr parity;
};
struct MbarrierArrive {
    ReadOperand barrier;
};
/// At the same barrier of the cluster's block of that rank.
struct MbarrierArriveAt {
    ReadOperand barrier;
    Expr rank;
};
/// Makes the barriers known to the cluster and to asynchronous copies.
struct FenceMbarrierInit {};
/// Orders accesses of threads with those that go another way to memory: boxes, matrices by descriptors.
struct FenceProxyAsync {};
/// Named barriers of a block, each for so many threads: one waits for the others, or goes on at once.
struct BarrierSync {
    Expr id, threads;
};
struct BarrierArrive {
    Expr id, threads;
};
struct ClusterArrive {};
struct ClusterWait {};

// Boxes of tensors (TMA).

struct PrefetchTensorMap {
    MapOperand map;
};
/// A box of a tensor to shared memory, or of an im2col map a column of pixels; its bytes are counted at the barrier.
struct TmaLoad {
    AddressOperand to;
    MapOperand map;
    std::vector<Expr> coordinates;  ///< of the box's first element, innermost first
    ReadOperand barrier;
    Expr ranks = {};                 ///< if defined, it goes to all blocks of the cluster whose bits are set
    Expr first_rank = {};            ///< by which `ranks` is shifted; 0 if undefined
    std::vector<Expr> offsets = {};  ///< of an im2col map's pixels from their base pixels, in the order w, h, d
};
/// A box of shared memory to a tensor.
struct TmaStore {
    MapOperand map;
    std::vector<Expr> coordinates;
    AddressOperand from;
    bool adds = false;  ///< to the elements that are there
};
struct TmaStoreCommit {};
/// Until shared memory that all but the last groups of stores read may be written again.
struct TmaStoreWaitRead {
    int64_t pending = 0;
};

// Copies of threads that go on meanwhile (cp.async).

struct CpAsync {
    int64_t width;  ///< elements
    WriteOperand to;
    ReadOperand from;
    Expr there = {};  ///< if defined: zeros are stored where it does not hold
};
struct CpAsyncCommit {};
/// Until all but so many groups have landed.
struct CpAsyncWait {
    int64_t pending = 0;
};

// Matrices: see Atom for the parts that threads have.

/// 8 x 8 matrices of 16 bits each from shared memory, a lane's address is that of a row.
struct LdMatrix {
    int64_t matrices;
    bool transposed;
    WriteOperand to;
    ReadOperand row;
};
struct StMatrix {
    int64_t matrices;
    bool transposed;
    WriteOperand row;
    ReadOperand from;
};
/// Words of two elements that neighbouring lanes have, as many as they are: lane i gets word i of each, in their order.
struct TransposeLanes {
    int64_t lanes;
    WriteOperand elements;
};
/// sums += a * b, or -= where it is negative, which no product of integers is; by a warp.
struct Mma {
    const Atom* atom;
    WriteOperand sums;
    ReadOperand a, b;
    bool negative = false;
};
/// The same by a warpgroup, while its threads go on.
struct Wgmma {
    const Atom* atom;
    WriteOperand sums;
    std::variant<MatrixOperand, ReadOperand> a;  ///< in shared memory, or in registers as PackRegisters makes them
    MatrixOperand b;
    Expr accumulates;                                    ///< where it does not hold: sums = a * b
    std::optional<std::array<bool, 2>> transposed = {};  ///< a and b; of 16-bit types
    bool negative = false;

    /// The operands in shared memory.
    std::vector<const MatrixOperand*> matrices() const;
    bool takes_a_from_registers() const { return std::holds_alternative<ReadOperand>(a); }
};
/// Elements of 4 bytes together as one register each.
struct PackRegisters {
    WriteOperand words;
    ReadOperand elements;
};
/// Two neighbouring floats as elements of 1 byte each.
struct NarrowPair {
    WriteOperand to;
    ReadOperand from;
};
/// Orders writes of registers before instructions that use them.
struct WgmmaFence {};
struct WgmmaCommit {};
/// Until all but so many groups are done.
struct WgmmaWait {
    int64_t pending = 0;
};
/// For the compiler: here the registers are read and written.
struct WgmmaFenceOperand {
    WriteOperand registers;
};
/// For the compiler: the registers hold anything.
struct LeaveUndefined {
    WriteOperand registers;
};

// Tickets, of blocks that take iterations as they come.

/// ticket = first + counter; counter = (counter + 1) % tickets, as one action: after so many the counter is as it was.
struct TakeTicket {
    WriteOperand ticket, counter;
    Expr tickets, first;
};

// Shared memory.

/// The array begins to use its bytes, which others had before: for the emulator, they are unwritten again. Accesses of
/// those others are over in front of it, for all threads.
struct BeginArray {
    AddressOperand array;
    Expr bytes;
};

// Launches.

/// Registers of each thread of a role from here on (setmaxnreg).
struct SetMaxNReg {
    int64_t count;
    bool grows;
};
/// Until the launches before have ended (griddepcontrol.wait).
struct GriddepcontrolWait {};
/// The next launch may start (griddepcontrol.launch_dependents).
struct GriddepcontrolLaunchDependents {};

using Instruction =
    std::variant<MbarrierInit, MbarrierExpectTx, MbarrierWait, MbarrierArrive, MbarrierArriveAt, FenceMbarrierInit,
                 FenceProxyAsync, BarrierSync, BarrierArrive, ClusterArrive, ClusterWait, PrefetchTensorMap, TmaLoad,
                 TmaStore, TmaStoreCommit, TmaStoreWaitRead, CpAsync, CpAsyncCommit, CpAsyncWait, LdMatrix, StMatrix,
                 TransposeLanes, Mma, PackRegisters, NarrowPair, Wgmma, WgmmaFence, WgmmaCommit, WgmmaWait,
                 WgmmaFenceOperand, LeaveUndefined, TakeTicket, BeginArray, SetMaxNReg, GriddepcontrolWait,
                 GriddepcontrolLaunchDependents>;

/// One of these instructions.
template <class T, class... Ts>
concept OneOf = (std::same_as<T, Ts> || ...);

/// tw::function<parameters>(operands) of the device vocabulary; `entry` is its name there, which may say more.
struct VocabularyCall {
    std::string entry, function;
    std::vector<int64_t> parameters;
};
VocabularyCall vocabulary_call(const Instruction& instruction);

/// What a machine must have to run it (say &Target::has_tma); nullptr of what every one has.
bool Target::*needed_by(const Instruction& instruction);

/// "mbarrier_wait(&full[stage], phase)"
std::string to_string(const Instruction& instruction);

/// In the order of the call.
std::vector<Operand> operands(const Instruction& instruction);
Instruction with_operands(const Instruction& instruction, const std::vector<Operand>& operands);
/// Each operand replaced.
Instruction map_operands(const Instruction& instruction, const std::function<Operand(const Operand&)>& rule);

void visit_exprs(const Instruction& instruction, const std::function<void(const Expr&)>& see);
Instruction map_exprs(const Instruction& instruction, const std::function<Expr(const Expr&)>& rule);
/// The places of its operands, without maps.
void visit_places(const Instruction& instruction, const std::function<void(const Access&)>& see);
Instruction map_places(const Instruction& instruction, const std::function<Access(const Access&)>& rule);

}  // namespace tw::codegen
