#include "schedules/varlen_tables.h"

#include <algorithm>
#include <array>
#include <regex>
#include <span>

#include "schedules/attention_backward.h"
#include "schedules/attention_varlen.h"
#include "schedules/elementwise.h"
#include "schedules/require_sizes.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

void check_offsets(const Offsets& of_rows, const Offsets& of_keys, std::source_location where) {
    for (const Offsets* each : {&of_rows, &of_keys})
        user_check(!each->empty() && each->front() == 0 && std::ranges::is_sorted(*each), where,
                   "varlen: offsets begin with 0 and grow, up to the number of all {}",
                   each == &of_rows ? "rows" : "keys");
    user_check(of_rows.size() == of_keys.size(), where,
               "varlen: offsets of {} sequences of rows, of {} of keys; each sequence has both", of_rows.size() - 1,
               of_keys.size() - 1);
}

void check_seen(const SeenKeys& seen, std::source_location where) {
    user_check(seen.before >= 0 && seen.behind >= 0, where,
               "varlen tables: rows see {} keys before them and {} behind; give 0 at least, a window of 1", seen.before,
               seen.behind);
}

/// The keys from the first to behind the last.
struct Range {
    int64_t first = 0, behind = 0;

    int64_t count() const { return std::max<int64_t>(behind - first, 0); }
};

/// An element of one side: what it goes through of the other one, and its place.
struct Element {
    Range seen;
    int64_t sequence, own, first_of_others, more_keys;
};

std::vector<Element> elements_of(const Offsets& of_rows, const Offsets& of_keys, const SeenKeys& seen, TilesOf side) {
    const bool by_rows = side == TilesOf::Rows;
    const Offsets &own = by_rows ? of_rows : of_keys, &other = by_rows ? of_keys : of_rows;
    // A key that is so far before a row has the row as far behind it.
    const int64_t before = by_rows ? seen.before : seen.behind, behind = by_rows ? seen.behind : seen.before;
    std::vector<Element> elements;
    for (size_t b = 0; b + 1 < own.size(); ++b)
        for (int64_t i = own[b]; i < own[b + 1]; ++i) {
            const int64_t opposite = other[b + 1] - (own[b + 1] - i);
            const int64_t rows = of_rows[b + 1] - of_rows[b], keys = of_keys[b + 1] - of_keys[b];
            elements.push_back(
                {.seen = {std::max(other[b], opposite - before), std::min(other[b + 1], opposite + behind + 1)},
                 .sequence = static_cast<int64_t>(b),
                 .own = i - own[b],
                 .first_of_others = other[b],
                 .more_keys = keys - rows});
        }
    return elements;
}

Value number(int64_t value) { return make_value(i32, value); }

/// What tiles of keys begin with is a multiple of so many rows: where boxes of numbers of rows may begin.
int64_t multiple_of(TilesOf side) { return side == TilesOf::Rows ? 1 : rows_of_box; }

/// The first that any of a tile goes through, in multiples of so many, and how many from there on.
Range range_of_tile(std::span<const Element> tile, int64_t multiple) {
    Range all;
    for (const auto& [seen, sequence, own, first_of_others, more_keys] : tile) {
        if (seen.count() == 0) continue;
        const int64_t first = all.count() == 0 ? seen.first : std::min(all.first, seen.first);
        all = {first / multiple * multiple, std::max(all.behind, seen.behind)};
    }
    return all;
}

}  // namespace

VarlenTables varlen_tables(const Offsets& of_rows, const Offsets& of_keys, const SeenKeys& seen, int64_t of_tile,
                           TilesOf side, std::source_location where) {
    require_sizes("varlen tables", {{"of_tile", of_tile}}, where);
    check_offsets(of_rows, of_keys, where);
    check_seen(seen, where);
    const std::vector<Element> elements = elements_of(of_rows, of_keys, seen, side);
    const auto count = static_cast<int64_t>(elements.size()), tiles = divided(count, of_tile);
    VarlenTables tables{host_array(i32, {tiles, 2}), host_array(i32, {count, 2}),
                        host_array(i32, {count, numbers_of_place})};
    for (int64_t i = 0; i < count; ++i) {
        const int64_t tile = i / of_tile, begin = tile * of_tile;
        const std::span in_tile(elements.begin() + begin, elements.begin() + std::min(count, begin + of_tile));
        const Range all = range_of_tile(in_tile, multiple_of(side));
        if (i == begin) {
            tables.tiles.set({tile, 0}, number(all.first));
            tables.tiles.set({tile, 1}, number(all.count()));
        }
        const Element& each = elements[static_cast<size_t>(i)];
        const bool sees = each.seen.count() > 0;
        tables.seen.set({i, 0}, number(sees ? each.seen.first - all.first : 0));
        tables.seen.set({i, 1}, number(sees ? each.seen.behind - all.first : 0));
        const std::array place{each.sequence, each.own, all.first - each.first_of_others, each.more_keys};
        for (size_t n = 0; n < place.size(); ++n) tables.places.set({i, static_cast<int64_t>(n)}, number(place[n]));
    }
    return tables;
}

double varlen_pairs(const Offsets& of_rows, const Offsets& of_keys, const SeenKeys& seen, std::source_location where) {
    check_offsets(of_rows, of_keys, where);
    double pairs = 0;
    for (const Element& row : elements_of(of_rows, of_keys, seen, TilesOf::Rows)) pairs += as_double(row.seen.count());
    return pairs;
}

namespace {

/// Where sequences begin on both sides, and of which each element of one side is.
struct Sequences {
    Tensor of_rows, of_keys, sequence;
    int64_t count;
    TilesOf side;

    const Tensor& own_side() const { return side == TilesOf::Rows ? of_rows : of_keys; }
    const Tensor& other_side() const { return side == TilesOf::Rows ? of_keys : of_rows; }
    /// Behind the last one there is nothing.
    Expr of(const Expr& element) const { return min(cast(i64, sequence(element)), count - 1); }
};

Sequences declare_sequences(int64_t sequences, int64_t elements, TilesOf side) {
    Sequences of{.of_rows = input("of_rows", i32, {sequences + 1}),
                 .of_keys = input("of_keys", i32, {sequences + 1}),
                 .sequence = {},
                 .count = sequences,
                 .side = side};
    const Axis b = reduce_axis("b", sequences);
    // An element belongs to the sequence before which as many end.
    of.sequence = compute("sequence", {elements},
                          [&](Expr i) { return sum(select(cast(i64, of.own_side()(b + 1)) <= i, 1, 0), b); });
    return of;
}

/// Of each element of one side the first of the other side that it goes with, and behind the last.
Tensor declare_ranges(const Sequences& of, int64_t count, const SeenKeys& seen) {
    const bool by_rows = of.side == TilesOf::Rows;
    const int64_t before = by_rows ? seen.before : seen.behind, after = by_rows ? seen.behind : seen.before;
    return compute("range", {count, 2}, [&](Expr i, Expr end) {
        const Expr own = of.of(i), after_own = cast(i64, of.own_side()(own + 1));
        const Expr begin = cast(i64, of.other_side()(own)), stop = cast(i64, of.other_side()(own + 1));
        const Expr opposite = stop - (after_own - i);
        Expr first = begin, behind = stop;
        if (before < SeenKeys::all) first = max(first, opposite - before);
        if (after < SeenKeys::all) behind = max(min(behind, opposite + (after + 1)), begin);
        return cast(i32, select(end == 0, select(i < after_own, first, begin), select(i < after_own, behind, begin)));
    });
}

Tensor declare_places(const Sequences& of, int64_t count, const Tensor& tiles, int64_t of_tile,
                      const std::string& suffix) {
    return compute("places" + suffix, {count, numbers_of_place}, [&](Expr i, Expr what) {
        const Expr own = of.of(i);
        auto length = [&](const Tensor& offsets) { return offsets(own + 1) - offsets(own); };
        auto is = [&](VarlenPlace place) { return what == static_cast<int64_t>(place); };
        const Expr more_keys = length(of.of_keys) - length(of.of_rows), of_own = cast(i32, i) - of.own_side()(own),
                   of_other = tiles(i / of_tile, 0) - of.other_side()(own);
        return select(is(VarlenPlace::Sequence), cast(i32, own),
                      select(is(VarlenPlace::Own), of_own, select(is(VarlenPlace::Other), of_other, more_keys)));
    });
}

}  // namespace

VarlenTableTensors declare_varlen_tables(int64_t sequences, int64_t rows, int64_t keys, const SeenKeys& seen,
                                         int64_t of_tile, TilesOf side, std::source_location where) {
    require_sizes("varlen tables", {{"sequences", sequences}, {"rows", rows}, {"keys", keys}, {"of_tile", of_tile}},
                  where);
    check_seen(seen, where);
    const bool by_rows = side == TilesOf::Rows;
    const int64_t count = by_rows ? rows : keys, others = by_rows ? keys : rows, tiles = divided(count, of_tile);
    const std::string suffix = by_rows ? "" : "_of_keys";
    const Sequences of = declare_sequences(sequences, count, side);
    VarlenTableTensors t;
    t.range = declare_ranges(of, count, seen);
    auto sees = [&](const Expr& i) { return t.range(i, 0) < t.range(i, 1); };
    auto in_tile = [&](const Expr& tile, const Axis& r) { return min(tile * of_tile + r, count - 1); };
    const Axis r1 = reduce_axis("r1", of_tile), r2 = reduce_axis("r2", of_tile);
    const Expr none = cast(i32, Expr(others));
    t.first = compute("first", {tiles}, [&](Expr tile) {
        const Expr first = reduce_min(select(sees(in_tile(tile, r1)), t.range(in_tile(tile, r1), 0), none), r1);
        const auto multiple = constant(i32, multiple_of(side));
        return by_rows ? first : first / multiple * multiple;
    });
    t.behind = compute("behind", {tiles}, [&](Expr tile) {
        return reduce_max(select(sees(in_tile(tile, r2)), t.range(in_tile(tile, r2), 1), 0), r2);
    });
    t.tiles = compute("tiles" + suffix, {tiles, 2}, [&](Expr tile, Expr what) {
        const Expr extent = max(t.behind(tile) - t.first(tile), 0);
        return select(what == 0, select(extent == 0, 0, t.first(tile)), extent);
    });
    t.seen = compute("seen" + suffix, {count, 2},
                     [&](Expr i, Expr end) { return select(sees(i), t.range(i, end) - t.first(i / of_tile), 0); });
    t.places = declare_places(of, count, t.tiles, of_tile, suffix);
    return t;
}

Schedule varlen_tables_schedule(const VarlenTableTensors& tables, const Target& target, bool with_places,
                                std::source_location where) {
    std::vector<Tensor> results{tables.tiles, tables.seen};
    if (with_places) results.push_back(tables.places);
    Schedule s(results, target, where);
    for (const Stage& stage : s.all_stages()) schedule_each_element(s, stage, 128, where);
    return s;
}

namespace {

Expr number_of(const Tensor& places, const Expr& element, VarlenPlace what) {
    return places(element, static_cast<int64_t>(what));
}

}  // namespace

ScorePlace place_of_row(const Tensor& places, const Expr& head, const Expr& i, const Expr& j) {
    const Expr own = number_of(places, i, VarlenPlace::Own);
    return {.batch = number_of(places, i, VarlenPlace::Sequence),
            .head = head,
            .row = own,
            .key = cast(i32, j) + number_of(places, i, VarlenPlace::Other),
            .position = own + number_of(places, i, VarlenPlace::MoreKeys)};
}

ScorePlace place_of_key(const Tensor& places_of_keys, const Expr& head, const Expr& i, const Expr& j) {
    const Expr row = cast(i32, i) + number_of(places_of_keys, j, VarlenPlace::Other);
    return {.batch = number_of(places_of_keys, j, VarlenPlace::Sequence),
            .head = head,
            .row = row,
            .key = number_of(places_of_keys, j, VarlenPlace::Own),
            .position = row + number_of(places_of_keys, j, VarlenPlace::MoreKeys)};
}

std::optional<NamedVarlenTables> parse_varlen_tables(const std::string& name) {
    static const std::string number_text = "([1-9][0-9]{0,6})";
    static const std::regex form("attention_varlen_tables_" + number_text + "x" + number_text + "(?:_keys" +
                                 number_text + ")?(?:(_causal)|_window" + number_text +
                                 ")?(_places)?(_of_keys)?(?:_tile" + number_text + ")?");
    std::smatch match;
    if (!std::regex_match(name, match, form)) return {};
    auto number = [&](size_t index, int64_t otherwise) {
        return match[index].matched ? std::stoll(match[index]) : otherwise;
    };
    return NamedVarlenTables{.sequences = number(1, 0),
                             .rows = number(2, 0),
                             .keys = number(3, number(2, 0)),
                             .seen = match[5].matched ? SeenKeys::window(number(5, 0)) : SeenKeys(match[4].matched),
                             .of_tile = number(8, match[7].matched ? GradientTiles().key_rows : VarlenTiles().rows),
                             .side = match[7].matched ? TilesOf::Keys : TilesOf::Rows,
                             .places = match[6].matched};
}

}  // namespace tw::schedules
