// Computations that no rule of schedules/ knows by name, each declared as a user would, of any sizes.
//
// computations_test.cpp runs them on the emulator, kernels.cpp names them at large sizes for `bench/compare.py
// unknown`.
#pragma once
#include <cstdint>
#include <vector>

#include "dsl/tensor.h"

namespace tw::unknown {

// Products, and what is like them.

/// d[i, j] = sum_k (a[i, k] - b[j, k])^2
std::vector<Tensor> squared_distances(int64_t m, int64_t n, int64_t k);
/// c[i, j] = min_k a[i, k] + b[k, j]: a step of all shortest paths
std::vector<Tensor> shortest_paths(int64_t m, int64_t n, int64_t k);
/// Real and imaginary part of a[m, k] b[k, n], each in a tensor of its own; bf16.
std::vector<Tensor> complex_product(int64_t m, int64_t n, int64_t k);
/// c[i, j] = a_i . b_j / (|a_i| |b_j|), of all pairs of rows of bf16
std::vector<Tensor> similarity_matrix(int64_t m, int64_t n, int64_t k);
/// y[b, i, l] = sum_kj x[b, i, k] v[b, k, j] w[b, j, l], bf16
std::vector<Tensor> chain_of_three(int64_t batch, int64_t i, int64_t k, int64_t j, int64_t l);
/// y[b, i, o] = sum_kr x[b, i, k] down[r, k] up[o, r], bf16: of few r
std::vector<Tensor> low_rank(int64_t batch, int64_t i, int64_t k, int64_t r, int64_t o);
/// x[m, k] times w[n, k], whose elements are two a byte, less 8, times a scale for each `group` of them; bf16
std::vector<Tensor> four_bit_product(int64_t m, int64_t n, int64_t k, int64_t group);
/// Blocks of block x block, `stored` in each row of blocks, at columns that data say, times x[k, n]; bf16
std::vector<Tensor> block_sparse_product(int64_t rows_of_blocks, int64_t stored, int64_t block, int64_t k, int64_t n);
/// h and c behind a step, of x[batch, inputs], and of h and c [batch, hidden] before; products of bf16
std::vector<Tensor> lstm_cell(int64_t batch, int64_t inputs, int64_t hidden);

// Products of what lies, or is made, in other ways, and columns among rows.

/// relu of a[m, k] times b[n, k] transposed and a bias, bf16, for extents that no access divides
std::vector<Tensor> odd_product(int64_t m, int64_t n, int64_t k);
/// a[rows, columns] times its transpose, bf16
std::vector<Tensor> gram_matrix(int64_t rows, int64_t columns);
/// The same of the channels of images [n, c, h, w], over their pixels
std::vector<Tensor> gram_of_channels(int64_t images, int64_t channels, int64_t height, int64_t width);
/// Of the columns of x[samples, variables], f32
std::vector<Tensor> covariance(int64_t samples, int64_t variables);
/// x[m, k] of bf16 times w[n, k] of i8, times a scale for each column
std::vector<Tensor> eight_bit_product(int64_t m, int64_t n, int64_t k);
/// Rows that tokens choose of a table, times w[n, k]; bf16
std::vector<Tensor> gathered_product(int64_t tokens, int64_t words, int64_t k, int64_t n);
/// Rows that are chosen of x, in blocks of 128 times the matrix of an expert each; bf16
std::vector<Tensor> gathered_experts(int64_t blocks, int64_t experts, int64_t k, int64_t n);
/// x[batch, rows, k] times w[n, k] with a bias, of few rows; bf16
std::vector<Tensor> few_rows_each(int64_t batch, int64_t rows, int64_t k, int64_t n);
/// w[made, channels] times the channels of images [n, c, h, w]; bf16
std::vector<Tensor> mixed_channels(int64_t images, int64_t channels, int64_t height, int64_t width, int64_t made);
/// y[i, j] = sum_pq x[i, p] v[p, q] w[q, j], in one sum; f32
std::vector<Tensor> three_matrices(int64_t i, int64_t k, int64_t l, int64_t j);
/// Softmax and mean along the dimension in the middle; bf16
std::vector<Tensor> softmax_between(int64_t groups, int64_t rows, int64_t columns);
/// Of x[images, channels, height, width]: less the mean of its pixel's channels, by their deviation, a gain and a bias
/// for each channel; the mean, too.
std::vector<Tensor> norm_of_channels(int64_t images, int64_t channels, int64_t height, int64_t width);
std::vector<Tensor> means_between(int64_t groups, int64_t rows, int64_t columns);
/// Of x[series, times, channels]: what each channel has come to; f32
std::vector<Tensor> sums_along_time(int64_t series, int64_t times, int64_t channels);
/// How many of the numbers are 0, 1, ..
std::vector<Tensor> histogram(int64_t numbers, int64_t bins);
/// The largest element of each segment of rows, whose number each row has; f32
std::vector<Tensor> largest_of_segments(int64_t rows, int64_t segments, int64_t columns);

/// (x + its transpose) / 2, of n x n, f32
std::vector<Tensor> symmetric_part(int64_t n);
/// y[i] = sum_j w[j] exp(-(q[i] - p[j])^2), f32
std::vector<Tensor> gaussian_sums(int64_t queries, int64_t points);

// Rows.

/// The mean of a row's elements within [low, high] of the row
std::vector<Tensor> mean_within(int64_t rows, int64_t columns);
/// The mean of a row's elements without the smallest and the largest
std::vector<Tensor> mean_without_extremes(int64_t rows, int64_t columns);
/// a_i . b_i / (|a_i| |b_i|)
std::vector<Tensor> cosines(int64_t rows, int64_t columns);
/// The best expert of each token, its score, and its weight in the softmax
std::vector<Tensor> best_expert(int64_t tokens, int64_t experts);
/// i8 of x / scale, where each `group` of a row's elements has the scale that takes its largest magnitude to 127
std::vector<Tensor> quantised_groups(int64_t rows, int64_t columns, int64_t group);
std::vector<Tensor> cumulative_sums(int64_t rows, int64_t columns);

// Windows.

/// log(sum(exp(x))) over 3 x 3 pixels, each second one, of images [n, h, w, c]
std::vector<Tensor> log_sum_exp_pooling(int64_t images, int64_t height, int64_t width, int64_t channels);
/// Four steps of u + (neighbours - 4 u) / 5, zero behind the edge
std::vector<Tensor> four_diffusion_steps(int64_t height, int64_t width);
/// Of the `window` times from t on: the variance of each channel of x[series, times, channels]
std::vector<Tensor> moving_variance(int64_t series, int64_t times, int64_t channels, int64_t window);

}  // namespace tw::unknown
