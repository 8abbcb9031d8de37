#include "schedules/attention_entries.h"

#include "schedules/attention.h"
#include "schedules/attention_backward.h"
#include "schedules/attention_decode.h"
#include "schedules/attention_fp8.h"
#include "schedules/attention_paged.h"
#include "schedules/ranged_gradients.h"
#include "schedules/table_data.h"
#include "schedules/varlen_gradients.h"

namespace tw::schedules {
namespace {

std::optional<CatalogEntry> attention_entry(const std::string& name) {
    auto named = parse_attention(name);
    if (!named) return {};
    return CatalogEntry{name, "o = softmax(q k' / sqrt(depth)) v, and the logarithms of its sums", named->shape.flops(),
                        [named = *named](const Target& target) {
                            const auto& [shape, rules, tiles] = named;
                            const AttentionRules of = rules_of(named);
                            if (is_decode(shape) && !tiles)
                                return decode_schedule(shape, decode_tiles(shape, target), target, of);
                            const Attention attention = declare_attention(shape, of.score, of.skips, {}, of.sinks);
                            return attention_schedule(
                                attention, shape, tiles ? *tiles : attention_tiles(attention, shape, target), target);
                        },
                        named->shape.bytes()};
}

std::optional<CatalogEntry> fp8_attention_entry(const std::string& name) {
    const auto named = parse_fp8_attention(name);
    if (!named) return {};
    return CatalogEntry{name, "attention of operands of 8 bits, with a scale for each head", named->shape.flops(),
                        [named = *named](const Target& target) {
                            const AttentionShape& shape = named.shape;
                            const Fp8Tiles tiles = named.tiles ? *named.tiles : fp8_tiles(shape, target);
                            return fp8_attention_schedule(declare_fp8_attention(shape, tiles), shape, tiles, target);
                        },
                        bytes_of_fp8(named->shape)};
}

/// What it computes depends on tables; with all keys for all rows it would be so much.
std::optional<CatalogEntry> attention_varlen_entry(const std::string& name) {
    if (const auto tables = parse_varlen_tables(name))
        return CatalogEntry{.name = name,
                            .description = "which keys the rows and tiles of packed sequences see, from offsets",
                            .make =
                                [tables](const Target& target) {
                                    const auto& [sequences, rows, keys, seen, of_tile, side, places] = *tables;
                                    return varlen_tables_schedule(
                                        declare_varlen_tables(sequences, rows, keys, seen, of_tile, side), target,
                                        places);
                                },
                            .give_tables =
                                [tables](Bindings& bindings, uint64_t seed) {
                                    draw_offsets(bindings, tables->sequences, tables->rows, tables->keys, seed);
                                }};
    if (const auto named = parse_varlen_gradients(name))
        return CatalogEntry{
            name,
            "dq, dk and dv of attention of packed sequences, from what the forward pass saved",
            varlen_gradients_flops(named->shape, {0, named->shape.rows}, {0, named->shape.keys}, false),
            [named = *named](const Target& target) {
                const GradientTiles tiles = named.tiles ? *named.tiles : varlen_gradient_tiles(named.shape, target);
                const AttentionRules rules = rules_of(named.rules, named.shape.heads);
                return varlen_gradients_schedule(declare_varlen_gradients(named.shape, tiles, {}, rules), named.shape,
                                                 tiles, target);
            },
            0,
            [named = *named](Bindings& bindings, uint64_t seed) {
                const auto& [shape, rules, tiles] = named;
                draw_varlen_tables(bindings,
                                   {shape.rows, shape.keys, tiles ? tiles->query_rows : varlen_tiles(shape).rows,
                                    tiles ? tiles->key_rows : GradientTiles().key_rows},
                                   seed);
            }};
    const auto named = parse_varlen(name);
    if (!named) return {};
    const VarlenShape& shape = named->shape;
    return CatalogEntry{name,
                        "attention of packed sequences of many lengths",
                        varlen_flops(shape, {0, shape.rows}, {0, shape.keys}, false),
                        [named = *named](const Target& target) {
                            const VarlenTiles tiles = named.tiles ? *named.tiles : varlen_tiles(named.shape);
                            const AttentionRules rules = rules_of(named.rules, named.shape.heads);
                            return varlen_schedule(declare_varlen_attention(named.shape, tiles, rules), named.shape,
                                                   tiles, target);
                        },
                        0,
                        [named = *named](Bindings& bindings, uint64_t seed) {
                            const auto& [shape, rules, tiles] = named;
                            const int64_t tile_rows = tiles ? tiles->rows : varlen_tiles(shape).rows;
                            draw_varlen_tables(bindings, {shape.rows, shape.keys, tile_rows, tile_rows}, seed);
                        }};
}

/// What it computes depends on tables; with all keys for all rows it would be so much.
std::optional<CatalogEntry> ranged_gradients_entry(const std::string& name) {
    const auto named = parse_ranged_gradients(name);
    if (!named) return {};
    const AttentionShape& shape = named->forward.shape;
    return CatalogEntry{name,
                        "dq, dk and dv of attention by tables of the keys that tiles of rows go through",
                        flops_of_gradients(shape),
                        [named = *named](const Target& target) {
                            const AttentionShape& shape = named.forward.shape;
                            const GradientTiles tiles =
                                named.tiles ? *named.tiles : ranged_gradient_tiles(shape, target);
                            return ranged_gradients_schedule(
                                declare_ranged_gradients(shape, tiles, rules_of(named.forward)), shape, tiles, target);
                        },
                        bytes_of_gradients(shape),
                        [named = *named](Bindings& bindings, uint64_t seed) {
                            const NamedAttention& of = named.forward;
                            draw_ranges(bindings, of.shape, rules_of(of).score,
                                        named.tiles ? named.tiles->query_rows : ranged_tiles(of.shape).rows, seed);
                        }};
}

/// Likewise.
std::optional<CatalogEntry> attention_ranged_entry(const std::string& name) {
    const auto named = parse_ranged(name);
    if (!named) return {};
    const NamedAttention& of = named->attention;
    auto give_tables = [of](Bindings& bindings, uint64_t seed) {
        draw_ranges(bindings, of.shape, rules_of(of).score, ranged_tiles(of.shape).rows, seed);
    };
    if (named->of_tables)
        return CatalogEntry{name,
                            "which keys tiles of rows go through, by what rules leave them",
                            0,
                            [of](const Target& target) {
                                const int64_t rows = ranged_tiles(of.shape).rows;
                                return key_ranges_schedule(declare_key_ranges(of.shape, rules_of(of).score, rows),
                                                           target);
                            },
                            0,
                            give_tables};
    return CatalogEntry{name,
                        "attention by tables of the keys that tiles of rows go through",
                        of.shape.flops(),
                        [of](const Target& target) {
                            const VarlenTiles tiles = ranged_tiles(of.shape);
                            return ranged_schedule(declare_ranged_attention(of.shape, tiles, rules_of(of)), of.shape,
                                                   tiles, target);
                        },
                        of.shape.bytes(),
                        give_tables};
}

/// If all sequences have all keys.
std::optional<CatalogEntry> attention_paged_entry(const std::string& name) {
    const auto named = parse_paged(name);
    if (!named) return {};
    return CatalogEntry{name, "attention of one row to keys in pages", named->shape.attention.flops(),
                        [named = *named](const Target& target) {
                            const PagedShape& shape = named.shape;
                            const AttentionRules rules = rules_of(named.rules, shape.attention.heads);
                            const DecodeTiles tiles = paged_tiles(shape, target);
                            return paged_schedule(declare_paged_attention(shape, tiles, rules), shape, tiles, target);
                        },
                        named->shape.attention.bytes()};
}

std::optional<CatalogEntry> attention_gradients_entry(const std::string& name) {
    auto named = parse_attention_gradients(name);
    if (!named) return {};
    return CatalogEntry{
        name, "dq, dk and dv of attention, from what the forward pass saved", flops_of_gradients(named->forward.shape),
        [named = *named](const Target& target) {
            const AttentionShape& shape = named.forward.shape;
            const AttentionRules of = rules_of(named.forward);
            const std::vector<PairInput> pairs = declare_attention(shape, of.score, of.skips).of_pairs;
            GradientTiles tiles = named.tiles ? *named.tiles : gradient_tiles(shape, target, of.score, of.skips);
            tiles.passes.of_pairs = tiles.passes.kept && !pairs.empty();
            return attention_gradients_schedule(
                declare_attention_gradients(shape, tiles.passes, of.score, of.skips, {}, of.sinks), shape, tiles,
                target);
        },
        bytes_of_gradients(named->forward.shape)};
}

}  // namespace

std::optional<CatalogEntry> attention_kind_entry(const std::string& name) {
    for (const auto entry_of :
         {attention_gradients_entry, fp8_attention_entry, attention_paged_entry, attention_varlen_entry,
          ranged_gradients_entry, attention_ranged_entry, attention_entry})
        if (auto entry = entry_of(name)) return entry;
    return {};
}

}  // namespace tw::schedules
