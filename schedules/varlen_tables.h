// Which keys rows of packed sequences see, as tables: made of the offsets of sequences on the host, or by a kernel.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "dsl/host_array.h"
#include "dsl/schedule.h"
#include "schedules/score_rules.h"

namespace tw::schedules {

/// Where sequences begin, and behind the last one its end: as many numbers as sequences and one more, from 0 on, none
/// less than the one before. Sequences may be empty.
using Offsets = std::vector<int64_t>;

/// Which keys of its sequence a row sees, by their distance from its position. The last row stands at the last key,
/// each row before at the key before.
struct SeenKeys {
    static constexpr int64_t all = int64_t{1} << 31;
    int64_t before = all;  ///< so many in front of its position
    int64_t behind = all;  ///< and behind it

    /// Those up to its position, or all.
    SeenKeys(bool causal) : behind(causal ? 0 : all) {}
    SeenKeys(int64_t before, int64_t behind) : before(before), behind(behind) {}
    /// Of the keys up to its position the last ones.
    static SeenKeys window(int64_t width) { return {width - 1, 0}; }
};

/// Whose tiles: of rows, which go through keys, or, in the gradients of keys, of keys, which go through rows.
enum class TilesOf { Rows, Keys };
constexpr int64_t rows_of_box = 4;  ///< whose numbers, f32, are 16 bytes, at which boxes begin
/// Which keys rows see: what a launch is given beside q, k and v. A tile is so many rows side by side, of any
/// sequences. Of tiles of keys: which rows see them, and the first is a multiple of rows_of_box, if it does not see the
/// tile itself.
struct VarlenTables {
    HostArray tiles;   ///< i32 [tiles, 2]: the first key that a tile sees, and how many from there on
    HostArray seen;    ///< i32 [rows, 2]: of each row the first key that it sees, and behind the last, counted from the
                       ///< first of its tile
    HostArray places;  ///< i32 [rows, 4], for rules that ask for places: see VarlenPlace
};
/// What `places` says of a row, or of a key: of which sequence it is, which of it, what makes the number of a key (of a
/// tile of keys: of a row) that is counted from the first of its tile one of its sequence, and how many keys more than
/// rows the sequence has.
enum class VarlenPlace { Sequence, Own, Other, MoreKeys };
constexpr int64_t numbers_of_place = 4;
/// `of_tile`: rows of a tile, or keys. Throws Error if offsets are none or of different numbers of sequences, tiles
/// have no elements, or rows see less than no keys around them.
VarlenTables varlen_tables(const Offsets& of_rows, const Offsets& of_keys, const SeenKeys& seen, int64_t of_tile,
                           TilesOf side = TilesOf::Rows, TW_HERE);
/// How many keys all rows see together.
double varlen_pairs(const Offsets& of_rows, const Offsets& of_keys, const SeenKeys& seen, TW_HERE);

/// The same tables as computations, of inputs of_rows and of_keys, i32 [sequences + 1], that hold offsets: for layers
/// whose tables are made where the offsets are.
struct VarlenTableTensors {
    Tensor range, first, behind;  ///< of rows the keys, and of tiles the first and behind the last
    Tensor tiles, seen, places;   ///< of keys: named tiles_of_keys, seen_of_keys and places_of_keys
};
VarlenTableTensors declare_varlen_tables(int64_t sequences, int64_t rows, int64_t keys, const SeenKeys& seen,
                                         int64_t of_tile, TilesOf side = TilesOf::Rows, TW_HERE);
/// Results tiles and seen, and places if they are asked for.
Schedule varlen_tables_schedule(const VarlenTableTensors& tables, const Target& target, bool with_places = false,
                                TW_HERE);

/// The place of row and key in their sequences, as rules of tiles of rows take it, from the table `places`: of row i,
/// and the key j counted from the first of its tile.
ScorePlace place_of_row(const Tensor& places, const Expr& head, const Expr& i, const Expr& j);
/// Of tiles of keys: of key j, and the row i counted from the first of its tile.
ScorePlace place_of_key(const Tensor& places_of_keys, const Expr& head, const Expr& i, const Expr& j);

struct NamedVarlenTables {
    int64_t sequences, rows, keys;
    SeenKeys seen;
    int64_t of_tile;
    TilesOf side;
    bool places;
};
/// Reads "attention_varlen_tables_SEQUENCESxROWS", then any of _keys4096, _causal or _window1024, _places (which is a
/// result more), _of_keys, and _tile128, the rows of a tile, or its keys: else as many as varlen_tiles, or
/// varlen_gradient_tiles, gives them.
std::optional<NamedVarlenTables> parse_varlen_tables(const std::string& name);

}  // namespace tw::schedules
