#include "schedules/depthwise.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "codegen/lower.h"
#include "dsl/edit.h"
#include "dsl/simplify.h"
#include "schedules/choose.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr int64_t most_taps = 128;  // that a thread goes through without a loop

/// A kernel that makes elements one by one, neighbours by neighbouring threads.
void schedule_elements(Schedule& s, const Tensor& tensor, int64_t neighbours) {
    const Loop all = s.fuse(s.data_loops(tensor), "all");
    if (neighbours == 1) {
        auto [block, share] = s.split(all, 256, Tail::Mask, {"block", "t"});
        s.bind(block, grid.x);
        s.bind(share, thread);
        return;
    }
    auto [block, share, element] = s.split(all, {256 * neighbours, neighbours}, Tail::Mask, {"block", "t", "element"});
    s.bind(block, grid.x);
    s.bind(share, thread);
    s.bind(element, tw::vector);
}

/// Of loops inside of one another, outermost first: the innermost ones, as long as the text stays short.
std::vector<Loop> unrollable(const Schedule& s, const std::vector<Loop>& loops) {
    constexpr int64_t most = 8192;  // copies of what is inside
    std::vector<Loop> found;
    int64_t copies = 1;
    for (size_t l = loops.size(); l-- > 0;) {
        const int64_t extent = require_constant(s.extent(loops[l]));
        if (copies * extent <= most && extent > 1) found.push_back(loops[l]);
        copies *= extent;
    }
    return found;
}
void unroll(Schedule& s, const std::vector<Loop>& loops) {
    if (!loops.empty()) s.bind(loops, unrolled);
}

/// By boxes, with zeros around, the next tile's while threads sum this one's.
void stage_tiles(Schedule& s, const std::vector<StageRef>& sums, const std::vector<Tensor>& tiled, const Loop& step) {
    std::vector<CopyOf> wanted;
    for (const Tensor& image : tiled) wanted.push_back({sums, image});
    const std::vector<Stage> copies = s.stage(wanted, Memory::Shared, step, std::nullopt);
    for (const Tensor& image : tiled) s.inline_stage(image);
    s.pipeline(step, {.stages = 2});
    for (const Stage& copy : copies) s.via(copy, Copy::Tma);
}

/// Elements of a result that are sums of parts: threads share the parts, of neighbouring channels.
void share_parts(Schedule& s, const Tensor& result, const Tensor& sums, int channels) {
    constexpr int64_t shares = 16, results = 16;
    std::vector<Loop> loops = s.data_loops(result);
    std::rotate(loops.begin() + channels, loops.begin() + channels + 1, loops.end());
    if (channels + 1 < result.rank()) s.order(loops);
    auto [block, element] = s.split(s.fuse(loops, "all"), results, Tail::Mask, {"block", "element"});
    s.bind(block, grid.x);
    s.bind(element, thread);
    s.at({sums}, element, Memory::Registers);
    auto [step, share] = s.split(s.reduce(sums), shares, Tail::Mask, {"step", "share"});
    s.order({share, step});
    s.bind(share, thread);
}

/// Taken from the loop, if there are several: the loop becomes that over pixels that are a stride apart.
std::vector<Loop> phase_of(Schedule& s, Loop& pixels, int64_t stride, const SplitNames& names) {
    if (stride == 1) return {};
    auto [pixel, phase] = s.split(pixels, stride, Tail::Mask, names);
    pixels = pixel;
    return {phase};
}

/// Of images; the row of a signal is one of its loops, too.
std::array<Loop, 4> loops_of_images(Schedule& s, const Tensor& result) {
    if (result.rank() == 4) return s.loops<4>(result);
    auto [n, w, c] = s.loops<3>(result);
    auto [image, row] = s.split(n, 1, {"n", "p"});
    return {image, row, w, c};
}

}  // namespace

void schedule_windows_in_registers(Schedule& s, const Tensor& result, const std::vector<Tensor>& sums,
                                   const Tensor& tiled, const PixelStride& stride, const DepthwiseTiles& tiles,
                                   std::source_location where) {
    CalledFrom caller(where);
    auto [n, h, w, c] = loops_of_images(s, result);
    const bool in_pairs = divisor_of(s.extent(c)) % 2 == 0;
    const std::vector<Loop> phase_h = phase_of(s, h, stride.rows, {"p", "phase_p"}),
                            phase_w = phase_of(s, w, stride.columns, {"q", "phase_q"});
    auto [tile_p, thread_p, row] =
        s.split(h, {tiles.rows * tiles.thread_rows, tiles.thread_rows}, Tail::Mask, {"tile_p", "thread_p", "row"});
    auto [tile_q, thread_q, column] = s.split(w, {tiles.columns * tiles.thread_columns, tiles.thread_columns},
                                              Tail::Mask, {"tile_q", "thread_q", "column"});
    auto [tile_c, lane_c, pair] = s.split(c, {2 * tiles.lanes, 2}, Tail::Mask, {"tile_c", "lane_c", "pair"});
    std::vector<Loop> pixels{row};
    pixels.insert(pixels.end(), phase_h.begin(), phase_h.end());
    pixels.push_back(column);
    pixels.insert(pixels.end(), phase_w.begin(), phase_w.end());
    std::vector<Loop> order{n, tile_p, tile_q, tile_c, thread_p, thread_q, lane_c};
    order.insert(order.end(), pixels.begin(), pixels.end());
    order.push_back(pair);
    s.order(order);
    auto [run, step] = s.split(s.fuse({n, tile_p, tile_q}, "tile"), tiles.steps, Tail::Mask, {"run", "step"});
    s.order({run, tile_c, step});
    s.bind(s.fuse(run, tile_c, "block"), grid.x);
    s.bind({thread_p, thread_q, lane_c}, thread);
    std::vector<Loop> all_unrolled = unrollable(s, pixels);
    if (in_pairs) s.bind(pair, tw::vector);
    const std::vector<StageRef> stages(sums.begin(), sums.end());
    s.at(stages, lane_c, Memory::Registers);
    for (const Tensor& each : sums) {
        auto [image, p, q, channel] = s.loops<4>(each);
        const std::vector<Loop> window = {s.reduce(each, 0), p, s.reduce(each, 1), q, channel};
        s.order(window);  // a row after the other, which stays as long as rows of taps meet it
        const bool few = require_constant(s.extent(window[0])) * require_constant(s.extent(window[2])) <= most_taps;
        const auto of_window = unrollable(s, few ? window : std::vector<Loop>(window.begin() + 1, window.end()));
        all_unrolled.insert(all_unrolled.end(), of_window.begin(), of_window.end());
    }
    unroll(s, all_unrolled);
    stage_tiles(s, stages, {tiled}, step);
}

void schedule_taps_in_registers(Schedule& s, const Tensor& result, const Tensor& sums, const std::vector<Tensor>& tiled,
                                const DepthwiseTiles& tiles, int channels, std::source_location where) {
    CalledFrom caller(where);
    auto [tile_p, thread_p, row] = s.split(s.reduce(sums, 1), {tiles.rows * tiles.thread_rows, tiles.thread_rows},
                                           Tail::Divide, {"tile_p", "thread_p", "row"});
    auto [tile_q, thread_q, column] =
        s.split(s.reduce(sums, 2), {tiles.columns * tiles.thread_columns, tiles.thread_columns}, Tail::Divide,
                {"tile_q", "thread_q", "column"});
    const Loop n = s.reduce(sums, 0);
    s.order({n, tile_p, tile_q, thread_p, row, thread_q, column});
    auto [part, step] = s.split(s.fuse({n, tile_p, tile_q}, "tile"), tiles.steps, Tail::Mask, {"part", "step"});
    const Stage parts = s.rfactor(sums, part);
    auto [of_part, r, t, c] = s.loops<4>(parts);
    auto [tile_c, lane_c, pair] = s.split(c, {2 * tiles.lanes, 2}, Tail::Divide, {"tile_c", "lane_c", "pair"});
    auto [tile_r, tap] = s.split(r, tiles.taps, Tail::Mask, {"tile_r", "r_in_tile"});
    s.order({of_part, tile_r, tile_c, thread_p, thread_q, lane_c, step, tap, row, column, t, pair});
    s.bind(s.fuse({of_part, tile_r, tile_c}, "block"), grid.x);
    s.bind({s.fuse(thread_p, thread_q, "share"), lane_c}, thread);
    unroll(s, unrollable(s, {tap, row, column, t, pair}));
    stage_tiles(s, {parts}, tiled, step);
    share_parts(s, result, sums, channels);
}

void schedule_depthwise(Schedule& s, const Depthwise& d, const Tensor& result, std::source_location where) {
    CalledFrom caller(where);
    if (d.pass == ConvolutionPass::WeightGradient)
        schedule_taps_in_registers(s, result, d.sums[0], d.tiled, d.tiles, d.channels_of_taps);
    else
        schedule_windows_in_registers(s, result, d.sums, d.tiled[0], d.phases, d.tiles);
    if (d.taps.defined()) schedule_elements(s, d.taps, 1);
    for (const Tensor& copy : d.copies) schedule_elements(s, copy, piece);
}

Schedule depthwise_schedule(const DepthwiseShape& shape, ConvolutionPass pass,
                            const std::optional<DepthwiseTiles>& tiles, const Target& target,
                            std::source_location where) {
    CalledFrom caller(where);
    const DepthwiseWindows windows = shape.windows();
    auto by_rules = [&] {
        const DepthwiseTiles one{.thread_rows = 1, .thread_columns = 1, .rows = 1, .columns = 1, .lanes = 1};
        return choose_schedule({declare_depthwise(shape, pass, one).result}, target, where);
    };
    if (!target.has_tma || !windows.reads_image()) return by_rules();
    const Depthwise d = declare_depthwise(shape, pass, tiles ? *tiles : depthwise_tiles(windows, pass, target));
    try {
        Schedule s({d.result}, target);
        schedule_depthwise(s, d, d.result);
        if (!tiles) codegen::lower(s.tree(), target);  // passes say what no step does, as where masks may be
        return s;
    } catch (const Error& error) {
        if (tiles) throw;
        Schedule s = by_rules();
        Edit::note(s, fmt::format("by the rules for any computation, without tiles of its own; the model's, {}, cannot "
                                  "be built: {}",
                                  tiling_text(d.tiles), error.what()));
        return s;
    }
}

}  // namespace tw::schedules
