// Attention, found by what sums of weighted values read, whatever its tensors are called and however it is written.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "schedules/attention.h"

namespace tw::schedules {

/// A tensor that is softmax attention, as declare_attention() declares it of these.
struct FoundAttention {
    AttentionShape shape;
    int missing = 0;  ///< dimensions in front that o has not: of batches, of heads
    Tensor o;         ///< as given
    /// Another tensor that the largest score and the sum of a row are made into.
    struct OfRow {
        Tensor given;
        Expr made;               ///< of `top` and `sum`
        std::vector<Expr> axes;  ///< of the tensor, among those below
    };
    std::vector<OfRow> of_rows;
    std::vector<Tensor> operands;  ///< computed or inputs: what queries, keys, values and scores are read from
    std::vector<std::shared_ptr<const Operation>> inside;  ///< what stands between: nothing else reads it

    /// Over the expressions of what was found:
    std::vector<Expr> axes;  ///< batch, head, row, key, element of depth and of width; undefined where there is none
    Expr q, k, v;            ///< elements of operands
    Expr product, scale;     ///< sum of q k, as given, and what multiplies all its terms, if anything does
    Expr score;              ///< of the product; without the mask of causal ones
    Expr top, sum;           ///< the row's largest score, and the sum of exponentials of what others are below it
    double to_natural = 1;   ///< times a score: what exp() takes

    /// declare_attention() of these operands, and what of_rows are of its maxima and sums. `operands`: of the shapes
    /// and types of those that were found.
    Attention declare(const std::vector<Tensor>& operands) const;
};

/// o[.., i, e] = sum_j softmax_j(score[.., i, j]) v[.., j, e], scores being made of sum_d q[.., i, d] k[.., j, d] and
/// of anything that belongs to a row and a key: of one batch dimension, two or none, for rows in front of heads or
/// behind them, for heads that share keys. Divided before or behind the sum; maxima, exponentials to base e or 2,
/// weights, sums as tensors or inside of others; rounded to 16 bits in between, or not. Operands and result are bf16 or
/// f16 as check_attention() asks; there are 16 rows at least. Nothing for any other tensor, and where an output, or
/// anything else, reads scores or weights.
std::optional<FoundAttention> find_attention(const Tensor& o, const std::vector<Tensor>& outputs);

}  // namespace tw::schedules
