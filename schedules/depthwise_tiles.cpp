#include <algorithm>

#include "schedules/depthwise.h"
#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

constexpr int64_t most_registers = 224;  // by the estimate, which knows no addresses
constexpr int64_t longest_side = 256;    // of a box
constexpr int64_t most_threads = 512;
constexpr int64_t most_that_meet = 128;  // threads that add up sums of pixels, each of which reads those of all

/// What tiles cost, in a thread's instructions, registers and bytes of shared memory.
class Model {
public:
    Model(const DepthwiseWindows& s, ConvolutionPass pass, const Target& target)
        : s_(s),
          pass_(pass),
          target_(target),
          phases_(pass == ConvolutionPass::DataGradient ? s.rows.stride * s.columns.stride : 1),
          step_(pass == ConvolutionPass::DataGradient ? 1 : s.columns.stride),
          row_step_(pass == ConvolutionPass::DataGradient ? 1 : s.rows.stride),
          pixels_h_(pixels_along(s.rows)),
          pixels_w_(pixels_along(s.columns)) {}

    /// Whether boxes, registers and shared memory hold them.
    bool fits(const DepthwiseTiles& t) const {
        return rows_seen(t.rows * t.thread_rows, s_.rows.taps) <= longest_side &&
               columns_seen(t.columns * t.thread_columns) <= longest_side && t.threads() % 32 == 0 &&
               t.threads() <= (sums_pixels() ? most_that_meet : most_threads) &&
               registers(t) <= std::min(most_registers, target_.registers / t.threads() - 8) &&
               blocks_of_multiprocessor(t) > 0;
    }

    /// A multiprocessor's clock cycles until all blocks are done.
    double cycles(const DepthwiseTiles& t) const {
        constexpr double bytes_a_cycle = 18, least_of_step = 1200, of_block = 2000, warps_wanted = 10;
        const int64_t tiles =
            s_.images * divided(pixels_h_, t.rows * t.thread_rows) * divided(pixels_w_, t.columns * t.thread_columns);
        const int64_t blocks = divided(tiles, t.steps) * divided(s_.channels, 2 * t.lanes) *
                               (sums_pixels() ? divided(s_.rows.taps, t.taps) : 1);
        const int64_t resident = std::min(blocks_of_multiprocessor(t), divided(blocks, target_.multiprocessors));
        const double warps = as_double(t.threads()) / 32, steps = as_double(std::min(t.steps, tiles));
        const double idle = std::max(1.0, warps_wanted / (warps * as_double(resident)));
        const double issued = as_double(resident) * (instructions(t) * warps + of_box) * idle / 4,
                     moved = as_double(resident * bytes_of_step(t)) / bytes_a_cycle;
        const double step = std::max(std::max(issued, moved) + 0.25 * std::min(issued, moved), least_of_step);
        const double meeting =
            sums_pixels() ? as_double(resident * taps_of_thread(t)) * (8 + 4 * warps) * warps / 4 : 0;
        return as_double(divided(blocks, target_.multiprocessors * resident)) * (steps * step + meeting + of_block);
    }

private:
    int64_t pixels_along(const DepthwiseSide& side) const {
        return pass_ == ConvolutionPass::DataGradient ? divided(side.extent, side.stride) : side.windows;
    }
    bool sums_pixels() const { return pass_ == ConvolutionPass::WeightGradient; }
    int64_t taps_of_thread(const DepthwiseTiles& t) const { return t.taps * s_.columns.taps; }

    int64_t rows_seen(int64_t pixels, int64_t taps) const { return depthwise_window(s_.rows, pass_, pixels, taps); }
    int64_t columns_seen(int64_t pixels) const { return depthwise_window(s_.columns, pass_, pixels, s_.columns.taps); }

    /// Of 4 bytes, that hold two channels.
    int64_t words_of_pair() const { return bytes_of(s_.type) / 2; }

    static constexpr double of_box = 120;  // instructions of the thread that asks for it

    double instructions(const DepthwiseTiles& t) const {
        constexpr double of_step = 40;
        const double of_word = s_.type == f32 ? 1 : 3;  // a load, and two conversions
        const int64_t pixels = t.thread_rows * t.thread_columns;
        const int64_t rows_of_taps = sums_pixels() ? t.taps : s_.rows.taps, taps = rows_of_taps * s_.columns.taps;
        const double words = as_double(rows_seen(t.thread_rows, rows_of_taps) * columns_seen(t.thread_columns));
        const double others = sums_pixels() ? of_word * as_double(pixels) : as_double(taps + 2 * pixels * phases_);
        return 2 * as_double(pixels * taps) + words * of_word * (conflicts(t) ? 1.15 : 1) + others + of_step;
    }

    /// Whether lanes of a warp that have other pixels meet in banks of shared memory.
    bool conflicts(const DepthwiseTiles& t) const {
        return t.lanes < 32 && t.thread_columns * step_ * t.lanes % 32 == 0;
    }

    /// As ptxas has been seen to take them: sums, the rows of a window that the next row of taps meets again, taps.
    int64_t registers(const DepthwiseTiles& t) const {
        constexpr int64_t others = 34;
        const int64_t pixels = t.thread_rows * t.thread_columns;
        const int64_t kept = std::min(t.thread_rows - 1, (sums_pixels() ? t.taps : s_.rows.taps) - 1) * row_step_ *
                             columns_seen(t.thread_columns);
        if (sums_pixels()) return 2 * taps_of_thread(t) + (pixels * 4 / 3 + kept / 2) * words_of_pair() + others;
        return 2 * (pixels * phases_ + s_.columns.taps) + kept * 3 / 2 + others;
    }

    int64_t bytes_of_tile(const DepthwiseTiles& t) const {
        const int64_t rows = t.rows * t.thread_rows, columns = t.columns * t.thread_columns;
        const int64_t pixels = rows_seen(rows, sums_pixels() ? t.taps : s_.rows.taps) * columns_seen(columns);
        return (pixels + (sums_pixels() ? rows * columns : 0)) * t.lanes * 4 * words_of_pair();
    }

    /// That arrive and leave; short rows of a box take as long as longer ones.
    int64_t bytes_of_step(const DepthwiseTiles& t) const {
        constexpr int64_t least_lanes = 16;
        const int64_t stored =
            sums_pixels() ? 0 : t.threads() * t.thread_rows * t.thread_columns * phases_ * 4 * words_of_pair();
        return bytes_of_tile(t) * std::max(t.lanes, least_lanes) / t.lanes + stored;
    }

    int64_t blocks_of_multiprocessor(const DepthwiseTiles& t) const {
        constexpr int64_t reserved = 2048;
        int64_t bytes = 2 * bytes_of_tile(t) + reserved;
        if (sums_pixels()) bytes += t.threads() * taps_of_thread(t) * 8;  // where parts meet
        if (bytes > target_.shared_bytes) return 0;
        const int64_t of_registers = target_.registers / (rounded_up(registers(t), 8) * t.threads());
        return std::min({of_registers, target_.shared_bytes / bytes, 2048 / t.threads()});
    }

    const DepthwiseWindows& s_;
    const ConvolutionPass pass_;
    const Target& target_;
    const int64_t phases_, step_, row_step_, pixels_h_, pixels_w_;
};

/// Rows of taps whose sums registers hold, about equally many a thread.
int64_t rows_of_taps(const DepthwiseWindows& s) {
    constexpr int64_t most_taps = 56;
    const int64_t most = std::clamp<int64_t>(most_taps / s.columns.taps, 1, s.rows.taps);
    return divided(s.rows.taps, divided(s.rows.taps, most));
}

}  // namespace

DepthwiseTiles depthwise_tiles(const DepthwiseWindows& windows, ConvolutionPass pass, const Target& target) {
    const Model model(windows, pass, target);
    DepthwiseTiles best{.thread_rows = 1, .thread_columns = 1, .rows = 4, .columns = 1, .lanes = 32, .steps = 2};
    if (windows.is_signal) std::swap(best.rows, best.columns);
    best.taps = rows_of_taps(windows);
    double least = -1;
    auto consider = [&](DepthwiseTiles tiles) {
        if ((windows.is_signal && tiles.rows * tiles.thread_rows > 1) || !model.fits(tiles)) return;
        for (tiles.steps = 2; tiles.steps <= 32; ++tiles.steps) {
            const double cycles = model.cycles(tiles);
            if (least < 0 || cycles < least * 0.995) least = cycles, best = tiles;
        }
    };
    for (int64_t thread_rows : {1, 2, 3, 4, 5, 6, 7, 8})
        for (int64_t thread_columns : {1, 2, 3, 4, 5, 6, 7, 8, 10, 14})
            for (int64_t lanes : {8, 16, 32})
                for (int64_t columns : {1, 2, 3, 4, 7, 8})
                    for (int64_t rows : {1, 2, 3, 4, 7, 8, 14})
                        consider({thread_rows, thread_columns, rows, columns, lanes, 2, best.taps});
    return best;
}

}  // namespace tw::schedules
