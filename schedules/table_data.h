// Random tables, as launches have them, for kernels that are asked for by name: in the place of random numbers, by
// which tiles would go through next to nothing.
#pragma once
#include <cstdint>

#include "dsl/interpret.h"
#include "schedules/tile_ranges.h"

namespace tw::schedules {

/// How many rows and keys all sequences have, and the tiles of them that tables are of.
struct PackedSizes {
    int64_t rows, keys, tile_rows, tile_keys;
};
/// Tables of causal sequences of any lengths, of those that `bindings` has inputs for: tiles, seen and places, and
/// those of keys.
void draw_varlen_tables(Bindings& bindings, const PackedSizes& sizes, uint64_t seed);
/// Offsets of so many sequences, of_rows and of_keys.
void draw_offsets(Bindings& bindings, int64_t sequences, int64_t rows, int64_t keys, uint64_t seed);
/// Numbers of documents, if there are such, each of neighbouring rows; then ranges of what the rule leaves tiles of so
/// many rows, if the bindings have such. Work of rows by keys.
void draw_ranges(Bindings& bindings, const AttentionShape& shape, const ScoreRule& rule, int64_t of_tile,
                 uint64_t seed);

}  // namespace tw::schedules
