// Sizes and indices stay within 64 bits: what a declaration may ask for.
#pragma once
#include <cstdint>
#include <source_location>
#include <string>
#include <vector>

#include "dsl/expr.h"

namespace tw {

/// The most iterations that a loop may have: splits round up to a multiple within 64 bits.
inline constexpr int64_t most_iterations = int64_t{1} << 62;

/// "[m, 64]"
std::string shape_text(const std::vector<Expr>& shape);

/// Refuses a tensor whose last byte lies beyond 2^63 even where all named sizes are as small as they may be. `strides`
/// in elements; none: dense.
void check_bytes(const std::string& what, const std::vector<Expr>& shape, const std::vector<Expr>& strides, Type type,
                 std::source_location where);

/// Refuses an expression with an index that leaves 64 bits on the way to its value, likewise.
void check_indices(const std::string& what, const Expr& expr, std::source_location where);

}  // namespace tw
