// Copies between global and shared memory by the tensor memory accelerator: boxes of a tensor, asked for by one thread.
#pragma once
#include <vector>

#include "codegen/mapping/bindings.h"
#include "codegen/tile_ir/tile_ir.h"

namespace tw::codegen {

/// Decides which copies the accelerator makes (they become TmaCopyOps, their tensors get maps): those that asked for
/// it, and in pipelined loops for sm_90 and later fills of operands of instructions that read matrices by descriptors,
/// where it is legal. Notes say why not. Throws Error where a copy that asked for it cannot be one.
///
///     for k stages 4: a_s[i, j] = a[m0 + i, 64 * k + j]    for k stages 4: box of a at (m0, 64 * k) to a_s
///     c[m0 + i, n0 + j] = c_s[i, j]                        c_s to box of c at (m0, n0)
TileKernel choose_tma(const TileKernel& kernel, const Target& target, const CiteStep& cite);

/// Bytes that a TmaCopyOp moves, what lies outside of the tensor included.
int64_t tma_bytes(const TileOp& copy);

/// The instructions of the one thread that asks for a TmaCopyOp into shared memory, and what is written, into stage
/// `stage` of its buffer, counted at that element of `barriers`.
struct TmaRequest {
    std::vector<Instruction> instructions;
    TileOp access;
};
TmaRequest tma_request(const TileKernel& kernel, const TileOp& copy, const Buffer& staged, const Buffer& barriers,
                       const Expr& stage);
/// The same for a TmaCopyOp out of shared memory, and what is read. The stores belong to no group yet.
TmaRequest tma_departure(const TileKernel& kernel, const TileOp& copy);

}  // namespace tw::codegen
