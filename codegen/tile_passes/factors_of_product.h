// What the products that matrix instructions compute are made of.
#pragma once
#include <vector>

#include "codegen/tile_ir/tile_ir.h"

namespace tw::codegen {

/// Elements of rows, and of columns, that an update multiplies, and adds to its sums or subtracts from them.
struct ProductOfLoads {
    const Load *rows, *columns;
    bool negative = false;
};

/// The products that the update adds one after another: `column` is a variable of its columns. Their loads are the
/// update's.
std::vector<ProductOfLoads> factors_of_products(const TileOp& update, const Atom& atom, const Expr& column);

}  // namespace tw::codegen
