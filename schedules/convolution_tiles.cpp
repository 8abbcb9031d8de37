#include <algorithm>
#include <optional>
#include <vector>

#include "schedules/convolution.h"
#include "schedules/multiprocessor.h"
#include "schedules/require_sizes.h"
#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

constexpr int64_t threads_of_unit = 128;

/// A multiprocessor's clock cycles for what a stage of the pipeline holds: of its tensor cores, of their reads of
/// shared memory, or until it has come.
double cycles_of_stage(const ConvolutionForm& form, const ConvolutionTiles& tiles) {
    constexpr double overhead = 40, a_box = 20;
    const double rows = as_double(tiles.rows), columns = as_double(tiles.columns), terms = as_double(tiles.terms),
                 taps = as_double(tiles.taps), units = rows / as_double(rows_of_unit),
                 read = units * taps * (as_double(rows_of_unit) + columns) * terms * 2,
                 busy = std::max(rows * columns * taps * terms / multiprocessor::products,
                                 read / multiprocessor::shared_bytes);
    auto until_it_is_there = [&](double arrival) {
        return std::max(arrival, (arrival + multiprocessor::box_latency) / (tiles.stages - 1));
    };
    if (form.sums_pixels) {
        auto longer = [](int64_t elements) { return elements % 16 == 0 ? 1 : 2; };  // where lines are no whole sectors
        const double elements = rows * longer(form.extents.rows) + columns * taps * longer(form.extents.columns),
                     there = until_it_is_there(elements * terms * 2 / multiprocessor::box_bytes_of_terms),
                     asked = overhead + a_box * (units + taps * as_double(divided(tiles.columns, 64)));
        return tiles.taps > 1 ? std::max(busy, there) + asked : std::max(busy + asked, there);
    }
    // Neighbours along columns come in lines of 64; shorter ones take as long.
    const double line = form.terms_are_neighbours || tiles.columns % 64 == 0 ? 64 : tiles.columns % 32 == 0 ? 32 : 16;
    const double arrival = (rows + columns * 64 / line) * terms * 2 / multiprocessor::box_bytes;
    return std::max(busy, until_it_is_there(arrival)) + overhead + 2 * a_box;
}

/// Tiles along rows: pixels of a phase fill tiles of their own.
int64_t tiles_of_rows(const ConvolutionForm& form, int64_t rows) {
    int64_t phases = 1;
    for (const int64_t each : form.phases) phases *= each;
    return phases * divided(divided(form.extents.rows, phases), rows);
}

double cycles_of(const ConvolutionForm& form, const ConvolutionTiles& tiles, const Target& target) {
    const ConvolutionExtents& extents = form.extents;
    const double steps = as_double(divided(divided(extents.terms, tiles.terms), tiles.parts)) * extents.taps;
    const int64_t count = tiles_of_rows(form, tiles.rows) * divided(extents.columns, tiles.columns) *
                          divided(extents.products, tiles.taps) * tiles.parts;
    const double rounds = as_double(divided(count, target.multiprocessors));
    // Of multiprocessors that read: where rounds are partial, and what tiles have beyond the ends.
    const double idle = rounds * target.multiprocessors / as_double(count) *
                        as_double(tiles_of_rows(form, tiles.rows) * tiles.rows) / as_double(extents.rows) *
                        as_double(rounded_up(extents.columns, tiles.columns)) / as_double(extents.columns);
    const double sums = as_double(extents.rows * extents.columns) * as_double(extents.products);
    const double operands = form.sums_pixels ? as_double((extents.rows + extents.columns) * extents.terms) * 2 : 0,
                 busy = rounds * (steps * cycles_of_stage(form, tiles) + multiprocessor::of_tile);
    return multiprocessor::beside_memory(busy, operands * idle) + multiprocessor::adding_up(sums, tiles.parts);
}

/// Whether the sums of a warpgroup's rows fit into its registers.
bool holds_sums(const ConvolutionTiles& tiles) {
    const bool two_of_few_rows = tiles.warpgroups == 2 && tiles.rows <= 256;
    const int64_t most = tiles.warpgroups == 3 ? 96 : tiles.taps > 1 ? 192 : two_of_few_rows ? 160 : 128;
    return tiles.rows * tiles.columns * tiles.taps / tiles.warpgroups / threads_of_unit <= most;
}

/// Measured: tiles of 128 columns leave faster as boxes, whole ones where these are small; others from registers.
int64_t columns_of_boxes(const ConvolutionForm& form, const ConvolutionTiles& tiles) {
    constexpr int64_t longest_box = 256, whole_bytes = 48 << 10;
    if (form.turns_result) return tiles.rows > longest_box ? 0 : tiles.columns % 64 == 0 ? 64 : tiles.columns;
    if (tiles.columns != 128 || tiles.rows > longest_box) return 0;
    return tiles.rows * tiles.columns * 2 <= whole_bytes ? tiles.columns : 64;
}

/// Of a copy's rows of so many elements, a tile has no more than it needs.
bool has_columns(int64_t columns, int64_t extent) {
    return columns <= 16 || columns - (columns > 32 ? 32 : 16) < extent;
}

/// Numbers of dimensions at the end that a block may sum together, in iterations, and the first of them.
struct Together {
    int64_t taps, first;
};
std::vector<Together> taps_together(const ConvolutionForm& form) {
    std::vector<Together> found{{1, 1}};
    int64_t taps = 1;
    for (auto each = form.taps.rbegin(); each != form.taps.rend(); ++each)
        if (*each > 1) found.push_back({taps *= *each, *each});
    return found;
}

// Tiles of a group divide what it has: behind its end begins another one.

bool fits_terms(const ConvolutionForm& form, int64_t terms) {
    if (form.sums_pixels) return terms > 16;
    if (form.group > 0) return form.extents.terms % terms == 0;
    const bool leaves_less = rounded_up(form.extents.terms, 64) * 20 >= rounded_up(form.extents.terms, terms) * 23;
    return terms == 64 || form.extents.terms <= terms || (terms == 32 && leaves_less);
}
bool fits_rows(const ConvolutionForm& form, int64_t rows) {
    return !form.sums_pixels || form.group == 0 || form.group % rows == 0;
}
std::vector<int64_t> columns_to_try(const ConvolutionForm& form) {
    constexpr double long_sums = 512;
    std::vector<int64_t> columns{16, 32, 64, 96, 128, 160, 192, 224, 256};
    const int64_t extent = form.extents.columns;
    if (form.terms_are_neighbours && as_double(form.extents.terms) * form.extents.taps >= long_sums)
        for (int64_t tiles = divided(extent, 256); tiles <= divided(extent, 64); ++tiles)
            columns.push_back(rounded_up(divided(extent, tiles), 16));
    const bool divides = !form.sums_pixels && form.group > 0;
    if (divides) columns.push_back(form.group);
    std::erase_if(columns, [&](int64_t each) {
        // Lines of a copy whose pixels are terms are whole.
        const bool has_lines = form.sums_pixels && each % 64 != 0 && (each > 32 || extent > each);
        return has_lines || (divides ? each > 256 || extent % each != 0 : !has_columns(each, extent));
    });
    return columns;
}

bool takes_parts(const ConvolutionForm& form) { return form.takes_parts && (form.sums_pixels || form.group == 0); }

/// With as many stages as there is room for, and all numbers of parts.
void visit_parts(const ConvolutionForm& form, ConvolutionTiles tiles, const Target& target, const VisitTiles& visit) {
    const int64_t most_parts =
        takes_parts(form) ? std::min<int64_t>(divided(form.extents.terms, tiles.terms), target.multiprocessors) : 1;
    tiles.stages = convolution_stages(tiles, target);
    if (!holds_sums(tiles) || tiles.stages < 2) return;
    for (tiles.parts = 1; tiles.parts <= most_parts; ++tiles.parts) {
        const double cycles = cycles_of(form, tiles, target);
        if (tiles.parts > 1) tiles.box_columns = 0;
        visit(tiles, cycles);
    }
}

}  // namespace

int convolution_stages(const ConvolutionTiles& tiles, const Target& target) {
    constexpr int64_t most = 8, reserved = 2048;
    const int64_t bytes = (tiles.rows + tiles.columns * tiles.taps) * tiles.terms * 2,
                  leaving =
                      tiles.rows * std::min(tiles.columns, tiles.box_columns) * 2 * tiles.ping_pong * tiles.box_stages;
    return static_cast<int>(std::clamp<int64_t>((target.shared_bytes - reserved - leaving) / bytes, 0, most));
}

bool may_leave_as_boxes(const ConvolutionForm& form) {
    constexpr int64_t whole_units = 8;  // elements, that boxes write
    return !form.sums_pixels && !form.has_phases() && form.group == 0 && form.extents.columns % whole_units == 0 &&
           bytes_of(form.result) == 2;
}

double convolution_cycles(const ConvolutionForm& form, const ConvolutionTiles& tiles, const Target& target) {
    return cycles_of(form, tiles, target);
}

void visit_convolution_tiles(const ConvolutionForm& form, const Target& target, const VisitTiles& visit) {
    const ConvolutionExtents& extents = form.extents;
    const bool sums_pixels = form.sums_pixels, boxes = may_leave_as_boxes(form);
    for (int64_t rows : {64, 128, 192, 256, 384, 512})
        for (int64_t columns : columns_to_try(form))
            for (int warpgroups : {1, 2, 3})
                for (const auto& [taps, first] : taps_together(form)) {
                    const bool shares_taps =
                        rows == rows_of_unit && warpgroups > 1 && warpgroups == first && taps > first;
                    if (rows % (warpgroups * rows_of_unit) != 0 && !shares_taps) continue;
                    if (!fits_rows(form, rows)) continue;
                    if (warpgroups == 1 && rows > (sums_pixels ? 2 : 1) * rows_of_unit) continue;  // measured: slower
                    if (taps > 1 && rows * columns > 64 * 192) continue;  // measured: no faster
                    ConvolutionTiles tiles{.rows = rows, .columns = columns, .warpgroups = warpgroups};
                    tiles.taps = taps;
                    if (boxes && extents.rows >= rows && extents.columns >= columns)
                        tiles.box_columns = columns_of_boxes(form, tiles);
                    if (form.turns_result && tiles.box_columns == 0) continue;
                    for (int64_t terms : {64, 32, 16}) {
                        if (!fits_terms(form, terms)) continue;
                        tiles.terms = terms;
                        visit_parts(form, tiles, target, visit);
                    }
                }
}

std::optional<ConvolutionTiles> convolution_tiles(const ConvolutionForm& form, const Target& target) {
    std::optional<ConvolutionTiles> best;
    double least = -1;
    visit_convolution_tiles(form, target, [&](const ConvolutionTiles& tiles, double cycles) {
        if (least < 0 || cycles < least * 0.995) least = cycles, best = tiles;
    });
    return best;
}

void require_convolution_tiles(const ConvolutionTiles& tiles, std::source_location where) {
    require_sizes("convolution tiles",
                  {{"rows", tiles.rows},
                   {"columns", tiles.columns},
                   {"terms", tiles.terms},
                   {"warpgroups", tiles.warpgroups},
                   {"stages", tiles.stages},
                   {"parts", tiles.parts},
                   {"ping_pong", tiles.ping_pong},
                   {"box_columns", tiles.box_columns, 0},
                   {"box_stages", tiles.box_stages},
                   {"taps", tiles.taps}},
                  where);
}

}  // namespace tw::schedules
