// What is computed over whole arrays: elementwise, reductions along columns or over everything, gathers.
#pragma once
#include "schedules/declared.h"

namespace tw::schedules {

Declared column_sum(const Tensor& x);    ///< y[j] = sum_k x[k, j], accumulated in f32, of x's type
Declared full_sum(const Tensor& x);      ///< the f32 sum of x [n], a scalar
Declared dot(int64_t count, Type type);  ///< sum_k a[k] b[k] in f32, a scalar
Declared transpose(const Tensor& x);     ///< y[i, j] = x[j, i]
Declared gelu_bias(const Tensor& x);     ///< y[i, j] = gelu(x[i, j] + bias[j]), bias of x's type
/// y[i, j] = x[i, j] / 0.9, or 0 for a tenth of the elements; seed: u32 [1].
Declared dropout(const Tensor& x);
/// y[p, j] = table[ids[p], j], `ids` i32 [positions] within the table.
Declared embedding(int64_t positions, int64_t words, int64_t width, Type type);
/// gradient[w, j] = sum over the positions p with ids[p] == w of y_gradient[p, j], in f32, in the order of positions.
Declared embedding_gradient(int64_t positions, int64_t words, int64_t width, Type type);
/// One AdamW step (Loshchilov, Hutter 2019) over flat arrays of `count` f32: p, m and v are overwritten. Scalars: lr,
/// beta1, beta2, eps, decay, and the bias corrections correction1 = 1 / (1 - beta1^t), correction2 = 1 / (1 - beta2^t).
Declared adamw(int64_t count);

}  // namespace tw::schedules
