// Random numbers that depend on a counter and a key alone, and what is made of them.
#pragma once
#include <array>
#include <source_location>

#include "dsl/expr.h"

namespace tw {

/// Philox 4x32 of ten rounds (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): four u32, each as
/// good as random, of a counter and a key of u32. Throws Error if one is of another type.
std::array<Expr, 4> philox(const std::array<Expr, 4>& counter, const std::array<Expr, 2>& key,
                           std::source_location where = std::source_location::current());

/// Whether the element `index` stays, all but a share of `probability` of them: 0 <= probability < 1, in steps of
/// 2^-32. `seed`: u32. `index`: i64, at least 0, as an element's place in row-major order, so that a mask is the same
/// in any tiling, and in gradients. Neighbours 4 k to 4 k + 3 share a call of philox, with the counter k and the key
/// (seed, 0).
Expr is_kept(double probability, const Operand& seed, const Operand& index);
/// x * select(is_kept(..), 1 / (1 - probability), 0). x: f32 or f64, finite.
Expr dropout(const Operand& x, double probability, const Operand& seed, const Operand& index);

}  // namespace tw
