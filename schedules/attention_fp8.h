// Attention of operands of 8 bits (flash attention 3; Shah et al. 2024): products of e4m3 summed in f32, with a scale
// for each head. What the exponentials give is rounded to e4m3 too, 2^8 times as large, which leaves small ones more
// bits.
#pragma once
#include <optional>
#include <string>

#include "schedules/attention.h"

namespace tw::schedules {

/// o[b, i, h, e] = sum_j softmax_j(s)[i, j] v[b, j, g, e] scale_v[b, g] in bf16, with s = q[b, i, h, :] k[b, j, g, :]'
/// scale_q[b, h] scale_k[b, g] / sqrt(depth) and g = h / group, and lse[b, h, i], the logarithm to base 2 of the sum
/// that the softmax divides by. q, k and v are e4m3, of the shapes of AttentionShape, whose type does not count; scales
/// are f32, scale_q [batch, heads], the others [batch, heads / group]. v_t is v with keys side by side, as the tensor
/// cores want them, in the order of interleaved_pairs, in which exponentials are in registers. Each member is a
/// computation or an input; rows and keys are filled up to whole tiles, of which o is copied, if it is not o_tiles
/// itself.
struct Fp8Attention {
    Tensor q, k, v, scale_q, scale_k, scale_v, v_t, q_tiles, k_tiles, s, m, p, l, o_tiles, o, lse;
};

struct Fp8Tiles {
    int64_t rows = 128;  ///< of a block, 64 a warpgroup
    int64_t keys = 128;  ///< of a step, a multiple of 32
    int stages = 2;      ///< of keys and values
};
/// Each operand and result once.
double bytes_of_fp8(const AttentionShape& shape);
Fp8Tiles fp8_tiles(const AttentionShape& shape, const Target& target);

/// Throws Error if heads are no multiple of the group, or depth or width are no multiples of 32 up to 256: what a row
/// of a tile of 8 bits must be.
Fp8Attention declare_fp8_attention(const AttentionShape& shape, const Fp8Tiles& tiles, TW_HERE);
/// For sm_90a: a kernel that turns v, and one with warpgroup products, scores and their exponentials in registers,
/// loads by a warp of its own. Outputs are o and lse.
Schedule fp8_attention_schedule(const Fp8Attention& attention, const AttentionShape& shape, const Fp8Tiles& tiles,
                                const Target& target, TW_HERE);

struct NamedFp8Attention {
    AttentionShape shape;
    std::optional<Fp8Tiles> tiles = {};  ///< if the name tells them
};
/// Reads "attention_e4m3_BATCHxHEADSxROWSxDEPTH", then any of _keys4096 (else as many as rows), _width64 (else depth),
/// _group4, _causal, and _tile128x128s2 (rows, keys, stages). Nothing if it is no such name.
std::optional<NamedFp8Attention> parse_fp8_attention(const std::string& name);

}  // namespace tw::schedules
