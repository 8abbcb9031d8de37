// Products that tensor cores can make, whatever their tensors are called and whatever is made of the sums.
#pragma once
#include <array>
#include <optional>
#include <vector>

#include "schedules/tensor_product.h"

namespace tw::schedules {

/// Neighbouring dimensions of a tensor that the kernel takes as one (Schedule::join_axes).
struct JoinedAxes {
    Tensor tensor;
    int first, last;
};

/// c[.., i, j] is made of sum_k a[.., i, k] * b[.., k, j], each operand stored in any layout. Rows may come in blocks,
/// each of which has a matrix of its own: experts, blocks of sparse matrices, diagonals of blocks,
///
///     c[i, j] = sum_k a[i, k] * b[expert[i / 128], k, j]
///
/// are a batch of products that lie one under another in c. Or several products of one type over the same terms, added
/// or subtracted,
///
///     c[i, j] = sum_k (a[i, k] * b[k, j] - d[i, k] * e[k, j])
///
/// have one sum, each with rows and columns of its own: its tiles are those of a product of as many more terms.
struct UnitProduct {
    Tensor c, a, b;
    TensorProductShape shape =
        {};  ///< its extents, types and layouts; the dimensions around, and blocks, are its batch
    std::vector<std::array<Tensor, 2>> more = {};  ///< rows and columns of the products behind the first
    int64_t rows_of_matrix = 0;                    ///< in a block; 0 if all rows have the same b
    int64_t terms_of_block = 0;           ///< that lie side by side, where an operand does not end behind them; else 0
    std::vector<JoinedAxes> joined = {};  ///< before all other steps
};

/// The only reduction that the element holds; nullptr if there is none, or several.
const Reduce* only_reduction(const Expr& body);

/// About how many instructions make the element: of numbers, not of places, and not of its reductions.
double instructions_besides_sums(const Expr& body);

/// The product that the tensor makes of its only sum, if that is over one axis, its factors are elements of types that
/// tensor cores multiply, and its extents are constants that fill an instruction.
std::optional<UnitProduct> unit_product(const Tensor& c);

/// The same where one side has so few rows or columns that threads read the other operand as fast as memory gives it.
std::optional<UnitProduct> thin_product(const Tensor& c);

/// The product whose rows, or columns, are those of several dimensions, that lie one behind the other in the result and
/// in the operand, an input, as they have one matrix,
///
///     y[b, t, j] = sum_k x[b, t, k] * w[j, k]
///     z[n, o, p, q] = sum_c w[o, c] * x[n, c, p, q]
///
/// of (b, t) rows, of (p, q) columns; nothing where rows have one dimension, of a multiple of 256, and columns, too.
std::optional<UnitProduct> product_of_joined_axes(const Tensor& c);

/// How many rows in turn have a matrix of their own, of a tensor that is such a product; else 0.
int64_t rows_of_matrix(const Tensor& c);

/// Tilings to try, the best first.
std::vector<ProductTiling> tilings_of(const UnitProduct& product, const Target& target);

}  // namespace tw::schedules
