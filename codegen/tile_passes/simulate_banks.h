// Shared memory's banks, as the hardware serves a warp.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "codegen/access/layout.h"
#include "codegen/tile_ir/tile_ir.h"
#include "dsl/target.h"

namespace tw::codegen {

/// Wavefronts that one access of a warp takes: `starts` are byte addresses, one a lane, of `bytes` each. A wavefront
/// serves one word of each bank, to all lanes that want it. 8 bytes a lane are served in two halves of the warp, 16 in
/// four quarters; two halves, or two quarters of a half, become one if all lanes i and i ^ 1, or all i and i ^ 2, want
/// the same (measured on an H200).
int wavefronts(const std::vector<int64_t>& starts, int64_t bytes, const Target& target);

/// One access of a shared buffer by an op: what the lanes of the first warps touch, in the buffer's own indices.
struct SharedAccess {
    std::vector<Expr> indices;
    std::vector<OpLoop> unrolled;  ///< unrolled loops that the indices mention: candidates for wide access
    int64_t results = 1;           ///< registers that the unrolled loops of its op fill
    double times = 1;              ///< executions of the whole loop nest, one an element
    /// A warp's lanes each: the indices where the unrolled loops are at 0.
    std::vector<std::vector<std::vector<int64_t>>> warps;
};
std::vector<SharedAccess> shared_accesses(const TileKernel& kernel, const Buffer& buffer, const Target& target);

/// Wavefronts of all executions of the access under a layout, and a little for each instruction. Half as much again
/// where a wide access brings what only later iterations of an outer unrolled loop ask for, and a thread has no room
/// left beside its results: with 64 to 128 sums, products took up to 25 % longer so (docs/performance.md).
double cost_of(const SharedAccess& access, const Buffer& buffer, const Layout& layout, const Target& target);

/// An integer expression's value; empty if it reads memory or a variable without a value.
struct VariableValue {
    const ExprNode* variable;
    int64_t value;
};
std::optional<int64_t> evaluate_index(const Expr& expr, const std::vector<VariableValue>& values);

}  // namespace tw::codegen
