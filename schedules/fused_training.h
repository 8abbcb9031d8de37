// What a training step computes between and around its products, each in one declaration: scheduled by rule alone.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "schedules/array_operators.h"
#include "schedules/catalog.h"

namespace tw::schedules {

/// Matrices are bf16 [rows, columns] where nothing else is said, statistics of rows and gradients of weights f32.

/// r = x + y, and n = gain (r - mean) scale + bias of these; mean and scale, the reciprocal root of the variance, are
/// saved. Outputs: r, n, mean, scale.
Declared residual_layernorm(int64_t rows, int64_t columns);
/// dx = the adjoint of r by n, plus dr, which came past the norm; dgain and dbias, sums over all rows.
Declared layernorm_backward(int64_t rows, int64_t columns);
/// The same of n = gain r scale, scale being the reciprocal root of the mean square. Outputs: dx, dgain.
Declared rmsnorm_backward(int64_t rows, int64_t columns);
/// y = dropout(gelu(x + bias)), a tenth left out by `seed`, u32 [1].
Declared gelu_dropout(int64_t rows, int64_t columns);
/// dx of that, and dbias, the sum of dx over all rows.
Declared gelu_dropout_backward(int64_t rows, int64_t columns);
/// loss[i] = log sum_k exp(logits[i, k]) - logits[i, label[i]], f32, labels i64, and dlogits, the gradient of the mean
/// loss.
Declared cross_entropy_both(int64_t rows, int64_t columns);
/// y[p, j] = table[ids[p], j] + places[p % length, j], ids i32.
Declared embedding_with_places(int64_t positions, int64_t words, int64_t width, int64_t length);
/// dtable and dplaces of that.
Declared embedding_with_places_backward(int64_t positions, int64_t words, int64_t width, int64_t length);
/// adamw() of g times clip, f32 [1], and p rounded to bf16, p_bf16.
Declared adamw_clipped(int64_t count);
/// pre = x w' + bias and y = gelu(pre); w is [n, k], x [m, k].
Declared linear_gelu(int64_t m, int64_t n, int64_t k);
/// y = x w' + bias + residual.
Declared linear_residual(int64_t m, int64_t n, int64_t k);
/// dpre = (dy w) gelu'(pre), dy [m, k], w [k, n], and dbias, the sum of dpre over all rows.
Declared linear_gelu_backward(int64_t m, int64_t n, int64_t k);
/// dw = dw_before + dy' h, f32 [n, k]; dy is [m, n], h [m, k].
Declared weight_gradient(int64_t n, int64_t k, int64_t m);

struct FusedKernel {
    std::string name;  ///< "layernorm_backward"
    std::string description;
    size_t rank;  ///< extents in a name
    Declared (*declare)(const std::vector<int64_t>& extents);
    double flops;  ///< for each point of the extents
};
const std::vector<FusedKernel>& fused_kernels();

/// Reads "fused_layernorm_backward_32768x768"; nothing if it is no such name.
std::optional<CatalogEntry> fused_entry(const std::string& name);

}  // namespace tw::schedules
