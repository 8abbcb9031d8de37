// What is known of a tile whose elements lanes hold as accumulators of matrix instructions, to whoever stores it.
#pragma once
#include "codegen/to_threads/op_tile.h"

namespace tw::codegen {

constexpr int64_t matrix_side = 8, lanes_of_warp = 32;  // rows of a matrix and elements of a row

/// Simplified.
Expr replaced(const Expr& e, const Substitution& values);
Access replaced(Access access, const Substitution& values);
bool mentions(const Access& access, const Expr& variable);

/// Whether the op's threads are whole warps, whose lanes hold parts of accumulators and go the same way through its
/// loops.
bool runs_in_whole_warps(const TileOp& op);
/// Whether the place is known without what lanes have in registers.
bool is_place_of_fragment(const TileOp& op, const Access& place);
/// Whether all lanes of a warp decide the condition alike, as far as it depends on the thread's index itself.
bool same_in_warp(const TileOp& op, const Expr& condition);

bool loads(const Expr& e, const Buffer& buffer);
bool loads(const Expr& e, Memory memory);

/// The elements of those loops, the fastest last, as `place` counts them, computed into `out`.
ThreadStmt computed(const std::vector<OpLoop>& loops, const Buffer& out, const Expr& value, int step);

}  // namespace tw::codegen
