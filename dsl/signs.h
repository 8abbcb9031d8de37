// What is known of the value of a float expression, whatever its variables are.
#pragma once
#include "dsl/expr.h"

namespace tw {

/// Whether the expression is the constant infinity or -infinity.
bool is_infinite(const Expr& expr);
/// Whether the expression is greater than 0 unless it is NaN or too small for its type.
bool is_positive(const Expr& expr);
/// Whether the expression is infinity, or -infinity if the sign is negative, for all finite values of what is no
/// constant in it.
bool is_infinity(const Expr& expr, int sign);
/// Whether the expression is 0 for all finite values of what is no constant in it: exp2(-infinity * c - x) * v.
bool vanishes(const Expr& expr);
/// Whether the update of an accumulator leaves it as it is: a sum of what vanishes, a maximum of -infinity.
bool leaves_as_it_is(const Expr& update, const Expr& accumulator);

}  // namespace tw
