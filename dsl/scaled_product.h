// Products of two elements, and sums of such, with factors in front that all terms of a sum have.
#pragma once
#include <optional>
#include <vector>

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

/// a * b, or what is subtracted.
struct SignedProduct {
    Expr a, b;
    bool negative = false;
};
/// scale * (product +- product ...), the first of them positive. `scale` is undefined if there is none.
struct SumOfProducts {
    Expr scale;
    std::vector<SignedProduct> products;  ///< at least one
    Expr term() const;                    ///< without the scale
};
/// The products of two elements that a term is the sum of, in their order but for one that is positive, which comes
/// first; by fma or not, and without `besides`, which may be a summand. What multiplies them must be the same for all.
std::optional<SumOfProducts> sum_of_products(const Expr& term, const Expr& besides = {});

}  // namespace tw
