// Tutorial 11: a warpgroup's tensor core instructions, and copies that no thread carries.
//
// On sm_90a, four warps together multiply 64 x 16 by 16 x n elements in one instruction, wgmma, and it reads both
// operands from shared memory. That memory is laid out as the instruction wants it: rows of 128 bytes, the chunks of
// 16 bytes in them exchanged (swizzled) so that eight rows never meet in a bank. The tensor memory accelerator (TMA)
// writes just this layout: one thread asks for a box of a matrix, and a barrier counts the bytes that arrive.
//
// The schedule says neither. It says wgmma instead of mma_sync; layout, descriptors, boxes and barriers follow.
#include "tutorials/lesson.h"
#include "tutorials/operands.h"

using namespace tw;

namespace {

/// Four warps a block, each with mma_sync on tiles of 32 x 32: tutorial 10.
Schedule by_warps(const Operands& o) {
    Schedule s({o.c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(o.c);
    auto [bi, it] = s.split(i, 64, {"bi", "it"});
    auto [bj, jt] = s.split(j, 64, {"bj", "jt"});
    auto [wi, mi] = s.split(it, 32, {"wi", "mi"});
    auto [wj, nj] = s.split(jt, 32, {"wj", "nj"});
    auto [ko, ki] = s.split(s.reduce(o.c), 64, {"ko", "ki"});
    s.order({bi, bj, wi, wj, ko, mi, nj, ki});
    s.bind(bi, grid.y);
    s.bind(bj, grid.x);
    s.bind(wi, warp);
    s.bind(wj, warp);
    s.stage(o.c, o.a, Memory::Shared, ko);
    s.stage(o.c, o.b, Memory::Shared, ko);
    s.mma(o.c, mma_sync, {.m = mi, .n = nj, .k = ki});
    return s;
}

/// The same tile by one warpgroup. `copies` asks for a way to copy, or leaves it open.
Schedule by_warpgroup(const Operands& o, int stages, Copy copies = Copy::Automatic) {
    Schedule s({o.c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(o.c);
    auto [bi, it] = s.split(i, 64, {"bi", "it"});
    auto [bj, nj] = s.split(j, 64, {"bj", "nj"});
    auto [wi, mi] = s.split(it, 64, {"wi", "mi"});  // the rows of an instruction; wi has one iteration
    auto [ko, ki] = s.split(s.reduce(o.c), 64, Tail::Mask, {"ko", "ki"});
    s.order({bi, bj, wi, ko, mi, nj, ki});
    s.bind(bi, grid.y);
    s.bind(bj, grid.x);
    s.bind(wi, warpgroup);
    Stage as = s.stage(o.c, o.a, Memory::Shared, ko), bs = s.stage(o.c, o.b, Memory::Shared, ko);
    s.mma(o.c, wgmma, {.m = mi, .n = nj, .k = ki});
    if (stages > 1) s.pipeline(ko, {.stages = stages});
    s.via(as, copies);
    s.via(bs, copies);
    return s;
}

}  // namespace

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "11. TMA and wgmma");
    const int64_t M = lesson.size(128, 4096), N = M, K = lesson.size(256, 4096);
    const double flops = 2.0 * M * N * K;
    Operands o = product(M, N, K);
    lesson.show(o.c);

    lesson.say("One word of the schedule changes the unit, and the level its loops are bound to: a warpgroup.");
    Schedule group = by_warpgroup(o, 1);
    lesson.show(group);
    lesson.compare("warps", by_warps(o), "a warpgroup", group, flops);

    // The kernel holds no fragments of a and b: an instruction gets descriptors, the address and the layout of a tile.
    lesson.say(
        "Layouts are the instruction's. 64 elements of bf16 are a line of 128 bytes, so its widest swizzle fits:");
    lesson.show_notes(group, {"laid out for wgmma"});
    lesson.say("What each instruction reads, and how many may still run when the next line is reached:");
    lesson.show_lines(group, {"tw::wgmma"});

    lesson.say("So far all threads copied, then all waited. A pipeline has copies run ahead, and here they are TMA's:");
    Schedule ahead = by_warpgroup(o, 3);
    lesson.show_notes(ahead,
                      {"a_shared: by the tensor memory accelerator", "b_shared: by the tensor memory accelerator"});
    lesson.compare("a warpgroup", group, "copies ahead", ahead, flops);
    lesson.say(
        "One thread asks; a barrier for each of the three stages expects the bytes; all wait for its phase to end:");
    lesson.show_lines(ahead, {"mbarrier_init", "mbarrier_expect_tx", "tma_load", "mbarrier_wait"});

    // A box needs rows at multiples of 16 bytes, of the matrix as of the tile. Rows of 180 elements of bf16 have 360.
    lesson.say("Where TMA cannot be had, the copies are made as before, and the notes say why:");
    Operands uneven = product(64, 64, 180);
    Schedule open = by_warpgroup(uneven, 3);
    lesson.show_notes(open, {"a_shared: not by the tensor memory accelerator: rows of 'a' are 180 elements apart"});
    lesson.run(open, 2.0 * 64 * 64 * 180, "rows of 360 bytes");

    // Often one would rather hear of it than lose the speed. via() is a promise that build keeps or refuses.
    lesson.say("via(copy, Copy::Tma) asks for it. It holds here:");
    lesson.show_notes(by_warpgroup(o, 3, Copy::Tma), {"by the tensor memory accelerator, boxes of"});
    lesson.say("and is refused there, at the step that asked:");
    lesson.show_error([&] { build(by_warpgroup(uneven, 3, Copy::Tma)); });
    lesson.say("Without a pipeline there is nothing to run ahead of:");
    lesson.show_error([&] { build(by_warpgroup(o, 1, Copy::Tma)); });
    lesson.say("And wgmma takes operands from nowhere else than shared memory:");
    lesson.show_error([&] {
        Schedule s({o.c}, target("sm_90a"));
        auto [i, j] = s.loops<2>(o.c);
        auto [bi, mi] = s.split(i, 64, {"bi", "mi"});
        auto [bj, nj] = s.split(j, 64, {"bj", "nj"});
        auto [ko, ki] = s.split(s.reduce(o.c), 64, {"ko", "ki"});
        s.order({bi, bj, ko, mi, nj, ki});
        s.mma(o.c, wgmma, {.m = mi, .n = nj, .k = ki});
        build(s);
    });

    // There the warpgroup that multiplies also asks for the copies. Tutorial 12 gives that to a warp of its own.
    return lesson.finish();
}
