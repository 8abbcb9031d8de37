#pragma once
// Which elements of a buffer an op stores to, and how often.
#include <optional>
#include <vector>

#include "codegen/tile_ir/tile_ir.h"
#include "dsl/simplify.h"

namespace tw::codegen {

/// The extents of the box of elements from 0 on that the op stores to, each once; nothing if it is none, or if the mask
/// keeps the op from storing beside the buffer.
std::optional<std::vector<int64_t>> box_stored(const TileOp& op, const StoreTo& store);

/// Whether an element's iterations agree on the mask, so that none stores a zero over another's value.
bool masks_whole_elements(const TileOp& op, const StoreTo& store);

/// Whether the element tells which iteration of the loop stores it: no two have the same value of an index that
/// mentions it.
bool is_told_by(const Expr& variable, const TileOp& op, const StoreTo& store);

/// Loops of the op that are digits of the index, from the element of memory that it says: q and r of q * 2 + r.
Substitution digits_of(const Expr& index, const Expr& element, const TileOp& op);

/// Whether a thread stores to each element of a buffer of its own once.
bool stores_all_private(const TileOp& op, const StoreTo& store);

/// How often a thread runs the op in one run of it; loops of unknown extents count once.
int64_t runs_of(const TileOp& op);

/// Whether steps of these loops read elements of global memory that the mask of what loads them chooses.
bool chooses_loads(const TileOp& op, const std::vector<Expr>& loops_around);

/// The term, if the store adds one to what is there.
std::optional<Expr> added_term(const StoreTo& store);

/// Whether indices are shown to lie below these extents.
bool in_bounds(const std::vector<Expr>& indices, const std::vector<int64_t>& extents);

}  // namespace tw::codegen
