// Products of two elements with factors in front that all terms of a sum have.
#pragma once
#include <optional>

#include "dsl/expr.h"

namespace tw {

/// scale * a * b, where a and b hold an element each. `scale` is undefined if there is none.
struct ScaledProduct {
    Expr scale, a, b;
    Expr product() const { return binary(BinaryOp::Mul, a, b); }
};
/// The product of two elements that a term is, whatever it is negated, multiplied or divided by that holds no element
/// and no index: constants and scalar parameters. As real numbers the same; a factor in front of a sum is rounded once.
std::optional<ScaledProduct> scaled_product(const Expr& term);

/// What is subtracted from or added to the accumulator, itself on its left or right, by fma or not; undefined if the
/// update is something else.
Expr term_added(const Expr& update, const Expr& accumulator);

}  // namespace tw
