// Masks of registers that change by what memory holds, as choices.
#pragma once
#include "codegen/to_threads/op_tile.h"

namespace tw::codegen {

/// Conditions on the tile's loops become choices of the stores' values, and of what these read: without branches, the
/// reads of all iterations can be made at once, and each but once, in front of them. An element whose conditions fail
/// keeps its value. Leaves the tile as it is where a read's condition cannot be told without the loops that the read
/// does not depend on, and where the registers of an element that is left out do not exist.
///
///     unroll i < 4, j < 4                     unroll i < 4, j < 4
///       if (row + i < 50 && column + j < 9)     c[i][j] = select(row + i < 50 && column + j < 9,
///         c[i][j] += s[i][j] * scale[row + i]            c[i][j] + s[i][j] * select(row + i < 50 && column < 9,
///                                                                                   scale[row + i], 0), c[i][j])
void choose_inside(OpTile& tile);

}  // namespace tw::codegen
