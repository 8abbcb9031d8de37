// How one op is executed by a thread: which of its loops are unrolled together, and along which one it moves vectors.
#pragma once
#include <string>
#include <vector>

#include "codegen/placement.h"
#include "codegen/preload.h"
#include "codegen/tile_ir.h"

namespace tw::codegen {

/// The op over physical accesses. All loops together visit the op's iterations, each element's in the op's own order.
struct OpTile {
    std::vector<OpLoop> outer;  ///< outermost first
    std::vector<OpLoop> tile;   ///< inside of those, unrolled together
    std::vector<ThreadStore> stores;
    std::vector<Expr> conditions;  ///< all must hold for the stores to be made
    int64_t store_width = 1;       ///< elements along `wide_variable` that one store writes
    Expr wide_variable;

    bool single() const { return stores.size() == 1; }
    std::vector<PreloadOperand> operands() const { return preload_operands(stores); }
    /// Conditions on the tile's own loops.
    bool has_inner_conditions() const;
    void replace(const Expr& variable, const Expr& value);
};

OpTile shape_tile(const TileOp& op, const Placement& placement, std::vector<std::string>& notes);

}  // namespace tw::codegen
