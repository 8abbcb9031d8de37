#pragma once
// Whether what one op asks of an element has been asked by the op that made it.
#include <set>
#include <vector>

#include "codegen/tile_ir/tile_ir.h"

namespace tw::codegen {

/// 4 * t + v < 48 is 4 * t < 48 for all v < 4: such parts need not be asked in every iteration of the op's loops.
Expr with_uniform_parts(const TileOp& op, const Expr& mask);

/// An op and the variables of the loops around it.
struct OpInLoops {
    const TileOp& op;
    const std::vector<Expr>& around;
};

/// The fill's loops and indices, from the element that the load reads.
Substitution to_reader(const TileOp& fill, const StoreTo& store, const Load& load);

/// Whether the mask of `fill`, which makes what `load` reads, has a part that tells the part `asked` of the reader's
/// mask: where that is false, the element has not been stored. `relied` gets the part's place among the conjuncts of
/// the fill's mask, unless the value itself is a choice that makes it zero there. Of a fill in another part of a loop
/// (TileOp::iteration), in the iteration of which the reader is; if there is none, nobody asks.
bool is_masked_by(const OpInLoops& fill, const StoreTo& store, const OpInLoops& reader, const Load& load,
                  const Expr& asked, std::set<size_t>& relied);

/// The op, with what its threads ask alike as one part of its mask each.
TileOp with_uniform_masks(const TileOp& op);
Expr zero_of(Type type);

}  // namespace tw::codegen
