// Tutorial 12: a whole Hopper GEMM. Warps of their own load, others multiply, and blocks take tile after tile.
//
// In tutorial 11 the threads that multiply also stopped to ask for copies, and each block began and ended by waiting.
// Three steps of the schedule change who does what, and when; none changes what is computed:
//
//   roles       one warp asks for all copies, two warpgroups multiply. They meet at two barriers for each stage of the
//               pipeline: full, when its bytes have landed, and empty, when it was read.
//   persistent  as many blocks as the GPU has multiprocessors, each of which takes tiles in turn. While one tile is
//               stored, the copies of the next are on their way.
//   in_flight   instructions of one iteration run on while the next one's start.
//
// At the end, tiles that are not equally long.
#include "tutorials/lesson.h"
#include "tutorials/operands.h"

using namespace tw;

namespace {

/// product(), where a is lower triangular by tiles: row i has elements up to the end of its 128 rows.
Operands triangular_product(int64_t m, int64_t n, int64_t k) {
    Operands o{input("a", bf16, {m, k}), input("b", bf16, {n, k}), {}};
    o.c = compute("c", {m, n}, [&](Expr i, Expr j) {
        Axis r = reduce_axis("k", min(i / 128 * 128 + 128, k));
        return cast(bf16, sum(cast(f32, o.a(i, r)) * cast(f32, o.b(j, r)), r));
    });
    return o;
}

struct Tiles {
    int64_t n = 256;             ///< columns of a block's tile; its rows are 128, 64 for each warpgroup
    int64_t raster_group = 8;    ///< rows of tiles that blocks walk through together: what they share stays in L2
    int blocks = 0;              ///< 0: one for each multiprocessor
    bool longest_first = false;  ///< later rows of tiles take longer
};

/// All threads do everything: tutorial 11, with two warpgroups.
Schedule one_role(const Operands& o, const Tiles& tiles) {
    Schedule s({o.c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(o.c);
    auto [bi, it] = s.split(i, 128, {"bi", "it"});
    auto [bj, nj] = s.split(j, tiles.n, {"bj", "nj"});
    auto [wi, mi] = s.split(it, 64, {"wi", "mi"});
    auto [ko, ki] = s.split(s.reduce(o.c), 64, {"ko", "ki"});
    s.order({bi, bj, wi, ko, mi, nj, ki});
    s.bind(bi, grid.y);
    s.bind(bj, grid.x);
    s.bind(wi, warpgroup);
    s.stage(o.c, o.a, Memory::Shared, ko);
    s.stage(o.c, o.b, Memory::Shared, ko);
    s.mma(o.c, wgmma, {.m = mi, .n = nj, .k = ki});
    s.pipeline(ko, {.stages = 4});
    return s;
}

/// The whole of it, in 15 statements.
Schedule hopper(const Operands& o, const Tiles& tiles) {
    Schedule s({o.c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(o.c);
    auto [bi, it] = s.split(i, 128, {"bi", "it"});
    auto [bj, nj] = s.split(j, tiles.n, {"bj", "nj"});
    auto [wi, mi] = s.split(it, 64, {"wi", "mi"});
    auto [ko, ki] = s.split(s.reduce(o.c), 64, Tail::Mask, {"ko", "ki"});
    auto [group, row] = s.split(bi, tiles.raster_group, {"group", "row"});
    s.order({group, bj, row, wi, ko, mi, nj, ki});
    s.persistent({group, bj, row},
                 {.blocks = tiles.blocks, .longest_first = tiles.longest_first});  // row fastest: grouped raster
    s.bind(wi, warpgroup);
    Stage as = s.stage(o.c, o.a, Memory::Shared, ko);
    Stage bs = s.stage(o.c, o.b, Memory::Shared, ko);
    s.mma(o.c, wgmma, {.m = mi, .n = nj, .k = ki});
    s.pipeline(ko, {.stages = 4, .in_flight = 1});
    s.roles({{"load", warps(1), registers(40), {as, bs}}, {"math", warpgroups(2), registers(232), {o.c}}});
    return s;
}

}  // namespace

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "12. Roles and persistent blocks");
    const int64_t M = lesson.size(512, 8192), N = lesson.size(192, 8192), K = lesson.size(320, 8192);
    const double flops = 2.0 * M * N * K;
    const bool gpu = lesson.device()->kind() == DeviceKind::Cuda;
    // On the emulator, 12 tiles for 5 blocks: some have three, some two.
    const Tiles tiles = gpu ? Tiles{} : Tiles{.n = 64, .raster_group = 2, .blocks = 5};
    Operands o = product(M, N, K);
    lesson.show(o.c);

    lesson.say("The steps, as the schedule recorded them:");
    Schedule whole = hopper(o, tiles);
    for (const Step& step : whole.trace()) fmt::print("    {}\n", step.text);
    size_t statements = whole.trace().size() + 2;  // the schedule itself, and the names of its loops
    lesson.expect(statements <= 20, fmt::format("{} statements, no more than 20", statements));
    lesson.say("The loop nest:");
    lesson.show(whole);
    lesson.compare("one role", one_role(o, tiles), "roles", whole, flops);

    // Who am I? The block has 384 threads: the role that computes first, then a warpgroup for the one warp that copies.
    // setmaxnreg moves registers from those that only ask for boxes to those that hold sums: 2 x 128 x 232 + 128 x 40
    // are 64512 of a multiprocessor's 65536.
    lesson.say("The kernel falls apart in two, by the thread's number. Each side says how many registers it needs:");
    lesson.show_lines(whole, {"__launch_bounds__", " role ", "if (threadIdx", "setmaxnreg_"});

    // full[stage] counts one arrival, the request, and its bytes; empty[stage] counts the two warpgroups. The loading
    // side waits for empty, the computing side for full, and neither for anything else: no __syncthreads.
    lesson.say("Between them, two barriers for each stage:");
    lesson.show_lines(whole, {"barrier_"});

    // One group of instructions may still run when the next iteration's start, so the stage that is given back is that
    // of the iteration before: its instructions have ended.
    lesson.say("In flight: the wait leaves one group of instructions running; all have ended behind the loop:");
    lesson.show_lines(whole, {"tw::wgmma_wait"});

    // The grid's loops, row fastest, number the tiles; a block has every fifth, here. Stages and phases count on from
    // tile to tile, which is how the next one's copies can start early: nothing is drained in between.
    lesson.say(
        "Blocks take tiles in turn. Those with neighbouring numbers work on the same column, on rows of a group:");
    lesson.show_lines(whole, {"for (int tile"});

    // Rows of tile t sum 128 (t + 1) terms, so tiles are of different lengths: each role counts its iterations. With
    // longest_first, long tiles come first, and a block that had a longer one in a round has a shorter one in the next.
    Operands lower = triangular_product(M, N, K);
    Tiles in_order = tiles, longest_first = tiles;
    in_order.raster_group = 1;  // so that tiles grow from one to the next column of tiles
    longest_first.raster_group = 1, longest_first.longest_first = true;
    lesson.say("A lower triangular a has tiles of different lengths:");
    lesson.show(lower.c);
    lesson.compare("in order", hopper(lower, in_order), "longest_first", hopper(lower, longest_first), flops / 2);
    lesson.show_lines(hopper(lower, longest_first), {"const int tile", "_count"});

    lesson.say("Promises are kept or refused. Registers beyond what there are:");
    lesson.show_error([&] {
        Schedule s = hopper(o, tiles);
        s.roles({{"load", warps(1), registers(40), {s.all_stages()[0], s.all_stages()[1]}},
                 {"math", warpgroups(2), registers(240), {o.c}}});
    });
    lesson.say("More instructions in flight than stages leave room for:");
    lesson.show_error([&] {
        Schedule s = hopper(o, tiles);
        s.pipeline(s.all_loops(o.c)[4], {.stages = 4, .in_flight = 4});
    });
    lesson.say("A role that copies asks for boxes (tutorial 11), and rows of 316 elements of bf16 hold none:");
    lesson.show_error([&] { build(hopper(product(256, 256, 316), tiles)); });
    lesson.say("Copies of the role that computes would overwrite what instructions in flight still read:");
    lesson.show_error([&] {
        Schedule s = hopper(o, tiles);
        s.roles(
            {{"load", warps(1), registers(40), {s.all_stages()[0]}}, {"math", warpgroups(2), registers(232), {o.c}}});
        build(s);
    });
    return lesson.finish();
}
