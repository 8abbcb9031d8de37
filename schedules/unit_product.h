// Products that tensor cores can make, whatever their tensors are called and whatever is made of the sums.
#pragma once
#include <optional>
#include <vector>

#include "schedules/tensor_product.h"

namespace tw::schedules {

/// c[.., i, j] is made of sum_k a[.., i, k] * b[.., k, j], each operand stored in any layout.
struct UnitProduct {
    Tensor c, a, b;
    TensorProductShape shape;  ///< its extents, types and layouts; the dimensions around are its batch
};

/// The only reduction that the element holds; nullptr if there is none, or several.
const Reduce* only_reduction(const Expr& body);

/// The product that the tensor makes of its only sum, if that is over one axis, its factors are elements of types that
/// tensor cores multiply, and its extents are constants that fill an instruction.
std::optional<UnitProduct> unit_product(const Tensor& c);

/// The same where one side has so few rows or columns that threads read the other operand as fast as memory gives it.
std::optional<UnitProduct> thin_product(const Tensor& c);

/// Tilings to try, the best first.
std::vector<ProductTiling> tilings_of(const UnitProduct& product, const Target& target);

}  // namespace tw::schedules
