#include "schedules/listed_rows.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "dsl/listed_terms.h"

namespace tw::schedules {
namespace {

constexpr int64_t warp = 32, threads_of_block = 256;
constexpr int64_t stored = 4;              // elements of a thread side by side
constexpr int64_t most_accumulators = 16;  // of a thread
constexpr int64_t terms_each = 32;         // of a thread, of those that a block looks at together
constexpr int64_t blocks_wanted = 264;     // two for each multiprocessor of a large GPU
// Of terms that are looked at soon: blocks store while others list.
constexpr int64_t few_terms = 1024, blocks_of_few_terms = 1056;
constexpr int64_t most_turns = 8;   // of a thread, rows one after another
constexpr int64_t many_terms = 16;  // of a row

int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }
int64_t power_above(int64_t value) {
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(value, 1))));
}
int64_t power_below(int64_t value) {
    return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(value, 1))));
}

}  // namespace

ListedTiles listed_tiles(const ScatteredSizes& sizes) {
    const int64_t vector = std::gcd(stored, std::max<int64_t>(sizes.width, 1));
    const int64_t vectors = std::max<int64_t>(divide_up(sizes.width, vector), 1);
    ListedTiles tiles{.vector = vector};
    // A block has one row of many terms, and a thread few of its elements, so that several terms' are on their way.
    const bool has_many = sizes.rows > 0 && sizes.terms / sizes.rows >= many_terms;
    const int64_t accumulators = has_many ? stored : most_accumulators;
    // What the threads of a block store at once lies side by side: warps have rows each, or share wide ones.
    tiles.lanes = std::min(power_above(vectors), warp);
    while (tiles.lanes < threads_of_block && tiles.lanes * accumulators / vector < vectors) tiles.lanes *= 2;
    tiles.beside = threads_of_block / tiles.lanes;
    tiles.parts = std::min(divide_up(vectors, tiles.lanes), std::max<int64_t>(accumulators / vector, 1));
    tiles.terms = std::clamp(power_above(sizes.terms), threads_of_block, threads_of_block * terms_each);
    const int64_t across = divide_up(sizes.width, tiles.columns());
    const bool at_once = sizes.terms <= tiles.terms;
    const int64_t most = at_once ? most_turns : std::max<int64_t>(most_accumulators / (tiles.parts * vector), 1);
    const int64_t blocks = sizes.terms <= few_terms ? blocks_of_few_terms : blocks_wanted;
    const int64_t turns = power_below(sizes.rows * (at_once ? across : 1) / (blocks * tiles.beside));
    tiles.rows = tiles.beside * std::clamp<int64_t>(turns, 1, power_below(most));
    if (at_once) tiles.tiles = std::clamp<int64_t>(divide_up(sizes.rows, tiles.rows) * across / blocks, 1, across);
    return tiles;
}

double microseconds_to_list(const ScatteredSizes& sizes) {
    // Instructions of warps: of a term, which each block looks at, and of a list; of an entry, for each row and tile.
    // A block's only list, of few terms, is soon made.
    constexpr double of_a_term = 0.6, of_a_short_list = 1000, of_a_list = 2600, of_an_entry = 3.5;
    constexpr double each_microsecond = 4.3e5, waits_for_a_list = 1.5, to_launch = 2.5;
    constexpr double entry_in_series = 0.025, term_in_series = 0.35;  // microseconds, one behind the other
    if (sizes.terms < 1 || sizes.rows < 1 || sizes.width < 1) return to_launch;
    const ListedTiles tiles = listed_tiles(sizes);
    const auto count = [](int64_t a, int64_t b) { return static_cast<double>(divide_up(a, b)); };
    const double across = count(sizes.width, tiles.columns());
    const double blocks = count(sizes.rows, tiles.rows) * count(sizes.width, tiles.columns() * tiles.tiles);
    const double lists = count(sizes.terms, tiles.terms), terms = static_cast<double>(sizes.terms);
    const double warps_of_rows = static_cast<double>(sizes.rows * tiles.lanes) / warp;
    const double entries = terms / static_cast<double>(sizes.rows) * static_cast<double>(tiles.rows);
    const double instructions =
        blocks * (terms * of_a_term + (sizes.terms > few_terms ? lists * of_a_list : of_a_short_list)) +
        warps_of_rows * across * entries * of_an_entry;
    const double at_once = tiles.rows == 1 ? 4 : 1;  // of a row, where no entry is another row's
    const double in_series =
        entries * entry_in_series + terms / static_cast<double>(sizes.rows) * term_in_series / at_once;
    return instructions / each_microsecond + lists * waits_for_a_list + in_series + to_launch;
}

void schedule_listed(Schedule& s, const Stage& y, int64_t terms, const ListedTiles& tiles) {
    const ListedTerms lists = list_terms(s, y, {.elements = tiles.rows, .terms = tiles.terms});
    const auto [row, column] = s.loops<2>(y);
    const Loop chunk = s.reduce(y, 0), t = s.reduce(y, 1), own = s.reduce(y, 2);
    const auto [block, in_block] = s.split(row, tiles.rows, Tail::Mask, {"block", "in_block"});
    const auto [turn, row_in_block] = s.split(in_block, tiles.beside, {"turn", "row"});
    const auto [tile, in_tile] = s.split(column, tiles.columns(), Tail::Mask, {"tile", "in_tile"});
    const auto [tile_of_block, own_tile] = s.split(tile, tiles.tiles, Tail::Mask, {"tiles", "tile"});
    const auto [part, in_part] = s.split(in_tile, tiles.lanes * tiles.vector, {"part", "in_part"});
    const auto [lane, element] = s.split(in_part, tiles.vector, {"lane", "element"});
    const bool at_once = terms <= tiles.terms;  // then nothing waits in registers for the next list
    if (at_once)
        s.order({block, tile_of_block, turn, own_tile, row_in_block, lane, chunk, t, own, part, element});
    else
        s.order({block, tile_of_block, own_tile, chunk, row_in_block, lane, t, turn, own, part, element});
    const Loop around = at_once ? tile_of_block : chunk;
    s.bind(block, grid.x);
    s.bind(tile_of_block, grid.y);
    s.bind({row_in_block, lane}, thread);
    if (!at_once) s.unroll(turn);
    s.unroll(part);
    if (tiles.vector > 1) s.bind(element, vector);
    s.at(lists.entry, t);
    s.at(lists.list, around);
    s.at(lists.count, around);
    s.at(lists.element, around);
    s.set_memory(lists.element, Memory::Registers);
    // Neighbouring terms are a thread's.
    const int64_t each = tiles.terms / (tiles.beside * tiles.lanes),
                  side_by_side = std::gcd(std::gcd(stored, each), terms);
    const auto [of_thread, own_terms] = s.split(s.data_loops(lists.element)[1], each, {"share", "number"});
    const auto [step, neighbour] = s.split(own_terms, side_by_side, {"step", "neighbour"});
    s.bind(of_thread, thread);
    s.unroll(step);
    if (side_by_side > 1) s.bind(neighbour, vector);
    const Loop place = s.running(lists.updates, s.data_loops(lists.updates)[2]);
    for (const Loop& all : {s.reduce(lists.count), place}) {
        const auto [share, number] = s.split(all, each, {"share", "number"});
        s.bind(share, thread);
        s.unroll(number);
    }
}

}  // namespace tw::schedules
