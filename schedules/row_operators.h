// What is computed along rows: f32 arithmetic on elements of any floating type.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "dsl/tensor.h"

namespace tw::schedules {

/// Outputs over the rows of x [rows, columns]; `k` runs along a row, gains and floating results have the type `result`.
using RowOperator = std::function<std::vector<Tensor>(const Tensor& x, const Axis& k, Type result)>;

std::vector<Tensor> row_sum(const Tensor& x, const Axis& k, Type result);  ///< y[i] = sum_k x[i, k]
std::vector<Tensor> softmax(const Tensor& x, const Axis& k,
                            Type result);  ///< y[i, j] = exp(x[i, j]) / sum_k exp(x[i, k])
/// y = (x - mean) / sqrt(variance + 1e-5) along rows, both moments in one pass.
std::vector<Tensor> standardise(const Tensor& x, const Axis& k, Type result);
/// y = (x - mean) * rsqrt(variance + 1e-5) * gain[j] + bias[j], the variance from the centred row.
std::vector<Tensor> layernorm(const Tensor& x, const Axis& k, Type result);
std::vector<Tensor> rmsnorm(const Tensor& x, const Axis& k,
                            Type result);  ///< y = x * rsqrt(mean of squares + 1e-5) * gain[j]
/// The largest value of each row, f32, and the first place where it stands, i64.
std::vector<Tensor> row_argmax(const Tensor& x, const Axis& k, Type result);
/// The same in two passes over the row, its largest value and then the first place of that: for rows in registers.
std::vector<Tensor> row_argmax_of_kept(const Tensor& x, const Axis& k, Type result);
std::vector<Tensor> row_moments(const Tensor& x, const Axis& k, Type result);  ///< mean and variance of each row, f32
/// The cosine of each row and an input query [columns] of the type `result`; 0 where either is zero.
std::vector<Tensor> similarity(const Tensor& x, const Axis& k, Type result);

/// dx of softmax, of its result y and of dy: y * (dy - sum_k y dy).
std::vector<Tensor> softmax_gradient(const Tensor& y, const Axis& k, Type result);
/// dx of layernorm, of x, dy, gain, and what the forward pass saved of each row, f32: mean, and scale, the reciprocal
/// root of the variance.
std::vector<Tensor> layernorm_gradient(const Tensor& x, const Axis& k, Type result);
/// dx of rmsnorm, of x, dy, gain and scale [rows], f32, the reciprocal root of the mean square.
std::vector<Tensor> rmsnorm_gradient(const Tensor& x, const Axis& k, Type result);
/// loss[i] = log sum_k exp(x[i, k]) - x[i, label[i]], f32. labels: i64 [rows], columns of x.
std::vector<Tensor> cross_entropy(const Tensor& x, const Axis& k, Type result);
/// dx of cross_entropy, of x, label, its losses and dloss, f32 [rows].
std::vector<Tensor> cross_entropy_gradient(const Tensor& x, const Axis& k, Type result);

const std::map<std::string, RowOperator>& row_operators();

/// The same elements as a stage of their own, which a schedule can keep in registers as they are stored.
Tensor kept_rows(const Tensor& stored);

}  // namespace tw::schedules
