// Sums of products that are scaled by blocks of terms, so that tensor cores make the sums of each block.
#pragma once
#include <vector>

#include "dsl/target.h"
#include "schedules/redeclared.h"

namespace tw::schedules {

/// Of a sum of products of two elements that tensor cores multiply, each times numbers that terms of a block share,
/// which belong to its rows, or to its columns:
///
///     c[i, j] = sum_k a[i, k] * b[j, k] * x[i, k / 128] * y[j / 128, k / 128]
///
/// as one sum, over one axis or over blocks and what is in them, as a sum of sums, or with stages for dequantised
/// elements of 4 bytes or for the sums of blocks. Those are a tensor, and what remains is its only reader:
///
///     c_product[q, i, j] = sum_l a[i, q * 128 + l] * b[j, q * 128 + l]
///     c[i, j] = sum_q c_product[q, i, j] * (x[i, q] * y[j / 128, q])
///
/// Scales of many rows that lie along terms are copied, rows side by side, where the model of time expects boxes to be
/// worth that. f32 is added in another order, and scaled once for each block.
Redeclared scaled_blocks(const std::vector<Tensor>& outputs, const Target& target);

}  // namespace tw::schedules
