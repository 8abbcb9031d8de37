// The ends of what an index runs over.
#pragma once
#include "dsl/expr.h"

namespace tw {

/// The largest, or the smallest, value of an index expression, as an expression of sizes: each axis at its end by the
/// sign of its coefficient. Exact for affine indices; non-affine parts keep their own bounds.
Expr extreme_of(const Expr& index, bool largest);

}  // namespace tw
