// What a product that a matrix instruction computes is made of.
#pragma once
#include <array>

#include "codegen/tile_ir/tile_ir.h"

namespace tw::codegen {

/// The elements of rows, then those of columns, that the update multiplies: `column` is a variable of its columns.
std::array<const Load*, 2> factors_of_product(const TileOp& update, const Atom& atom, const Expr& column);

}  // namespace tw::codegen
