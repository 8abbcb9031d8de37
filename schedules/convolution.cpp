#include "schedules/convolution.h"

#include <algorithm>
#include <array>
#include <regex>

#include "dsl/differentiate.h"
#include "schedules/choose.h"
#include "schedules/convolve.h"
#include "schedules/producers.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr int64_t piece = 8;            // elements of 2 bytes together as 16
constexpr int64_t rows_of_unit = 64;    // of a wgmma
constexpr int registers_of_loads = 40;  // a thread

double as_double(int64_t count) { return static_cast<double>(count); }

int64_t pixels_along(int64_t size, int64_t kernel, const ConvolutionShape& s) {
    return (size + 2 * s.padding - (kernel - 1) * s.dilation - 1) / s.stride + 1;
}

bool has_pixels(const ConvolutionShape& s) {
    return s.height + 2 * s.padding > (s.kernel_h - 1) * s.dilation &&
           s.width + 2 * s.padding > (s.kernel_w - 1) * s.dilation;
}

}  // namespace

int64_t ConvolutionShape::rows() const { return pixels_along(height, kernel_h, *this); }
int64_t ConvolutionShape::columns() const { return pixels_along(width, kernel_w, *this); }

double ConvolutionShape::flops() const {
    return 2 * as_double(images * rows() * columns()) * as_double(filters * channels) * as_double(kernel_h * kernel_w);
}

double ConvolutionShape::bytes() const {
    const double elements = as_double(images) * (as_double(height * width) * as_double(channels) +
                                                 as_double(rows() * columns()) * as_double(filters)) +
                            as_double(filters * kernel_h) * as_double(kernel_w * channels);
    return elements * bytes_of(type);
}

namespace {

int64_t whole_pieces(int64_t elements) {
    return elements % piece == 0 ? elements : elements <= 2 * piece ? 2 * piece : rounded_up(elements, piece);
}

/// As the product's operands lie; of the forward pass filters are rows of them, of any number.
ConvolutionShape with_whole_pieces(const ConvolutionShape& shape, ConvolutionPass pass) {
    ConvolutionShape s = shape;
    s.channels = whole_pieces(s.channels);
    if (pass != ConvolutionPass::Forward) s.filters = whole_pieces(s.filters);
    return s;
}

/// y of operands of these extents.
Tensor sum_of_windows(const ConvolutionShape& s, const Tensor& x, const Tensor& w) {
    return convolve("y", x, w, {}, {.stride = {s.stride}, .dilation = {s.dilation}, .padding = {s.padding}});
}

/// The tensor, or a copy of it with zeros behind its ends.
Tensor padded_copy(Convolution& c, const Tensor& tensor, const std::array<int64_t, 4>& extents) {
    bool fits = true;
    for (size_t d = 0; d < extents.size(); ++d) fits = fits && is_constant(tensor.shape()[d], extents[d]);
    if (fits) return tensor;
    Shape shape(extents.begin(), extents.end());
    c.copies.push_back(compute(tensor.name() + "_padded", shape,
                               [&](Expr a, Expr b, Expr d, Expr e) { return padded(tensor, 0)(a, b, d, e); }));
    return c.copies.back();
}

}  // namespace

Convolution declare_convolution(const ConvolutionShape& shape, ConvolutionPass pass, std::source_location where) {
    CalledFrom caller(where);
    user_check(std::min({shape.kernel_h, shape.kernel_w, shape.stride, shape.dilation}) > 0 && shape.padding >= 0 &&
                   has_pixels(shape),
               where,
               "convolution: a kernel of {} x {} with dilation {} and stride {} has no place in images of {} x {} with "
               "{} zeros around them",
               shape.kernel_h, shape.kernel_w, shape.dilation, shape.stride, shape.height, shape.width, shape.padding);
    const ConvolutionShape s = with_whole_pieces(shape, pass);
    const std::array<int64_t, 4> of_x{s.images, s.height, s.width, s.channels},
        of_w{s.filters, s.kernel_h, s.kernel_w, s.channels}, of_y{s.images, s.rows(), s.columns(), s.filters};
    Convolution c;
    c.x = input("x", s.type, {s.images, s.height, s.width, shape.channels});
    c.w = input("w", s.type, {shape.filters, s.kernel_h, s.kernel_w, shape.channels});
    if (pass == ConvolutionPass::Forward) {
        c.windows = padded_copy(c, c.x, of_x), c.other = padded_copy(c, c.w, of_w);
        c.result = c.product = sum_of_windows(s, c.windows, c.other);
        return c;
    }
    const bool of_data = pass == ConvolutionPass::DataGradient;
    c.dy = input("dy", s.type, {s.images, s.rows(), s.columns(), shape.filters});
    c.windows = padded_copy(c, c.dy, of_y);
    c.other = of_data ? padded_copy(c, c.w, of_w) : padded_copy(c, c.x, of_x);
    // What a gradient is of, it does not read.
    const Tensor of = of_data ? input("x", s.type, Shape(of_x.begin(), of_x.end()))
                              : input("w", s.type, Shape(of_w.begin(), of_w.end()));
    const Tensor y = of_data ? sum_of_windows(s, of, c.other) : sum_of_windows(s, c.other, of);
    c.result = c.product = gradients(y, c.windows, {of})[0];
    const Tensor& like = of_data ? c.x : c.w;
    if (s.channels != shape.channels || (!of_data && s.filters != shape.filters))
        c.result = compute("d" + like.name(), Shape(like.shape().begin(), like.shape().end()),
                           [&](Expr a, Expr b, Expr d, Expr e) { return c.product(a, b, d, e); });
    return c;
}

bool takes_warpgroups(const ConvolutionShape& s, ConvolutionPass pass, const Target& target) {
    const bool is_empty = s.images * s.height * s.width * s.channels * s.filters == 0;
    // Else gradients() solves for the taps and sums over pixels, or phases have no taps of their own.
    const bool has_taps = pass != ConvolutionPass::DataGradient ||
                          (s.kernel_h <= s.rows() && s.kernel_w <= s.columns() && (s.stride == 1 || s.dilation == 1));
    return target.has_wgmma && target.has_tma && !is_empty && has_taps;
}

namespace {

/// Tiles and what they multiply.
struct Work {
    int64_t rows, columns, terms;  // of the product, for each of
    int64_t products;              // such, or
    int64_t taps;                  // sums of so many
};

Work work_of(const ConvolutionShape& s, ConvolutionPass pass) {
    const int64_t taps = s.kernel_h * s.kernel_w, outputs = s.images * s.rows() * s.columns();
    switch (pass) {
        case ConvolutionPass::Forward: return {outputs, s.filters, s.channels, 1, taps};
        case ConvolutionPass::DataGradient: return {s.images * s.height * s.width, s.channels, s.filters, 1, taps};
        case ConvolutionPass::WeightGradient: return {s.filters, s.channels, outputs, taps, 1};
    }
    return {};
}

/// A multiprocessor's clock cycles for what a stage of the pipeline holds: of its tensor cores, or until it has come.
double cycles_of_stage(const ConvolutionTiles& tiles) {
    constexpr double products_a_cycle = 2048, bytes_a_cycle = 37, overhead = 40;
    const double rows = as_double(tiles.rows), columns = as_double(tiles.columns), terms = as_double(tiles.terms);
    return std::max(rows * columns * terms / products_a_cycle, (rows + columns) * terms * 2 / bytes_a_cycle) + overhead;
}

double cycles_of(const Work& work, const ConvolutionTiles& tiles, const Target& target) {
    constexpr double cycles_of_tile = 1500, bytes_a_cycle_of_parts = 1500;  // to begin and to store; of all together
    const int64_t steps = divided(divided(work.terms, tiles.terms) * work.taps, tiles.parts);
    const int64_t count =
        divided(work.rows, tiles.rows) * divided(work.columns, tiles.columns) * work.products * tiles.parts;
    const double rounds = as_double(divided(count, target.multiprocessors));
    const double sums = as_double(work.rows * work.columns) * as_double(work.products * tiles.parts) * 8;
    return rounds * (as_double(steps) * cycles_of_stage(tiles) + cycles_of_tile) +
           (tiles.parts > 1 ? sums / bytes_a_cycle_of_parts + 4000 : 0);
}

/// As many as shared memory holds, eight at most.
int stages_of(const ConvolutionTiles& tiles, const Target& target) {
    constexpr int64_t most = 8, reserved = 4096;
    const int64_t bytes = (tiles.rows + tiles.columns) * tiles.terms * 2;
    return static_cast<int>(std::clamp<int64_t>((target.shared_bytes - reserved) / bytes, 2, most));
}

}  // namespace

ConvolutionTiles convolution_tiles(const ConvolutionShape& shape, ConvolutionPass pass, const Target& target) {
    constexpr int64_t most_sums = 128;  // registers of a thread
    const Work work = work_of(with_whole_pieces(shape, pass), pass);
    const bool sums_pixels = pass == ConvolutionPass::WeightGradient;
    ConvolutionTiles best;
    double least = -1;
    for (int64_t rows : {64, 128, 192, 256, 384, 512})
        for (int64_t columns : {16, 32, 64, 96, 128, 160, 192, 224, 256})
            for (int warpgroups : {1, 2, 3}) {
                if (rows % (warpgroups * rows_of_unit) != 0 || rows * columns / warpgroups / 128 > most_sums) continue;
                if (warpgroups == 3 && rows * columns / warpgroups / 128 > 96) continue;
                if (columns > 16 && columns - (columns > 32 ? 32 : 16) >= work.columns) continue;
                ConvolutionTiles tiles{.rows = rows, .columns = columns, .terms = 64, .warpgroups = warpgroups};
                if (!sums_pixels && work.terms <= 32) tiles.terms = work.terms <= 16 ? 16 : 32;
                tiles.stages = stages_of(tiles, target);
                // Lines of the columns' copy are whole.
                if (sums_pixels && columns % 64 != 0 && (columns > 32 || work.columns > columns)) continue;
                const int64_t steps = divided(work.terms, tiles.terms) * work.taps;
                for (int64_t parts = 1; parts <= (sums_pixels ? std::min<int64_t>(steps, 128) : 1); ++parts) {
                    tiles.parts = parts;
                    const double cycles = cycles_of(work, tiles, target);
                    if (least < 0 || cycles < least * 0.995) least = cycles, best = tiles;
                }
            }
    return best;
}

namespace {

/// What a multiprocessor has left, for each thread of the role that computes.
int registers_of_math(const Target& target, int warpgroups) {
    const auto of_a_warpgroup = static_cast<int>(target.registers / 128);
    return std::min(232, (of_a_warpgroup - registers_of_loads) / warpgroups / 8 * 8);
}

/// Casts of adjoints and the like are made where they are read; operands stay.
void inline_elements(Schedule& s, const Tensor& result, const Tensor& a, const Tensor& b) {
    for (const Stage& stage : producers_of(s, s[result]))
        if (stage.id != s[result].id && !s.reduces(stage) && s.name(stage) != a.name() && s.name(stage) != b.name())
            s.inline_stage(stage);
}

/// A kernel that copies: 16 bytes a thread.
void schedule_copy(Schedule& s, const Tensor& copy) {
    auto [block, inside] = s.split(s.fuse(s.data_loops(copy), "all"), 256 * piece, Tail::Mask, {"block", "in_block"});
    auto [share, element] = s.split(inside, piece, {"t", "element"});
    s.bind(block, grid.x);
    s.bind(share, thread);
    s.bind(element, tw::vector);
}

/// The role that loads both operands beside those that multiply.
void multiply(Schedule& s, const Stage& result, const Stage& left, const Stage& right, const Loop& over,
              const MmaLoops& loops, const ConvolutionTiles& tiles) {
    s.mma(result, wgmma, loops);
    s.pipeline(over, {.stages = tiles.stages, .in_flight = 1});
    const int warpgroups_of_block = tiles.warpgroups * tiles.ping_pong;
    s.roles({{"load", warps(1), registers(registers_of_loads), {left, right}},
             {"math",
              warpgroups(warpgroups_of_block),
              registers(registers_of_math(s.target(), warpgroups_of_block)),
              {result},
              ping_pong(tiles.ping_pong)}});
}

}  // namespace

namespace {

/// The loops of pixels in which the distance from one to the next is a stride, images first; what is between, the
/// phases, comes before them: pixels of a phase have the same taps.
std::vector<Loop> phases_of(Schedule& s, std::vector<Loop>& pixels, int64_t stride) {
    std::vector<Loop> phases, order;
    for (size_t d = 1; stride > 1 && d < pixels.size(); ++d) {
        auto [pixel, phase] = s.split(pixels[d], stride, Tail::Mask, {"", "phase"});
        pixels[d] = pixel;
        phases.push_back(phase);
    }
    order = phases;
    order.insert(order.end(), pixels.begin(), pixels.end());
    s.order(order);
    return phases;
}

}  // namespace

void schedule_windows(Schedule& s, const Tensor& result, const Tensor& windows, const Tensor& filters, int channels,
                      int64_t stride, const ConvolutionTiles& tiles, std::source_location where) {
    CalledFrom caller(where);
    inline_elements(s, result, windows, filters);
    std::vector<Loop> pixels = s.data_loops(result), taps;
    const Loop column = pixels.back();
    pixels.pop_back();
    for (const Loop& loop : s.all_loops(result))
        if (loop.id != s.reduce(result, channels).id &&
            std::ranges::none_of(s.data_loops(result), [&](const Loop& l) { return l.id == loop.id; }))
            taps.push_back(loop);
    std::vector<Loop> blocks = phases_of(s, pixels, stride);
    auto [tile, row] = s.split(s.fuse(pixels, "pixel"), tiles.rows, Tail::Mask, {"tile", "row"});
    auto [warpgroup_row, m] = s.split(row, tiles.rows / tiles.warpgroups, {"warpgroup_m", "m"});
    auto [column_tile, n] = s.split(column, tiles.columns, Tail::Mask, {"column_tile", "n"});
    auto [channel, k] = s.split(s.reduce(result, channels), tiles.terms, Tail::Mask, {"channel", "k"});
    taps.push_back(channel);
    blocks.insert(blocks.end(), {tile, column_tile});
    std::vector<Loop> order = blocks;
    order.push_back(warpgroup_row);
    order.insert(order.end(), taps.begin(), taps.end());
    order.insert(order.end(), {m, n, k});
    s.order(order);
    const Loop step = stride > 1 ? channel : s.fuse(taps, "step");  // phases have as many taps as their places say
    s.persistent(blocks);
    s.bind(warpgroup_row, warpgroup);
    const Stage left = s.stage(result, windows, Memory::Shared, step, As::Matrix),
                right = s.stage(result, filters, Memory::Shared, step);
    multiply(s, s[result], left, right, step, {.m = m, .n = n, .k = k}, tiles);
}

void schedule_sum_of_pixels(Schedule& s, const Tensor& result, const Tensor& a, const Tensor& b,
                            const ConvolutionTiles& tiles, std::source_location where) {
    CalledFrom caller(where);
    inline_elements(s, result, a, b);
    std::vector<Loop> pixels = s.all_loops(result);
    pixels.erase(pixels.begin(), pixels.begin() + static_cast<std::ptrdiff_t>(s.data_loops(result).size()));
    Loop pixel = s.fuse(pixels, "pixel");
    Stage sums = s[result];
    if (tiles.parts > 1) {
        const int64_t steps = divided(require_constant(s.extent(pixel)), tiles.terms);
        const int64_t length = divided(steps, tiles.parts) * tiles.terms;
        sums = s.rfactor(result, s.split(pixel, length, Tail::Mask, {"part", "in_part"})[0]);
        auto [block, inside] = s.split(s.fuse(s.data_loops(result), "all"), 256, Tail::Mask, {"block", "t"});
        s.bind(block, grid.x);
        s.bind(inside, thread);
    }
    std::vector<Loop> data = s.data_loops(sums), outer;
    if (tiles.parts > 1) {
        outer.push_back(data[0]);
        data.erase(data.begin());
    }
    auto [row_tile, row] = s.split(data[0], tiles.rows, Tail::Mask, {"row_tile", "row"});
    auto [warpgroup_row, m] = s.split(row, tiles.rows / tiles.warpgroups, {"warpgroup_m", "m"});
    auto [column_tile, n] = s.split(data.back(), tiles.columns, Tail::Mask, {"column_tile", "n"});
    auto [step, k] = s.split(tiles.parts > 1 ? s.reduce(sums) : pixel, tiles.terms, Tail::Mask, {"step", "k"});
    outer.insert(outer.end(), {row_tile, column_tile});
    outer.insert(outer.end(), data.begin() + 1, data.end() - 1);
    std::vector<Loop> order = outer;
    order.insert(order.end(), {warpgroup_row, step, m, n, k});
    s.order(order);
    s.persistent(outer);
    s.bind(warpgroup_row, warpgroup);
    const Stage left = s.stage(sums, a, Memory::Shared, step, As::Matrix),
                right = s.stage(sums, b, Memory::Shared, step, As::Matrix);
    multiply(s, sums, left, right, step, {.m = m, .n = n, .k = k}, tiles);
}

Schedule convolution_schedule(const Convolution& c, const ConvolutionShape& shape, ConvolutionPass pass,
                              const std::optional<ConvolutionTiles>& tiles, const Target& target,
                              std::source_location where) {
    CalledFrom caller(where);
    if (!takes_warpgroups(shape, pass, target)) return choose_schedule({c.result}, target, where);
    const ConvolutionTiles chosen = tiles ? *tiles : convolution_tiles(shape, pass, target);
    Schedule s({c.result}, target);
    const int64_t stride = pass == ConvolutionPass::DataGradient ? shape.stride : 1;
    if (pass == ConvolutionPass::WeightGradient)
        schedule_sum_of_pixels(s, c.product, c.windows, c.other, chosen);
    else
        schedule_windows(s, c.product, c.windows, c.other, pass == ConvolutionPass::Forward ? 2 : 0, stride, chosen);
    for (const Tensor& copy : c.copies) schedule_copy(s, copy);
    if (!c.result.same(c.product)) schedule_copy(s, c.result);
    return s;
}

std::optional<NamedConvolution> parse_convolution(const std::string& name) {
    static const std::string number = "([0-9]{1,6})", by = "x" + number;
    static const std::regex form("convolution(_data_gradient|_weight_gradient)?_(bf16|f16)_" + number + by + by + by +
                                 "_" + number + "_" + number + by + "(?:_stride" + number + ")?(?:_pad" + number +
                                 ")?(?:_dilation" + number + ")?(?:_tile" + number + by + by + "w([1-3])s([1-9])p" +
                                 number + "t([12]))?");
    std::smatch match;
    if (!std::regex_match(name, match, form)) return {};
    auto read = [&](int group, int64_t otherwise) {
        return match[group].matched ? std::stoll(match[group].str()) : otherwise;
    };
    NamedConvolution named;
    named.shape = {read(3, 0), read(4, 0), read(5, 0), read(6, 0), read(7, 0), read(8, 0), read(9, 0)};
    named.shape.type = match[2] == "f16" ? f16 : bf16;
    named.shape.stride = read(10, 1);
    named.shape.padding = read(11, 0);
    named.shape.dilation = read(12, 1);
    if (match[1].matched)
        named.pass = match[1] == "_data_gradient" ? ConvolutionPass::DataGradient : ConvolutionPass::WeightGradient;
    if (match[13].matched)
        named.tiles = ConvolutionTiles{.rows = read(13, 0),
                                       .columns = read(14, 0),
                                       .terms = read(15, 0),
                                       .warpgroups = static_cast<int>(read(16, 0)),
                                       .stages = static_cast<int>(read(17, 0)),
                                       .parts = read(18, 0),
                                       .ping_pong = static_cast<int>(read(19, 0))};
    const ConvolutionShape& s = named.shape;
    if (std::min({s.kernel_h, s.kernel_w, s.stride, s.dilation}) < 1 || !has_pixels(s)) return {};
    return named;
}

}  // namespace tw::schedules
