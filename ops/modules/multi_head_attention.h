// Self-attention of several heads with its projections.
#pragma once
#include <memory>

#include "ops/attention.h"
#include "ops/layers.h"

namespace tw::nn {

struct MultiHeadAttentionOptions {
    bool causal = false;
    int64_t heads_of_keys = 0;  ///< neighbouring heads share one of keys and values; 0: as many as heads
};

/// out(attention(q, k, v)) of x [batch, length, width] -> the same shape, f32: `qkv` is one Linear to the heads of q,
/// then those of k, then those of v, each width / heads wide; `out` one from width to width. Throws Error unless heads
/// divide the width and heads of keys the heads, and with its shape if x does not fit.
class MultiHeadAttention : public Module {
public:
    MultiHeadAttention(const std::shared_ptr<Backend>& backend, int64_t width, int64_t heads, uint64_t seed,
                       const MultiHeadAttentionOptions& options = {}, TW_HERE);
    Tensor operator()(const Tensor& x, TW_HERE) const;

private:
    int64_t width_, heads_, heads_of_keys_;
    bool causal_;
    Linear qkv_, out_;
};

}  // namespace tw::nn
