// Constants that a chain of sums and products of floats has, put together.
#pragma once
#include "dsl/expr.h"

namespace tw {

/// A float expression: rest * factor + offset, factor > 0.
struct ScaledExpr {
    Expr rest;
    double factor = 1, offset = 0;
    Expr value() const;
};
/// The expression, equal as real numbers, not in how it is rounded: factors and summands that are constants, unless they
/// are so large or small that digits would be lost or overflow, are one of each, and stand behind everything else, also behind a select whose other side is -infinity. Within what stands in
/// front of them, operands of functions and of sums and products without constants, they are put together as well. So
/// select(c, (x * 2 + 1) * 3, -infinity) is select(c, x, -infinity) * 6 + 3.
ScaledExpr take_constants(const Expr& expr);
/// The same as one expression.
Expr join_constants(const Expr& expr);

}  // namespace tw
