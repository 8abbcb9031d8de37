// How large values of float expressions can be.
#pragma once
#include "dsl/expr.h"

namespace tw {

/// A bound of the expression's magnitude, in real numbers, over all values of its indices and of what it reads:
/// infinity where nothing shows one. Elements of tensors and scalars of float types have none. What is -infinity, a
/// mask, does not count.
double largest_magnitude(const Expr& expr);

}  // namespace tw
