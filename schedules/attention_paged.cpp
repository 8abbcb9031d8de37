#include "schedules/attention_paged.h"

#include <algorithm>
#include <regex>

#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr int64_t keys_of_unit = 16;

void check_shape(const PagedShape& shape, const DecodeTiles& tiles, std::source_location where) {
    const AttentionShape& of = shape.attention;
    user_check(is_decode(of) && of.group >= 1 && of.heads % of.group == 0, where,
               "paged attention: {} rows{} of {} heads in groups of {}; declare one row, and whole groups", of.rows,
               of.causal ? ", causal," : "", of.heads, of.group);
    const bool whole = shape.page_size >= 1 && shape.page_size % keys_of_unit == 0 &&
                       shape.page_size % tiles.keys == 0 && of.keys % shape.page_size == 0;
    user_check(whole, where,
               "paged attention: pages of {} keys, of {} in all, in steps of {}; pages are multiples of {} and of a "
               "step, and keys of a page",
               shape.page_size, of.keys, tiles.keys, keys_of_unit);
}

int64_t keys_of_part(const PagedShape& shape, const DecodeTiles& tiles) {
    return rounded_up(divided(shape.attention.keys, tiles.parts), shape.page_size);
}

}  // namespace

DecodeTiles paged_tiles(const PagedShape& shape, const Target& target) {
    DecodeTiles tiles = decode_tiles(shape.attention, target);
    while (tiles.keys > keys_of_unit && shape.page_size % tiles.keys != 0) tiles.keys /= 2;
    return tiles;
}

PagedAttention declare_paged_attention(const PagedShape& shape, const DecodeTiles& tiles, const AttentionRules& rules,
                                       std::source_location where) {
    CalledFrom caller(where);
    require_decode_tiles(tiles, where);
    check_shape(shape, tiles, where);
    check_attention(shape.attention, where);
    check_sinks(shape.attention.heads, rules.sinks);
    const auto& [B, H, S, N, D, E, G, causal, type, before, heads_first] = shape.attention;
    const int64_t T = keys_of_part(shape, tiles), C = divided(N, T), P = shape.page_size, step = tiles.keys;
    PagedAttention paged;
    paged.table = input("table", i32, {B, N / P});
    paged.lengths = input("lengths", i32, {B});
    AttentionInParts& a = paged.parts;
    a.rules = rules;
    a.q = input("q", type, {B, 1, H, D});
    a.k = input("k", type, {shape.pages, P, H / G, D});
    a.v = input("v", type, {shape.pages, P, H / G, E});
    auto of_parts = [&](const std::string& name, const Tensor& all, int64_t extent) {
        return compute(name, {B, C, T, H / G, extent}, [&](Expr b, Expr c, Expr j, Expr h, Expr x) {
            const Expr key = c * T + j, page = cast(i64, paged.table(b, min(key / P, N / P - 1)));
            return all(page, key % P, h, x);
        });
    };
    a.k_part = of_parts("k_part", a.k, D);
    a.v_part = of_parts("v_part", a.v, E);
    // Whole steps, as far as there are keys for the part.
    auto keys_of = [&](const std::string&, const Expr& b, const Expr& c) {
        const Expr left = (cast(i64, paged.lengths(b)) + (step - 1)) / step * step - c * T;
        return reduce_axis("j", min(left, T));
    };
    // Bounds that are known keep numbers of places short.
    const int64_t most = N;
    auto place = [&](const Expr& b, const Expr& head, const Expr& c, const Expr& j) {
        const Expr last = max(min(cast(i64, paged.lengths(b)), most) - 1, 0);
        return ScorePlace{b, head, integer(0), C * T == most ? c * T + j : min(c * T + j, most - 1), last};
    };
    auto is_there = [&](const Expr& b, const Expr& c, const Expr& j) {
        return c * T + j < cast(i64, paged.lengths(b));
    };
    declare_parts(shape.attention, a, {B, H / G, G, C, T}, place, keys_of, is_there);
    declare_merged_parts(shape.attention, a, true);
    return paged;
}

Schedule paged_schedule(const PagedAttention& attention, const PagedShape& shape, const DecodeTiles& tiles,
                        const Target& target, std::source_location where) {
    return decode_schedule(attention.parts, shape.attention, tiles, target, where);
}

std::optional<NamedPaged> parse_paged(const std::string& name) {
    static const std::string number_text = "([1-9][0-9]{0,6})", by = "x" + number_text;
    static const std::regex form("attention_paged_(bf16|f16)_" + number_text + by + by + by + "_page" + number_text +
                                 "(?:_pages" + number_text + ")?(?:_width" + number_text + ")?(?:_group" + number_text +
                                 ")?" + rules_without_tables);
    std::smatch match;
    if (!std::regex_match(name, match, form)) return {};
    auto number = [&](size_t index, int64_t otherwise) {
        return match[index].matched ? std::stoll(match[index]) : otherwise;
    };
    const int64_t page_size = number(6, 0), batch = number(2, 0), keys = rounded_up(number(4, 0), page_size);
    const AttentionShape of{.batch = batch,
                            .heads = number(3, 0),
                            .rows = 1,
                            .keys = keys,
                            .depth = number(5, 0),
                            .width = number(8, number(5, 0)),
                            .group = number(9, 1),
                            .type = match[1] == "bf16" ? bf16 : f16};
    if (of.heads % of.group != 0 || of.depth % 8 != 0 || of.width % 8 != 0) return {};
    if (std::max(of.depth, of.width) > 256 || page_size % keys_of_unit != 0) return {};
    return NamedPaged{{of, number(7, batch * keys / page_size), page_size}, match[10]};
}

}  // namespace tw::schedules
