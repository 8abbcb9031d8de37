// Blocks of a cluster that have the same box of a tensor: who loads which part of it, and who gets it.
#pragma once
#include <vector>

#include "codegen/access/access.h"
#include "codegen/tile_ir/tile_ir.h"

namespace tw::codegen {

/// This block, and those of its cluster that differ from it in some coordinates only.
///
///     a cluster of 2 x 4 blocks, rank = row * 4 + column
///     along {column}: 4 blocks, ranks 0b1111 from row * 4 on
///     along {row}:    2 blocks, ranks 0b10001 from column on
class BlockGroup {
public:
    /// `along`: variables of the kernel's cluster coordinates.
    BlockGroup(const TileKernel& kernel, const std::vector<Expr>& along);

    int blocks() const { return blocks_; }
    /// The place of this block among those of the group.
    Expr place() const;
    /// In the cluster, of the block at a place.
    Expr rank_of(const Expr& place) const;
    /// The least rank among them; the others' as bits of a number from there on.
    Expr first_rank() const;
    int64_t ranks() const;

private:
    std::vector<ClusterCoordinate> inside_, outside_;  // slowest first
    int blocks_ = 1;
};

}  // namespace tw::codegen
