// Attention of sequences of many lengths, packed one behind another without padding ("varlen", by cu_seqlens): rows see
// the keys of their own sequence, and tiles of rows go through the keys that any of their rows sees, and no others.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "dsl/host_array.h"
#include "schedules/attention.h"

namespace tw::schedules {

/// q is [rows, heads, depth], k [keys, heads / group, depth], v [keys, heads / group, width], all of `type`: rows and
/// keys of all sequences, in their order.
struct VarlenShape {
    int64_t rows, keys, heads, depth, width;
    int64_t group = 1;  ///< heads that share a head of keys and values
    Type type = bf16;   ///< or f16
};

/// Where sequences begin, and behind the last one its end: as many numbers as sequences and one more, from 0 on, none
/// less than the one before. Sequences may be empty.
using Offsets = std::vector<int64_t>;

/// Whose tiles: of rows, which go through keys, or, in the gradients of keys, of keys, which go through rows.
enum class TilesOf { Rows, Keys };
constexpr int64_t rows_of_box = 4;  ///< whose numbers, f32, are 16 bytes, at which boxes begin
/// Which keys rows see: what a launch is given beside q, k and v. A tile is so many rows side by side, of any
/// sequences. Of tiles of keys: which rows see them, and the first is a multiple of rows_of_box, if it does not see the
/// tile itself.
struct VarlenTables {
    HostArray tiles;  ///< i32 [tiles, 2]: the first key that a tile sees, and how many from there on
    HostArray seen;   ///< i32 [rows, 2]: of each row the first key that it sees, and behind the last, counted from the
                      ///< first of its tile
};
/// Causal: the last row of a sequence sees all of its keys, each row before one fewer. `of_tile`: rows of a tile, or
/// keys. Throws Error if offsets are none or of different numbers of sequences, or tiles have no elements.
VarlenTables varlen_tables(const Offsets& of_rows, const Offsets& of_keys, bool causal, int64_t of_tile,
                           TilesOf side = TilesOf::Rows, TW_HERE);
/// The same tables as computations, of inputs of_rows and of_keys, i32 [sequences + 1], that hold offsets: for layers
/// whose tables are made where the offsets are.
struct VarlenTableTensors {
    Tensor range, first, behind;  ///< of rows the keys, and of tiles the first and behind the last
    Tensor tiles, seen;           ///< of keys: named tiles_of_keys and seen_of_keys
};
VarlenTableTensors declare_varlen_tables(int64_t sequences, int64_t rows, int64_t keys, bool causal, int64_t of_tile,
                                         TilesOf side = TilesOf::Rows, TW_HERE);
Schedule varlen_tables_schedule(const VarlenTableTensors& tables, const Target& target, TW_HERE);
/// Products and sums of both products of matrices that rows and keys of the sequences need.
double varlen_flops(const VarlenShape& shape, const Offsets& of_rows, const Offsets& of_keys, bool causal);

/// o[i, h, e] = sum_j softmax_j(q[i, h, :] k[j, h / group, :]' / sqrt(depth)) v[j, h / group, e] over the keys that row
/// i sees, and lse[h, i], the logarithm to base 2 of the sum that the softmax divides by. A row that sees no key has o
/// = 0 and lse = -infinity, in any schedule. Values of keys that only other rows of the tile see count 0 times: they
/// are finite. Each member is a computation.
struct VarlenAttention {
    Tensor q, k, v, tiles, seen, k_tile, v_tile, s, m, p, l, o, lse;
};

struct VarlenTiles {
    int64_t rows = 128;  ///< of a block, 64 a warpgroup
    int64_t keys = 128;  ///< of a step
    int stages = 2;      ///< of keys and values
    int64_t heads = 1;   ///< whose blocks run side by side, the last rows first; divides the heads
};
VarlenTiles varlen_tiles(const VarlenShape& shape);
/// Tiles and steps are part of it: a tile goes through whole steps. Throws Error if heads are no multiple of the group,
/// a size of shape or tiles is not positive, or the type is another.
VarlenAttention declare_varlen_attention(const VarlenShape& shape, const VarlenTiles& tiles, TW_HERE);
/// Throws Error if a size is not positive, heads are no multiple of the group, or the type is none of bf16 and f16.
void check_varlen(const VarlenShape& shape, TW_HERE);
/// For sm_90a: as attention_schedule, with as many steps for each tile as its keys need.
Schedule varlen_schedule(const VarlenAttention& attention, const VarlenShape& shape, const VarlenTiles& tiles,
                         const Target& target, TW_HERE);

struct NamedVarlen {
    VarlenShape shape;
    std::optional<VarlenTiles> tiles;  ///< if the name tells them
};
struct NamedVarlenTables {
    int64_t sequences, rows, keys;
    bool causal;
    int64_t of_tile;
    TilesOf side;
};
/// Reads "attention_varlen_bf16_ROWSxHEADSxDEPTH" (or f16), then any of _keys4096 (else as many as rows), _width64
/// (else depth), _group4, and _tile128x128s2, with "h4" for four heads side by side. Nothing if it is no such name.
std::optional<NamedVarlen> parse_varlen(const std::string& name);
/// Reads "attention_varlen_tables_SEQUENCESxROWS", then any of _keys4096, _causal, _of_keys, and _tile128, the
/// rows of a tile, or its keys: else as many as varlen_tiles, or varlen_gradient_tiles, gives them.
std::optional<NamedVarlenTables> parse_varlen_tables(const std::string& name);

}  // namespace tw::schedules
