#include "ops/modules/multi_head_attention.h"

#include "ops/views.h"
#include "support/error.h"

namespace tw::nn {
namespace {

/// The heads of keys.
int64_t checked_heads(int64_t width, int64_t heads, int64_t heads_of_keys, std::source_location where) {
    if (heads_of_keys == 0) heads_of_keys = heads;
    user_check(width > 0 && heads > 0 && heads_of_keys > 0 && width % heads == 0 && heads % heads_of_keys == 0, where,
               "MultiHeadAttention: a width of {}, {} heads, {} of keys; give heads that divide the width, and heads "
               "of keys that divide the heads",
               width, heads, heads_of_keys);
    return heads_of_keys;
}

}  // namespace

MultiHeadAttention::MultiHeadAttention(const std::shared_ptr<Backend>& backend, int64_t width, int64_t heads,
                                       uint64_t seed, const MultiHeadAttentionOptions& options,
                                       std::source_location where)
    : width_(width),
      heads_(heads),
      heads_of_keys_(checked_heads(width, heads, options.heads_of_keys, where)),
      causal_(options.causal),
      qkv_(register_module("qkv", Linear(backend, width, width + 2 * heads_of_keys_ * (width / heads), 2 * seed))),
      out_(register_module("out", Linear(backend, width, width, 2 * seed + 1))) {}

Tensor MultiHeadAttention::operator()(const Tensor& x, std::source_location where) const {
    user_check(x.shape().size() == 3 && x.shape()[2] == width_, where,
               "MultiHeadAttention: x is {}; give [batch, length, {}]", shape_text(x.shape()), width_);
    const Scope here = scope();
    const int64_t heads = heads_ + 2 * heads_of_keys_;
    const Tensor all = reshape(qkv_(x, where), {x.shape()[0], x.shape()[1], heads, width_ / heads_}, where);
    const auto part = [&](int64_t begin, int64_t end) { return slice(all, 2, begin, end, where); };
    const Tensor q = part(0, heads_), k = part(heads_, heads_ + heads_of_keys_),
                 v = part(heads - heads_of_keys_, heads);
    return out_(reshape(attention(q, k, v, {.causal = causal_}, where), x.shape(), where), where);
}

}  // namespace tw::nn
