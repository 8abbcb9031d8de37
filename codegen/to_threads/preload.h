// Operands of an unrolled tile, read from memory once.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "codegen/thread_ir/thread_ir.h"
#include "codegen/tile_ir/tile_ir.h"

namespace tw::codegen {

inline constexpr int64_t most_preloaded_elements = 64;  ///< registers of a thread that operands of one tile may take

/// A read of shared or global memory in the stores' values: a load, or select(guard, load, fallback), of flags also
/// guard && load.
struct PreloadOperand {
    Expr expr;  ///< what stands in the values
    Access access;
    Expr guard;  ///< undefined for a plain load
    Expr fallback;

    bool depends_on(const Expr& variable) const { return contains(expr, variable); }
    /// The elements along `loop` that one access can read.
    int64_t width_along(const OpLoop& loop) const;
};

/// The reads that may be made before the stores: not lazily guarded, unless they are `ahead` of choices, and not of
/// what the stores write.
std::vector<PreloadOperand> preload_operands(const std::vector<ThreadStore>& stores, bool ahead = false);

/// A store of plain elements of memory to registers, `tile` unrolled, by wide loads into these registers; false if it
/// is none, or elements of no use together.
bool load_directly(const ThreadStore& store, const std::vector<OpLoop>& tile, int step, std::vector<ThreadStmt>& stmts);

/// What the iterations of an unrolled loop read, in front of it.
struct LoadedAhead {
    std::vector<ThreadStmt> arrays, loads;
};

/// Reads operands into register arrays before the unrolled loops of `tile`, where that saves accesses: each element
/// once, neighbours together. The loads are appended to `stmts`, but to `early` those that differ along `ahead`, a loop
/// unrolled around the tile, of which each iteration then has its own arrays. The result are the stores over the
/// arrays.
///
///     unroll i < 8, j < 8            a_values[8] = as[k][8 * ti ...], two times 4 wide
///       acc[i][j] += as[k][...] *    b_values[8] = bs[k][8 * tj ...]
///                    bs[k][...]      unroll i < 8, j < 8
///                                      acc[i][j] += a_values[i] * b_values[j]
std::vector<ThreadStore> preload(const std::vector<ThreadStore>& stores, const std::vector<PreloadOperand>& operands,
                                 const std::vector<OpLoop>& tile, const std::optional<OpLoop>& ahead, int step,
                                 LoadedAhead& early, std::vector<ThreadStmt>& stmts);

}  // namespace tw::codegen
