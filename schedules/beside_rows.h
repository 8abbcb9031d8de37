// Single elements of products that are read beside reductions of their rows.
#pragma once
#include <vector>

#include "dsl/tensor.h"

namespace tw::schedules {

enum class BesideRows {
    OwnProducts,  ///< what the product sums for that element
    PartsOfRows,  ///< a reduction of the row, which takes one of its elements
};

/// The same outputs, where elements of the product that a row's number is made of, as z[i, label[i]], are tensors of
/// their own, NAME_beside:
///
///     loss[i] = total[i] - z[i, label[i]]        loss_beside[i] = sum_k x[i, k] * w[label[i], k]                or
///                                                loss_beside[i] = sum_j select(j == label[i], z[i, j], 0)
///
/// Tensors as they were where there are none.
std::vector<Tensor> beside_rows(const std::vector<Tensor>& outputs, const Tensor& product, BesideRows as);

}  // namespace tw::schedules
