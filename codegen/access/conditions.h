// Conditions as lists of conjuncts.
#pragma once
#include <optional>
#include <vector>

#include "dsl/expr.h"

namespace tw::codegen {

/// The simplified parts of a && b && ..., without those that always hold.
std::vector<Expr> conjuncts_of(const Expr& condition);

/// true if one condition is the other, up to affine rewriting: i + 1 <= n and i < n.
bool same_condition(const Expr& a, const Expr& b);

/// true if one condition holds wherever the other does, up to affine rewriting: i + 1 < n where i + 2 < n.
bool follows_from(const Expr& condition, const Expr& known);
/// true if it holds wherever all of these do, shown by one of them or two: j < n where j <= i and i < n.
bool follows_from_all(const Expr& condition, const std::vector<Expr>& known);

/// The largest value for which a comparison of the variable with a constant holds, if it is such a one.
std::optional<int64_t> largest_allowed(const Expr& condition, const Expr& variable);

/// While `variable` runs over `width` values from a multiple of `width` on: the condition at the first of them, if all
/// of them decide alike, {} otherwise. (x + v < n, with x and n multiples of the width, is x < n.)
Expr uniform_over(const Expr& condition, const Expr& variable, int64_t width);

/// The condition that it holds for all of `width` values of `variable` from 0 on; {} where that is not one comparison.
Expr all_over(const Expr& condition, const Expr& variable, int64_t width);

}  // namespace tw::codegen
