// Products of two matrices, and other reductions of what two matrices have, that threads sum.
#pragma once
#include <optional>

#include "schedules/product.h"

namespace tw::schedules {

/// The matrices of sum_k a * b, or of any reduction of terms f(a, b), over the last two axes of a tensor, and of
/// matrices for each element of the axes before; and what is known of their extents and layouts.
struct MatrixFactors {
    Tensor a, b;
    ProductShape shape;
    bool is_plain = true;  ///< sums of products of two elements, of one matrix
};

/// Nothing for a tensor that is made otherwise, and where there are too few rows, columns or terms for tiles.
std::optional<MatrixFactors> matrix_factors(const Tensor& c);

}  // namespace tw::schedules
