// Tutorial 19: from the formula of a convolution to a Hopper kernel: 3 x 3 taps, bf16, channels last.
//
// A convolution is a product of matrices, one of which nobody has: its rows are pixels of the result, its terms taps
// and channels, and its element is the pixel of the image that the tap reads. Making that matrix (im2col) costs nine
// times the image's memory. Here tiles of it are made on the way to shared memory, where the tensor cores read them,
// and each step of the schedule says one thing about how. All steps compute the same; what they move is counted by the
// emulator.
#include "schedules/halo_convolution.h"
#include "tutorials/counter.h"

using namespace tw;

namespace {

/// y[n, p, q, f] = sum_{r, s, c} x[n, p + r - 1, q + s - 1, c] w[f, r, s, c], zeros around x.
struct Convolution {
    int64_t images, height, width, channels, filters;
    Tensor x, w, y;

    Convolution(int64_t n, int64_t h, int64_t q, int64_t c, int64_t f)
        : images(n), height(h), width(q), channels(c), filters(f) {
        x = input("x", bf16, {n, h, q, c});
        w = input("w", bf16, {f, 3, 3, c});
        Axis r = reduce_axis("r", 3), s = reduce_axis("s", 3), ch = reduce_axis("c", c);
        y = compute("y", {n, h, q, f}, [&](Expr image, Expr row, Expr column, Expr filter) {
            Expr pixel = padded(x, 0)(image, row + r - 1, column + s - 1, ch);
            return cast(bf16, sum(cast(f32, pixel) * cast(f32, w(filter, r, s, ch)), {r, s, ch}));
        });
    }
    double flops() const { return 2.0 * images * height * width * filters * 9 * channels; }
};

constexpr int64_t rows = 4;  // of pixels, that a block has at a time

/// A thread for each element of the result, neighbours along the filters.
Schedule plain(const Convolution& c) {
    Schedule s({c.y}, target("sm_90a"));
    auto [n, p, q, f] = s.loops<4>(c.y);
    auto [fo, ft] = s.split(f, 64, {"fo", "ft"});
    s.order({n, p, q, fo, ft});
    s.bind(s.fuse({n, p, q, fo}, "block"), grid.x);
    s.bind(ft, thread);
    return s;
}

/// A block has four rows of pixels and 64 filters, a thread 8 x 8 of them: what is loaded once is used eight times.
/// Four rows are one loop, `pixels`: to the tile it is all the same where a row of the image ends.
Schedule tiled(const Convolution& c, bool staged) {
    Schedule s({c.y}, target("sm_90a"));
    auto [n, p, q, f] = s.loops<4>(c.y);
    auto [po, pi] = s.split(p, rows, Tail::Mask, {"po", "pi"});
    auto [tp, pixel] = s.split(s.fuse(pi, q, "pixels"), 8, {"tp", "pixel"});
    auto [fo, ft] = s.split(f, 64, {"fo", "ft"});
    auto [tf, filter] = s.split(ft, 8, {"tf", "filter"});
    auto [co, ci] = s.split(s.reduce(c.y, 2), 16, {"co", "ci"});
    Loop ko = s.fuse({s.reduce(c.y, 0), s.reduce(c.y, 1), co}, "ko");
    s.order({n, po, fo, tp, tf, ko, ci, pixel, filter});
    s.bind(s.fuse({n, po, fo}, "block"), grid.x);
    s.bind(tp, thread);
    s.bind(tf, thread);
    if (!staged) return s;
    s.stage(c.y, c.x, Memory::Shared, ko, As::Matrix);
    s.stage(c.y, c.w, Memory::Shared, ko);
    return s;
}

/// How far the schedule for tensor cores goes.
enum class Until { Unit, Pipeline, Roles, Boxes, Persistent };

/// Filters are the rows of the unit, 64 for each of two warpgroups (or one), and pixels its columns: there are 8 to 256
/// columns, so four rows of any image up to 64 wide are one instruction's.
Schedule on_tensor_cores(const Convolution& c, Until until, int blocks = 0) {
    Schedule s({c.y}, target("sm_90a"));
    auto [n, p, q, f] = s.loops<4>(c.y);
    auto [po, pi] = s.split(p, rows, Tail::Mask, {"po", "pi"});
    Loop pixels = s.fuse(pi, q, "pixels");
    const int groups = c.filters > 64 ? 2 : 1;
    auto [fo, ft] = s.split(f, 64 * groups, Tail::Mask, {"fo", "ft"});
    auto [wi, fi] = s.split(ft, 64, {"wi", "fi"});
    auto [co, ci] = s.split(s.reduce(c.y, 2), 64, Tail::Mask, {"co", "ci"});
    Loop ko = s.fuse({s.reduce(c.y, 0), s.reduce(c.y, 1), co}, "ko");
    s.order({n, po, fo, wi, ko, fi, pixels, ci});
    Loop tile = fo;
    if (until == Until::Persistent)
        s.persistent({n, po, fo}, {.blocks = blocks});
    else
        s.bind(tile = s.fuse({n, po, fo}, "tile"), grid.x);
    s.bind(wi, warpgroup);
    Stage xs = s.stage(c.y, c.x, Memory::Shared, ko, As::Matrix);
    Stage ws = s.stage(c.y, c.w, Memory::Shared, ko);
    if (until >= Until::Boxes) s.via(s.stage(c.y, Memory::Shared, tile), Copy::Tma);
    s.mma(c.y, wgmma, {.m = fi, .n = pixels, .k = ci});
    if (until >= Until::Pipeline) s.pipeline(ko, {.stages = 3, .in_flight = until >= Until::Roles ? 1 : 0});
    if (until >= Until::Roles)
        s.roles({{"load", warps(1), registers(40), {xs, ws}}, {"math", warpgroups(groups), registers(232), {c.y}}});
    return s;
}

/// The whole of it, and what was decided by itself.
void show_the_kernel(Lesson& lesson, const Convolution& c) {
    const Schedule s = on_tensor_cores(c, Until::Persistent, 3);
    lesson.say("The loop nest at the end:");
    lesson.show(s);

    // The copy of x has a dimension for each loop that its element depends on, so `pixels` is one: rows of 64 channels,
    // one for each pixel of the tile, moved by the tap. Zeros beside the image are part of the copy: the product has no
    // mask. Where TMA moves it, it does so by an im2col map, whose boxes walk from pixel to pixel and from row to row;
    // filters are a plain box.
    lesson.say(
        "What TMA was asked for, and how it lies in shared memory: 64 channels are a swizzled line of 128 bytes:");
    lesson.show_notes(s, {"x_shared", "w_shared", "y_out", "y_shared: laid out"});
    lesson.show_lines(s, {"tw::tma_load", "tw::tma_store("});

    // Pixels lie side by side in the accumulators and filters in memory: stmatrix transposes 8 x 8 of them on the way.
    lesson.say("From accumulators to shared memory, transposed:");
    lesson.show_lines(s, {"tw::wgmma_m64", "tw::stmatrix"});

    lesson.say("Where rows are no multiple of 16 bytes there are no boxes, and a role has nothing to do without:");
    lesson.show_error([&] { build(on_tensor_cores(Convolution(2, 6, 16, 60, 128), Until::Persistent)); });
    lesson.say("Four rows of 120 pixels are more than shared memory has room for, three times:");
    lesson.show_error([&] { build(on_tensor_cores(Convolution(2, 6, 120, 64, 128), Until::Persistent)); });
}

/// The image nine times, once a tap: that is what bounds few filters. With its halo it comes once, for all taps.
void show_the_halo(Lesson& lesson, const Counter& counter) {
    const Convolution few(2, 6, 16, 64, 64);
    const schedules::ConvolutionShape shape{.images = few.images,
                                            .height = few.height,
                                            .width = few.width,
                                            .channels = few.channels,
                                            .filters = few.filters,
                                            .kernel_h = 3,
                                            .kernel_w = 3,
                                            .padding = 1};
    const schedules::HaloTiles tiles{.places = 64};
    const auto halo = schedules::declare_halo_convolution(shape, schedules::ConvolutionPass::Forward, tiles.places);
    lesson.say(
        "An outlook, 64 filters: images as a raster whose rows share what is padded. A tap is a distance between "
        "places "
        "of it, so one copy of a tile with its halo serves all taps (docs/language.md, rasters):");
    lesson.show(halo.result);
    counter.heading();
    const auto by_taps = counter("a copy for each tap", on_tensor_cores(few, Until::Persistent, 3));
    const auto once = counter("with the halo", schedules::halo_schedule(halo, tiles, target("sm_90a")));
    // Both have four tiles, which four blocks take here, with the filters: in the halo's kernel they stay for all tiles
    // of a block, in the other they come with each.
    const uint64_t filters = 4 * 9 * 64 * 64 * 2;
    const uint64_t image_by_taps = by_taps.box_bytes - filters, image_once = once.box_bytes - filters;
    lesson.expect(image_once < image_by_taps / 5,
                  fmt::format("of the image, boxes bring {} bytes instead of {}", image_once, image_by_taps));
}

}  // namespace

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "19. A convolution, from the formula to the kernel");
    const Convolution small(2, 6, 16, 64, 128);  // the last tile of an image has two rows of four
    lesson.say("The formula:");
    lesson.show(small.y);
    lesson.show_oracle(small.y);

    const Counter count(lesson);
    lesson.say(
        "Step by step, each checked against the formula in float64. What threads ask of global memory (requests of a "
        "warp, and bytes), what boxes bring, and passes of threads through the banks of shared memory:");
    count.heading();
    const auto naive = count("a thread an element", plain(small));
    const auto registers = count("tiles in registers", tiled(small, false));
    const auto shared = count("in shared memory", tiled(small, true));
    const auto unit = count("tensor cores", on_tensor_cores(small, Until::Unit));
    const auto pipelined = count("copies ahead, by TMA", on_tensor_cores(small, Until::Pipeline));
    const auto with_roles = count("roles", on_tensor_cores(small, Until::Roles));
    const auto boxes = count("results as boxes", on_tensor_cores(small, Until::Boxes));
    const auto persistent = count("persistent", on_tensor_cores(small, Until::Persistent, 3));

    // Four tiles of 64 pixels and 128 filters (two have 32 pixels in vain), nine steps each: 64 x 64 + 128 x 64
    // elements of 2 bytes a step are 884736 bytes. The image and the filters alone are 172032.
    lesson.expect(registers.global_bytes < naive.global_bytes / 4 && shared.global_bytes < registers.global_bytes / 4,
                  "tiles in registers, then in shared memory, each ask for less than a quarter of the bytes before");
    lesson.expect(unit.shared_wavefronts < shared.shared_wavefronts / 4,
                  "tensor cores read shared memory themselves: what is left is filling it");
    lesson.expect(
        pipelined.box_bytes == 4 * 9 * (64 * 64 + 128 * 64) * 2 && with_roles.box_bytes == pipelined.box_bytes,
        "boxes bring the operands, and threads only store results");
    lesson.expect(boxes.global_requests == 0 && boxes.shared_bank_conflicts == 0,
                  "results leave as boxes, too: no thread touches global memory");
    lesson.expect(persistent.box_bytes == with_roles.box_bytes, "who takes which tile changes no byte");

    show_the_kernel(lesson, small);
    show_the_halo(lesson, count);

    if (lesson.device()->kind() == DeviceKind::Cuda) {
        const Convolution large(64, 56, 56, 128, 128);
        lesson.compare("roles", on_tensor_cores(large, Until::Roles), "persistent",
                       on_tensor_cores(large, Until::Persistent), large.flops());
    }
    return lesson.finish();
}
