#pragma once
// Parts of masks that selects make superfluous: where j <= i leaves out what is behind the diagonal, and rows end at n,
// nobody need ask for j < n.
#include <functional>
#include <vector>

#include "codegen/tile_ir/tile_ir.h"

namespace tw::codegen {

/// The op that makes the registers that the load reads for all elements, whatever its mask says, in front of the reader
/// and in the same iterations; null if there is no such one.
using MakerOf = std::function<const TileOp*(const Load& load)>;
/// Whether what the load reads in the kernel's own memory has been stored where `part` does not hold, too.
using IsStored = std::function<bool(const Load& load, const Expr& part)>;

/// Whether the op, of one store, leaves its accumulator as it is where `part` of its mask does not hold, but all of
/// `held` do: a select in what it is made of takes a value there that counts nothing, -infinity in a maximum. What
/// selects hide is taken to be finite.
bool counts_nothing(const TileOp& op, const Expr& part, const std::vector<Expr>& held, const MakerOf& maker_of,
                    const IsStored& is_stored);

/// Whether what the op stores is 0 there.
bool is_zero_without(const TileOp& op, const Expr& part, const std::vector<Expr>& held, const MakerOf& maker_of,
                     const IsStored& is_stored);

}  // namespace tw::codegen
