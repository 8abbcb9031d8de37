// Attention of sequences of many lengths, packed one behind another without padding ("varlen", by cu_seqlens): rows see
// the keys of their own sequence, and tiles of rows go through the keys that any of their rows sees, and no others.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "schedules/attention.h"
#include "schedules/varlen_tables.h"

namespace tw::schedules {

/// q is [rows, heads, depth], k [keys, heads / group, depth], v [keys, heads / group, width], all of `type`: rows and
/// keys of all sequences, in their order.
struct VarlenShape {
    int64_t rows, keys, heads, depth, width;
    int64_t group = 1;  ///< heads that share a head of keys and values
    Type type = bf16;   ///< or f16
};

/// Products and sums of both products of matrices that rows and keys of the sequences need.
double varlen_flops(const VarlenShape& shape, const Offsets& of_rows, const Offsets& of_keys, const SeenKeys& seen);

/// o[i, h, e] = sum_j softmax_j(q[i, h, :] k[j, h / group, :]' / sqrt(depth)) v[j, h / group, e] over the keys that row
/// i sees, and lse[h, i], the logarithm to base 2 of the sum that the softmax divides by. A row that sees no key has o
/// = 0 and lse = -infinity, in any schedule. Values of keys that only other rows of the tile see count 0 times: they
/// are finite. Each member is a computation.
struct VarlenAttention {
    Tensor q, k, v, tiles, seen, k_tile, v_tile, s, m, p, l, o, lse;
    SavedSoftmax softmax;                 ///< as of Attention
    std::vector<Tensor> results() const;  ///< as of Attention
    Tensor places;         ///< i32 [rows, numbers_of_place]: an input of the kernel if a rule asks for places
    Tensor w;              ///< what values are multiplied by: p, or what a rule makes of it
    AttentionRules rules;  ///< as declared
};

struct VarlenTiles {
    int64_t rows = 128;  ///< of a block, 64 a warpgroup
    int64_t keys = 128;  ///< of a step
    int stages = 2;      ///< of keys and values
    int64_t heads = 1;   ///< whose blocks run side by side, the last rows first; divides the heads
};
VarlenTiles varlen_tiles(const VarlenShape& shape);
/// Tiles and steps are part of it: a tile goes through whole steps. Rules are those of declare_attention, of places in
/// their sequences, i32: tables say what a row sees at all, and leave out tiles, so that a window is better made by
/// SeenKeys::window than by a rule, whose `skips` counts nothing here. Throws Error if heads are no multiple of the
/// group, a size of shape or tiles is not positive, the type is another, or sinks are not as declare_attention says.
VarlenAttention declare_varlen_attention(const VarlenShape& shape, const VarlenTiles& tiles,
                                         const AttentionRules& rules = {}, TW_HERE);
/// Throws Error if a size is not positive, heads are no multiple of the group, or the type is none of bf16 and f16.
void check_varlen(const VarlenShape& shape, TW_HERE);
/// For sm_90a: as attention_schedule, with as many steps for each tile as its keys need. Throws Error as
/// require_tiles_of_units.
Schedule varlen_schedule(const VarlenAttention& attention, const VarlenShape& shape, const VarlenTiles& tiles,
                         const Target& target, TW_HERE);

struct NamedVarlen {
    VarlenShape shape;
    std::string rules = {};            ///< as the name lists them
    std::optional<VarlenTiles> tiles;  ///< if the name tells them
};
/// Reads "attention_varlen_bf16_ROWSxHEADSxDEPTH" (or f16), then any of _keys4096 (else as many as rows), _width64
/// (else depth), _group4, rules (_softcap30, _softcap30a, _alibi, _window1024), _sinks, and _tile128x128s2, with "h4"
/// for four heads side by side. Nothing if it is no such name.
std::optional<NamedVarlen> parse_varlen(const std::string& name);

}  // namespace tw::schedules
