// Copies from global to shared memory by the tensor memory accelerator: boxes of a tensor, asked for by one thread.
#pragma once
#include <string>
#include <vector>

#include "codegen/bindings.h"
#include "codegen/tile_ir.h"

namespace tw::codegen {

/// A box of a tensor into a buffer, in terms of the tensor's dimensions, outermost first.
struct BoxCopy {
    Buffer tensor;
    std::vector<Expr> first;      ///< index of the box's first element
    std::vector<int64_t> extents; ///< elements along each dimension
    size_t rows = 0;              ///< the dimension that is not the innermost and has more than one element
};

/// Why the copy is none, or "".
std::string why_not_tma(const TileKernel& kernel, const TileOp& copy, const Target& target);

/// Decides which fills of shared memory the accelerator makes: those that asked for it, and, in pipelined loops of an
/// sm_90 target, those of matrix instructions' operands where it is legal. Notes say why not.
TileKernel choose_tma(const TileKernel& kernel, const Target& target, const CiteStep& cite);

/// The calls that one thread makes for a Tma op, `at` giving expressions their values in an iteration; each is counted at
/// the barrier of `stage`.
std::vector<TileOp> tma_calls(TileKernel& kernel, const TileOp& copy, const Buffer& barriers, const Buffer& versions,
                              const Expr& stage);
/// Bytes of one execution.
int64_t tma_bytes(const TileOp& copy);

}  // namespace tw::codegen
