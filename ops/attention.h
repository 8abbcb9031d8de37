// Scaled dot-product attention as a call between tensors.
//
//   nn::Tensor qkv = nn::reshape(projection(x), {batch, rows, 3, heads, depth});
//   auto part = [&](int64_t n) { return nn::reshape(nn::slice(qkv, 2, n, n + 1), {batch, rows, heads, depth}); };
//   nn::Tensor o = nn::attention(part(0), part(1), part(2), {.causal = true});
#pragma once
#include "ops/operator.h"

namespace tw::nn {

struct AttentionOptions {
    bool causal = false;  ///< row i sees keys up to i + keys - rows: the last one sees all
};

/// softmax(q k' / sqrt(depth)) v of each head by itself: q [batch, rows, heads, depth], k [batch, keys, heads of keys,
/// depth], v [batch, keys, heads of keys, width] -> [batch, rows, heads, width]. Heads are a multiple of those of keys:
/// neighbours share one (grouped-query attention). All of one type: f32, bf16 or f16; sums, scores and their softmax
/// are f32.
///
/// In a step as one graph this is one kernel that keeps no scores, its gradients are kernels that make them again
/// (flash attention; Dao et al. 2022), where operands have 16 bits, as declared or by mixed precision, heads a multiple
/// of 8 elements up to 256, and the GPU is sm_90a. Else, and called by itself, each stage of the formula is a kernel.
/// Throws Error with all three where shapes or types do not fit, or causal rows are more than keys.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options = {}, TW_HERE);

}  // namespace tw::nn
