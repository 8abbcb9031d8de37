#include "schedules/table_data.h"

#include <algorithm>
#include <random>

#include "schedules/varlen_tables.h"

namespace tw::schedules {
namespace {

/// Where so many sequences begin, and the end: some of them may be empty.
Offsets random_offsets(std::mt19937_64& random, int64_t sequences, int64_t total) {
    Offsets offsets{0, total};
    for (int64_t b = 1; b < sequences; ++b)
        offsets.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(total + 1)));
    std::ranges::sort(offsets);
    return offsets;
}

void set_table(Bindings& bindings, const std::string& name, const HostArray& table) {
    if (bindings.inputs.contains(name)) bindings.inputs.at(name) = table;
}

void set_tables(Bindings& bindings, const VarlenTables& tables, const std::string& suffix) {
    set_table(bindings, "tiles" + suffix, tables.tiles);
    set_table(bindings, "seen" + suffix, tables.seen);
    set_table(bindings, "places" + suffix, tables.places);
}

HostArray array_of(const Offsets& offsets) {
    HostArray array = host_array(i32, {static_cast<int64_t>(offsets.size())});
    for (size_t b = 0; b < offsets.size(); ++b) array.set({static_cast<int64_t>(b)}, make_value(i32, offsets[b]));
    return array;
}

constexpr int64_t usual_length = 100;  // of a sequence or a document

int64_t usual_count(int64_t elements) { return std::clamp<int64_t>(elements / usual_length, 1, 64); }

}  // namespace

void draw_varlen_tables(Bindings& bindings, const PackedSizes& sizes, uint64_t seed) {
    std::mt19937_64 random(seed);
    const int64_t sequences = usual_count(std::min(sizes.rows, sizes.keys));
    const Offsets of_rows = random_offsets(random, sequences, sizes.rows),
                  of_keys = sizes.rows == sizes.keys ? of_rows : random_offsets(random, sequences, sizes.keys);
    set_tables(bindings, varlen_tables(of_rows, of_keys, true, sizes.tile_rows), "");
    if (bindings.inputs.contains("tiles_of_keys"))
        set_tables(bindings, varlen_tables(of_rows, of_keys, true, sizes.tile_keys, TilesOf::Keys), "_of_keys");
}

void draw_offsets(Bindings& bindings, int64_t sequences, int64_t rows, int64_t keys, uint64_t seed) {
    std::mt19937_64 random(seed);
    set_table(bindings, "of_rows", array_of(random_offsets(random, sequences, rows)));
    set_table(bindings, "of_keys", array_of(random_offsets(random, sequences, keys)));
}

void draw_ranges(Bindings& bindings, const AttentionShape& shape, const ScoreRule& rule, int64_t of_tile,
                 uint64_t seed) {
    std::mt19937_64 random(seed);
    if (const auto found = bindings.inputs.find("documents"); found != bindings.inputs.end()) {
        HostArray& numbers = found->second;
        for (int64_t b = 0; b < numbers.shape[0]; ++b) {
            const Offsets offsets = random_offsets(random, usual_count(numbers.shape[1]), numbers.shape[1]);
            for (size_t n = 0; n + 1 < offsets.size(); ++n)
                for (int64_t i = offsets[n]; i < offsets[n + 1]; ++i)
                    numbers.set({b, i}, make_value(i32, static_cast<int64_t>(n)));
        }
    }
    if (bindings.inputs.contains("ranges"))
        set_table(bindings, "ranges", interpret_plain({declare_key_ranges(shape, rule, of_tile).ranges}, bindings)[0]);
}

}  // namespace tw::schedules
