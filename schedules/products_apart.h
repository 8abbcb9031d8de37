// Sums of products that stand in one expression, as tensors of their own, so that each is a product of matrices.
#pragma once
#include <vector>

#include "schedules/redeclared.h"

namespace tw::schedules {

/// Of elements that are made of several sums, one of them at least a product that tensor cores can make, or one of
/// large matrices that threads make in tiles, and of a sum of such products that have no accumulation together
/// (unit_product), which is taken as a sum for each, here of bf16 and of f16:
///
///     gates[b, g] = sum_k x[b, k] * w[g, k] + sum_l h[b, l] * r[g, l] + bias[g]
///     c[i, j] = sum_k (a_bf16[i, k] * b_bf16[k, j] - a_f16[i, k] * b_f16[k, j])
///
/// Those that have one, though they are written as several sums over as many terms, are one sum. All but one product
/// become tensors in front, over those axes that they depend on; what is left is made behind the last product. What
/// multiplies all terms of a product, a sign, a constant or a scalar parameter, stands behind its sum. The order in
/// which f32 is added changes; the declared sums of each product keep theirs.
Redeclared products_apart(const std::vector<Tensor>& outputs);

}  // namespace tw::schedules
