// What matrix instructions do not do for a sum of products: messages that say what to change.
#pragma once
#include <vector>

#include "codegen/tile_passes/factors_of_product.h"
#include "dsl/cite.h"

namespace tw::codegen {

/// Throws Error if the update still has a mask, saying what would do without: zeros in copies of its operands.
void refuse_mask(const TileOp& update, const Atom& atom, const std::vector<ProductOfLoads>& products,
                 const CiteStep& cite);

/// Throws Error: of several products that have one sum, some has its rows in registers.
[[noreturn]] void refuse_rows_in_registers(const TileOp& update, const Atom& atom,
                                           const std::vector<ProductOfLoads>& products, const CiteStep& cite);

}  // namespace tw::codegen
