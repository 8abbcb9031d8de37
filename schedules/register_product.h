// Products whose sums another tensor alone reads, which takes them from the registers of the tile that has them.
#pragma once
#include <optional>
#include <vector>

#include "schedules/tensor_product.h"

namespace tw::schedules {

/// A product, the tensor that is made of its sums (`product.c`), and what models are to know of both.
struct RegisterProduct {
    TensorProduct product;
    TensorProductShape shape;
    int64_t columns_together = 1;  ///< that a tile has all of, or none
    int64_t terms_of_matrix = 0;   ///< of matrices that c adds; else 0
};

/// Of a product of tensor cores that is no output, and that one tensor alone reads, itself or through elements that are
/// inlined:
///
/// * at several columns of its own row, which come in turns of 8, or 16, 32 or 64, so that a thread has them all:
///
///       c[i, j] = silu(p[i, 16 * (j / 8) + j % 8]) * p[i, 16 * (j / 8) + j % 8 + 8]
///
/// * or in a sum of its matrices, each times elements that belong to its rows, or to its columns:
///
///       c[i, j] = sum_q p[q, i, j] * (x[q, i] * y[j / 128, q])
std::optional<RegisterProduct> register_product(const Tensor& sums, const std::vector<Tensor>& outputs);

/// What is multiplied, one behind the other.
std::vector<Expr> factors_of(const Expr& product);

/// Whether the tiles keep together what they have to: columns, and terms of a matrix.
bool suits(const ProductTiling& tiling, const RegisterProduct& product);

/// Tilings to try, the best first.
std::vector<ProductTiling> tilings_of(const RegisterProduct& product, const Target& target);
/// Whether one of them makes a kernel.
bool can_be_built(const RegisterProduct& product, const Target& target);

}  // namespace tw::schedules
