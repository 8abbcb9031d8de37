#include "schedules/sums_behind.h"

#include <algorithm>

#include "schedules/long_reductions.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

/// Of rows that lie in shared memory: threads share the columns of a piece, in pairs, and its rows.
void sum_piece(Schedule& s, const Stage& parts, const ConvolutionTiles& tiles) {
    constexpr int64_t threads_of_warpgroup = 128, neighbours = 2;
    const int64_t pairs = std::min(tiles.box_columns, tiles.columns) / neighbours,
                  shares = threads_of_warpgroup * tiles.warpgroups / pairs;
    auto [part, column] = s.loops<2>(parts);
    auto [pair, element] = s.split(column, neighbours, {"pair", "element"});
    auto [row, share] = s.split(s.reduce(parts), shares, {"row", "share"});
    s.order({part, share, pair, row, element});
    s.bind({share, pair}, thread);
    s.bind(element, vector);
}

/// Of the rows of a warpgroup, by those that have them in registers.
void sum_registers(Schedule& s, const Stage& parts, const Tensor& y, const Loop& tile, int64_t rows) {
    auto [group, column] = s.loops<2>(parts);
    s.order({group, s.reduce(parts), column});
    s.bind(group, warpgroup);
    const Stage stored = s.stage(y, Memory::Registers, tile);
    s.bind(s.split(s.data_loops(stored)[0], rows, {"warpgroup_m", "m"})[0], warpgroup);
}

/// Sums over the rows of each tile; those of all tiles in a kernel behind.
Stage sums_of_tiles(Schedule& s, const Tensor& totals, int64_t rows) {
    std::vector<Loop> pixels = s.all_loops(totals);
    pixels.erase(pixels.begin());
    const Loop part = s.split(s.fuse(pixels, "pixel"), rows, Tail::Mask, {"part", "row"})[0];
    const int64_t count = require_constant(s.extent(part)), columns = require_constant(totals.shape()[0]);
    const Stage parts = s.rfactor(totals, part);
    schedule_column_reduction(s, totals, count, column_threads(count, columns, 1));
    return parts;
}

/// Sums over places: of pieces that leave together, of tiles, and of all of them, by a kernel behind.
struct SumsOfRaster {
    Stage pieces, tiles;
};
SumsOfRaster sums_of_raster(Schedule& s, const HaloConvolution& c, const HaloTiles& tiles, const Tensor& totals) {
    const int64_t of_tile = tiles.places / tiles.leaving, count = require_constant(c.sums.shape()[0]) / tiles.places,
                  filters = require_constant(totals.shape()[0]);
    const Loop piece = s.split(s.reduce(totals), tiles.leaving, {"piece", "place"})[0];
    const Stage pieces = s.rfactor(totals, piece);
    const Loop tile = s.split(s.reduce(totals), of_tile, {"tile", "piece"})[0];
    const Stage tiles_sums = s.rfactor(totals, tile);
    schedule_column_reduction(s, totals, count, column_threads(count, filters, 1));
    return {pieces, tiles_sums};
}

/// Of results in shared memory: threads share the filters, in pairs, and the places of a piece; then a filter each.
void sum_places(Schedule& s, const SumsOfRaster& sums, int64_t filters, const HaloTiles& given) {
    constexpr int64_t threads_of_warpgroup = 128, neighbours = 2;
    const int64_t pairs = filters / neighbours;
    int64_t shares = 1;
    while (given.leaving % (2 * shares) == 0 && 2 * shares * pairs <= threads_of_warpgroup * given.warpgroups)
        shares *= 2;
    auto [piece, filter] = s.loops<2>(sums.pieces);
    auto [pair, element] = s.split(filter, neighbours, {"pair", "element"});
    auto [row, share] = s.split(s.reduce(sums.pieces), shares, {"row", "share"});
    s.order({piece, share, pair, row, element});
    s.bind({share, pair}, thread);
    s.bind(element, vector);
    auto [tile, own] = s.loops<2>(sums.tiles);
    s.bind(own, thread);
}

}  // namespace

ConvolutionTiles with_room(ConvolutionTiles tiles, const TileNeighbours& neighbours, const ConvolutionExtents& extents,
                           const Target& target) {
    constexpr int64_t most_rows = 256, most_sums = 128 * 128, wide = 64, narrow = 32, most_stages = 8;
    constexpr int64_t reserved = 12 << 10;  // bytes, in which warps add up what they have
    const int64_t rows_of_units = rows_of_unit * tiles.warpgroups;
    tiles.rows = std::min(tiles.rows, most_rows / rows_of_units * rows_of_units);
    if (tiles.rows > rows_of_units && tiles.rows * tiles.columns > most_sums * tiles.warpgroups)
        tiles.rows = rows_of_units;
    const bool whole = extents.rows >= tiles.rows && extents.columns >= tiles.columns && tiles.columns % narrow == 0;
    if ((neighbours.sums || neighbours.beside) && whole)
        tiles.box_columns = tiles.columns % wide == 0 && !neighbours.beside ? wide : narrow;
    const int64_t bytes = (tiles.rows + tiles.columns) * tiles.terms * bytes_of(bf16),
                  piece_bytes = tiles.rows * tiles.box_columns * bytes_of(bf16),
                  pieces = tiles.ping_pong + (neighbours.beside ? 2 : 0);
    const int64_t stages = (target.shared_bytes - reserved - piece_bytes * pieces) / bytes;
    tiles.stages = static_cast<int>(std::clamp<int64_t>(stages, 2, most_stages));
    return tiles;
}

void schedule_windows_and_sums(Schedule& s, const WindowProduct& product, const ConvolutionTiles& tiles,
                               const Tensor& totals, WindowNeighbours neighbours, std::source_location where) {
    CalledFrom caller(where);
    const int64_t rows = tiles.box_columns > 0 ? tiles.rows : tiles.rows / tiles.warpgroups;
    const int last = product.result.rank() - 2;
    s.join_axes(product.result, 0, last);
    if (product.sums.defined()) s.join_axes(product.sums, 0, last);
    const Stage parts = sums_of_tiles(s, totals, rows);
    neighbours.behind.emplace_back(parts);
    const Loop tile = schedule_windows(s, product, tiles, neighbours);
    if (tiles.box_columns > 0)
        sum_piece(s, parts, tiles);
    else
        sum_registers(s, parts, product.result, tile, rows);
}

void schedule_halo_and_sums(Schedule& s, const HaloConvolution& c, const HaloTiles& tiles, const Tensor& totals,
                            std::source_location where) {
    CalledFrom caller(where);
    const SumsOfRaster sums = sums_of_raster(s, c, tiles, totals);
    schedule_halo(s, c, tiles, {.of_pieces = {sums.pieces}, .of_tiles = {sums.tiles}});
    sum_places(s, sums, std::min<int64_t>(require_constant(c.result.shape()[3]), rows_of_unit * tiles.warpgroups),
               tiles);
}

}  // namespace tw::schedules
