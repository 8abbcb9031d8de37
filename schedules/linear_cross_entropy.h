// Cross-entropy of a linear layer's results, and its gradients. Sums over the vocabulary are made of each tile of
// logits while it is in registers; logits are kept in two bytes, and their gradient takes their memory.
#pragma once
#include <optional>
#include <string>

#include "dsl/schedule.h"
#include "schedules/tensor_product.h"

namespace tw::schedules {

/// x is [rows, depth] and w [vocabulary, depth], of `type`.
struct LinearCrossEntropyShape {
    int64_t rows, depth, vocabulary;
    Type type = bf16;  ///< or f16

    bool operator==(const LinearCrossEntropyShape&) const = default;
    /// Products and sums of one of the three products: logits, dx and dw.
    double flops_of_product() const;
    /// Each operand and result once, of the forward pass and of the gradients.
    double bytes() const;
    double bytes_of_gradients() const;
};

/// scores[i, v] = sum_k x[i, k] w[v, k], rounded to the type; logits[i, v] are these, stored so. lse[i] is the
/// logarithm to base 2 of sum_v exp(logits[i, v]), and loss[i] = log sum_v exp(logits[i, v]) - logits[i, label[i]];
/// labels, i64 [rows], are places in the vocabulary. part[i, t], to base 2 too, is of the columns of one tile, of which
/// largest[i, t] is the greatest.
struct LinearCrossEntropy {
    Tensor x, w, label, scores, logits, largest, part, largest_part, lse, loss;
};
/// With tiles of so many columns. Throws Error if rows of x, w or logits are not whole pieces of 16 bytes.
LinearCrossEntropy declare_linear_cross_entropy(const LinearCrossEntropyShape& shape, int64_t columns, TW_HERE);

/// Given x, w, label, what the forward pass saved, logits and lse, and dloss = dL/dloss, f32 [rows]: dlogits, dx and
/// dw, the gradients of L, of the type.
struct LinearCrossEntropyGradients {
    Tensor x, w, label, logits, lse, dloss, dlogits, dx, dw;
    Tensor dw_before = {};  ///< f32, of parts
};
/// Throws as the above. With `parts`, the rows are one of several parts, which take turns in the same logits' memory:
/// dw is f32 then, and added to dw_before where the scalar `part`, i32, is not 0.
LinearCrossEntropyGradients declare_linear_cross_entropy_gradients(const LinearCrossEntropyShape& shape,
                                                                   bool parts = false);

/// Two groups in ping-pong, one of which makes sums of exponentials and stores while the other multiplies.
WarpgroupTiles linear_cross_entropy_tiles(const LinearCrossEntropyShape& shape);
/// For sm_90a. Outputs are loss, lse and logits, which leave by 64 columns.
Schedule linear_cross_entropy_schedule(const LinearCrossEntropyShape& shape, const WarpgroupTiles& tiles,
                                       const Target& target, TW_HERE);

struct LinearGradientTilings {
    ProductTiling dx, dw;
};
LinearGradientTilings linear_gradient_tilings(const LinearCrossEntropyShape& shape, bool parts, const Target& target);
/// Outputs are dx, dw and dlogits, which takes the memory of logits; dw with parts that of dw_before.
Schedule linear_cross_entropy_gradients_schedule(const LinearCrossEntropyShape& shape, bool parts,
                                                 const LinearGradientTilings& tilings, const Target& target, TW_HERE);

struct NamedLinearCrossEntropy {
    LinearCrossEntropyShape shape;
    bool gradients = false, parts = false;
};
/// Reads "linear_cross_entropy_bf16_ROWSxDEPTHxVOCABULARY" (or f16), "linear_cross_entropy_gradients_bf16_...", and
/// that with "_part" behind it, of a part of the rows. Depth and vocabulary are multiples of 8. Nothing if it is no
/// such name.
std::optional<NamedLinearCrossEntropy> parse_linear_cross_entropy(const std::string& name);

}  // namespace tw::schedules
