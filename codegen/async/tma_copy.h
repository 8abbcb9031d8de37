// Copies between global and shared memory by the tensor memory accelerator: boxes of a tensor, asked for by one thread.
#pragma once
#include <vector>

#include "codegen/mapping/bindings.h"
#include "codegen/tile_ir/tile_ir.h"

namespace tw::codegen {

/// Decides which copies the accelerator makes (they become TmaCopy ops, their tensors get maps): those that asked for
/// it, and in pipelined loops for sm_90 and later fills of operands of instructions that read matrices by descriptors,
/// where it is legal. Notes say why not. Throws Error where a copy that asked for it cannot be one.
///
///     for k stages 4: a_s[i, j] = a[m0 + i, 64 * k + j]    for k stages 4: box of a at (m0, 64 * k) to a_s
///     c[m0 + i, n0 + j] = c_s[i, j]                        c_s to box of c at (m0, n0)
TileKernel choose_tma(const TileKernel& kernel, const Target& target, const CiteStep& cite);

/// Bytes that a TmaCopy moves, what lies outside of the tensor included.
int64_t tma_bytes(const TileOp& copy);

/// The calls that one thread makes for a TmaCopy into shared memory, and the mark of what is written, into version
/// `stage` of its buffer, counted at that element of `barriers`.
struct TmaRequest {
    std::vector<ThreadCall> calls;
    TileOp mark;
};
TmaRequest tma_request(const TileKernel& kernel, const TileOp& copy, const Buffer& versions, const Buffer& barriers,
                       const Expr& stage);
/// Of a TmaCopy out of shared memory, and the mark of what is read. The calls belong to no group yet.
TmaRequest tma_departure(const TileKernel& kernel, const TileOp& copy);

}  // namespace tw::codegen
