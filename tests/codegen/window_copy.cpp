#include "tests/codegen/window_copy.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace tw {
namespace {

int64_t product(const std::vector<int64_t>& numbers) {
    return std::accumulate(numbers.begin(), numbers.end(), int64_t{1}, std::multiplies<>());
}

bool reads_any(const WindowDimension& of) {
    for (int64_t p = 0; p < of.results; ++p)
        for (int64_t r = 0; r < of.taps; ++r) {
            const int64_t place = p * of.stride + r * of.reach - of.padding;
            if (place >= 0 && place < of.extent) return true;
        }
    return false;
}

std::string numbered(const char* name, size_t d) { return name + std::to_string(d); }

}  // namespace

std::string WindowCopy::text() const {
    constexpr const char *of_pixels[] = {"images", "image", "row", "patch"},
                         *of_taps[] = {"step", "around", "last", "all"};
    std::string all =
        fmt::format("{} of {} images, {} x {} channels, pixels of {} by {}, taps: {}, {} terms{}{}", name_of(type),
                    images, groups, channels, of_pixels[static_cast<int>(pixels)], fmt::join(pixels_of_tile, " x "),
                    of_taps[static_cast<int>(taps)], terms, channels_first ? ", channels first" : "",
                    one_block_loop ? ", one loop of blocks" : "");
    for (const WindowDimension& d : dimensions)
        all += fmt::format(" [extent {} results {} taps {} stride {} reach {} padding {}]", d.extent, d.results, d.taps,
                           d.stride, d.reach, d.padding);
    return all;
}

std::vector<int64_t> WindowCopy::results() const {
    std::vector<int64_t> all;
    for (const WindowDimension& d : dimensions) all.push_back(d.results);
    return all;
}

/// Tiles of pixels, of a rectangle along dimension d.
int64_t WindowCopy::tiles(size_t d) const {
    const std::vector<int64_t> all = results();
    const int64_t last = dimensions.size() - d;
    const int64_t count = pixels == PixelLoops::Images  ? images * product(all)
                          : pixels == PixelLoops::Image ? product(all)
                                                        : all[d];
    const int64_t tile = pixels == PixelLoops::Patch && last == 2 ? pixels_of_tile[0] : pixels_of_tile.back();
    return (count + tile - 1) / tile;
}

/// What blocks have of their own, slowest first.
std::vector<WindowCopy::Digit> WindowCopy::blocks() const {
    std::vector<Digit> all;
    const size_t rank = dimensions.size();
    if (groups > 1) all.push_back({"group", groups});
    if (pixels != PixelLoops::Images) all.push_back({axis_of_image, images});
    const bool row = pixels == PixelLoops::Row, patch = pixels == PixelLoops::Patch;
    for (size_t d = 0; (row || patch) && d + (patch ? 2 : 1) < rank; ++d)
        all.push_back({axis(d), dimensions[d].results});
    if (patch) all.push_back({"row_tile", tiles(rank - 2)});
    all.push_back({"tile", tiles(rank - 1)});
    return all;
}

/// What a step has of its own, slowest first.
std::vector<WindowCopy::Digit> WindowCopy::steps() const {
    std::vector<Digit> all;
    for (size_t d = 0; d < dimensions.size(); ++d)
        if (!copies_tap(d)) all.push_back({numbered("r", d), dimensions[d].taps});
    const Digit channel{"channel", (channels + terms - 1) / terms};
    all.insert(channels_first ? all.begin() : all.end(), channel);
    return all;
}

std::vector<WindowCopy::Digit> WindowCopy::around() const {
    std::vector<Digit> all = blocks();
    auto extent_of = [](const std::vector<Digit>& digits) {
        int64_t extent = 1;
        for (const Digit& digit : digits) extent *= digit.extent;
        return extent;
    };
    if (one_block_loop && all.size() > 1) all = {{"block", extent_of(all)}};
    const std::vector<Digit> apart = steps();
    if (taps == TapLoops::Step && apart.size() > 1)
        all.push_back({"step", extent_of(apart)});
    else
        all.insert(all.end(), apart.begin(), apart.end());
    return all;
}

LoopValues WindowCopy::taken_apart(LoopValues around) const {
    auto take_apart = [&](const char* fused, const std::vector<Digit>& digits) {
        int64_t rest = around.at(fused);
        if (digits.size() < 2) return;
        for (size_t d = digits.size(); d-- > 0; rest /= digits[d].extent)
            around[digits[d].name] = rest % digits[d].extent;
    };
    if (one_block_loop) take_apart("block", blocks());
    if (taps == TapLoops::Step) take_apart("step", steps());
    return around;
}

WindowCopy::Element WindowCopy::element(const LoopValues& at) const {
    const size_t rank = dimensions.size();
    std::vector<int64_t> window(rank);
    int64_t image = at.at(axis_of_image);
    int64_t pixel = at.at("tile") * pixels_of_tile.back() + at.at("pixel");
    if (fuses_pixels()) {
        for (size_t d = rank; d-- > 0; pixel /= dimensions[d].results) window[d] = pixel % dimensions[d].results;
        if (pixels == PixelLoops::Images) image = pixel;
    } else {
        for (size_t d = 0; d < rank; ++d) window[d] = at.at(axis(d));
        window[rank - 1] = pixel;
        if (pixels == PixelLoops::Patch) window[rank - 2] = at.at("row_tile") * pixels_of_tile[0] + at.at("row");
        pixel = 0;
    }
    Element element{image < images && pixel >= 0, {image}};
    if (pixels == PixelLoops::Image) element.is_read = pixel == 0;
    for (size_t d = 0; d < rank; ++d) {
        const WindowDimension& of = dimensions[d];
        element.is_read = element.is_read && window[d] < of.results;
        element.indices.push_back(window[d] * of.stride + at.at(numbered("r", d)) * of.reach - of.padding);
    }
    const int64_t channel = at.at("channel") * terms + at.at("k");
    element.indices.push_back(channel < channels ? at.at("group") * channels + channel : -1);
    return element;
}

WindowCopy::Declaration WindowCopy::declaration() const {
    const size_t rank = dimensions.size();
    Shape of_x{images}, of_w, of_y{images};
    std::vector<Axis> axes;
    for (size_t d = 0; d < rank; ++d) {
        of_x.emplace_back(dimensions[d].extent);
        of_w.emplace_back(dimensions[d].taps);
        of_y.emplace_back(dimensions[d].results);
        axes.push_back(reduce_axis(numbered("r", d), dimensions[d].taps));
    }
    axes.push_back(reduce_axis("c", channels));
    of_x.emplace_back(channels * groups);
    of_w.emplace_back(channels);
    of_w.emplace_back(filters * groups);
    of_y.emplace_back(filters * groups);
    const Tensor x = input("x", type, of_x), w = input("w", type, of_w);
    const Tensor y = compute("y", of_y, [&](const std::vector<Expr>& at) {
        std::vector<Operand> in_x{at[0]}, in_w;
        for (size_t d = 0; d < rank; ++d) {
            in_x.emplace_back(at[d + 1] * dimensions[d].stride + axes[d].variable * dimensions[d].reach -
                              dimensions[d].padding);
            in_w.emplace_back(axes[d]);
        }
        in_x.emplace_back(groups > 1 ? at.back() / filters * channels + axes.back().variable : axes.back().variable);
        in_w.emplace_back(axes.back());
        in_w.emplace_back(at.back());
        return sum(cast(f32, padded(x, 0).read(in_x)) * cast(f32, w.read(in_w)), axes);
    });
    return {x, y};
}

WindowCopy::Loops WindowCopy::split_loops(Schedule& s, const Tensor& y) const {
    const size_t rank = dimensions.size();
    const std::vector<Loop> data = s.data_loops(y);
    Loops loops = {{axis_of_image, data[0]}, {"column", data.back()}};
    for (size_t d = 0; d < rank; ++d) loops[axis(d)] = data[d + 1];
    auto split = [&](const std::string& loop, int64_t by, const char* outer, const char* inner) {
        auto [one, other] = s.split(loops.at(loop), by, Tail::Mask, {outer, inner});
        loops[outer] = one;
        loops[inner] = other;
    };
    if (groups > 1) split("column", filters, "group", "in_group");
    std::vector<Loop> fused(data.begin() + (pixels == PixelLoops::Images ? 0 : 1), data.end() - 1);
    if (fuses_pixels()) loops["m"] = fused.size() > 1 ? s.fuse(fused, "m") : fused[0];
    split(fuses_pixels() ? "m" : axis(rank - 1), pixels_of_tile.back(), "tile", "pixel");
    if (pixels == PixelLoops::Patch) split(axis(rank - 2), pixels_of_tile[0], "row_tile", "row");
    for (size_t d = 0; d < rank; ++d) loops[numbered("r", d)] = s.reduce(y, static_cast<int>(d));
    loops["c"] = s.reduce(y, static_cast<int>(rank));
    split("c", terms, "channel", "k");
    return loops;
}

Schedule WindowCopy::schedule() const {
    const auto [x, y] = declaration();
    Schedule s({y}, target("sm_90a"));
    const Loops loops = split_loops(s, y);
    std::vector<Loop> of_blocks, of_steps;
    for (const Digit& digit : blocks()) of_blocks.push_back(loops.at(digit.name));
    for (const Digit& digit : steps()) of_steps.push_back(loops.at(digit.name));
    std::vector<Loop> order = of_blocks;
    order.insert(order.end(), of_steps.begin(), of_steps.end());
    for (size_t d = 0; d < dimensions.size(); ++d)
        if (copies_tap(d)) order.push_back(loops.at(numbered("r", d)));
    if (pixels == PixelLoops::Patch) order.push_back(loops.at("row"));
    for (const char* name : {"pixel", groups > 1 ? "in_group" : "column", "k"}) order.push_back(loops.at(name));
    s.order(order);
    if (one_block_loop && of_blocks.size() > 1) of_blocks = {s.fuse(of_blocks, "block")};
    const Level levels[] = {grid.x, grid.y, grid.z};
    for (size_t b = 0; b < std::min(of_blocks.size(), std::size(levels)); ++b) s.bind(of_blocks[b], levels[b]);
    const Loop step = taps == TapLoops::Step && of_steps.size() > 1 ? s.fuse(of_steps, "step") : of_steps.back();
    s.via(s.stage(y, x, Memory::Shared, step, As::Matrix), Copy::Tma);
    s.pipeline(step, {.stages = 2});
    return s;
}

WindowCopy random_window_copy(std::mt19937& random) {
    auto between = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); };
    auto chance = [&](int64_t of) { return between(1, of) == 1; };
    WindowCopy copy{};
    copy.type = chance(3) ? f32 : bf16;
    copy.images = between(1, 3);
    copy.groups = chance(4) ? between(2, 3) : 1;
    copy.terms = chance(4) ? 64 * between(1, 2) : 8 * between(1, 4);
    const bool tail = copy.groups == 1 || chance(4);  // behind which another group's channels stand
    copy.channels = chance(12) ? between(1, 40) : tail ? 8 * between(1, 6) : copy.terms * between(1, 2);
    if (copy.terms > 32 && chance(2)) copy.channels = copy.terms + 8 * between(0, 4);
    copy.filters = between(1, 3);
    const int64_t rank = between(1, 3);
    const bool steps_alike = chance(2);
    const int64_t stride = chance(2) ? 1 : between(2, 8);
    for (int64_t d = 0; d < rank; ++d) {
        WindowDimension of{};
        of.extent = between(1, 12);
        of.taps = chance(3) ? 1 : between(1, rank == 3 ? 3 : 5);
        of.stride = steps_alike ? stride : chance(2) ? 1 : between(2, 8);
        of.reach = (chance(3) ? between(2, 3) : 1) * (chance(4) ? -1 : 1);
        of.padding = between(-1, 4) + (of.reach < 0 ? of.reach * (of.taps - 1) : 0);
        of.results = between(1, 12 / std::min<int64_t>(of.stride, 4) + 2);
        if (!reads_any(of)) of.padding = of.reach < 0 ? of.reach * (of.taps - 1) : 0;
        copy.dimensions.push_back(of);
    }
    copy.pixels = chance(2) ? PixelLoops::Images : static_cast<PixelLoops>(between(1, rank == 1 ? 2 : 3));
    copy.taps = chance(2) ? TapLoops::Step : static_cast<TapLoops>(between(1, 3));
    copy.channels_first = chance(2);
    copy.one_block_loop = chance(3);
    copy.pixels_of_tile = {chance(2) ? 8 * between(1, 8) : between(1, 40)};
    if (copy.pixels == PixelLoops::Patch)
        copy.pixels_of_tile = {between(1, 4), chance(2) ? 8 * between(1, 2) : between(1, 12)};
    return copy;
}

}  // namespace tw
