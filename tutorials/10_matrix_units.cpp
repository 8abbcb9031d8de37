// Tutorial 10: tensor cores. A warp multiplies 16 x 16 by 16 x 8 elements of bf16 in one instruction, mma.sync.
//
// mma() says which loops the instruction takes over, by their roles: rows, columns, terms. Which lane holds what
// follows from the instruction; nobody writes it down. What is left to say is what was said before: tiles, shared
// memory, and here copies that run ahead.
#include "tutorials/lesson.h"
#include "tutorials/operands.h"

using namespace tw;

namespace {

/// One thread an element, one multiplication at a time.
Schedule naive(const Operands& o) {
    Schedule s({o.c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(o.c);
    auto [bi, ti] = s.split(i, 8, {"bi", "ti"});
    auto [bj, tj] = s.split(j, 32, {"bj", "tj"});
    s.order({bi, bj, ti, tj});
    s.bind(bi, grid.y);
    s.bind(bj, grid.x);
    s.bind(ti, thread);
    s.bind(tj, thread);
    return s;
}

/// One warp an instruction's tile, its operands element by element from global memory.
Schedule by_instruction(const Operands& o) {
    Schedule s({o.c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(o.c);
    auto [bi, mi] = s.split(i, 16, {"bi", "mi"});
    auto [bj, nj] = s.split(j, 8, {"bj", "nj"});
    auto [ko, ki] = s.split(s.reduce(o.c), 16, {"ko", "ki"});
    s.order({bi, bj, ko, mi, nj, ki});
    s.bind(bi, grid.y);
    s.bind(bj, grid.x);
    s.mma(o.c, mma_sync, {.m = mi, .n = nj, .k = ki});
    return s;
}

/// Four warps a block, each with a tile of many instructions; operands through shared memory.
Schedule by_tiles(const Operands& o, int stages) {
    Schedule s({o.c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(o.c);
    auto [bi, it] = s.split(i, 64, {"bi", "it"});
    auto [bj, jt] = s.split(j, 64, {"bj", "jt"});
    auto [wi, mi] = s.split(it, 32, {"wi", "mi"});  // 2 x 2 warps of 32 x 32
    auto [wj, nj] = s.split(jt, 32, {"wj", "nj"});
    auto [ko, ki] = s.split(s.reduce(o.c), 32, {"ko", "ki"});
    s.order({bi, bj, wi, wj, ko, mi, nj, ki});
    s.bind(bi, grid.y);
    s.bind(bj, grid.x);
    s.bind(wi, warp);
    s.bind(wj, warp);
    s.stage(o.c, o.a, Memory::Shared, ko);
    s.stage(o.c, o.b, Memory::Shared, ko);
    s.mma(o.c, mma_sync, {.m = mi, .n = nj, .k = ki});
    if (stages > 1) s.pipeline(ko, {.stages = stages});
    return s;
}

}  // namespace

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "10. Tensor cores");
    const int64_t M = lesson.size(128, 4096), N = M, K = M;
    const double flops = 2.0 * M * N * K;

    Operands o{input("a", bf16, {M, K}), input("b", bf16, {N, K}), {}};
    Axis k = reduce_axis("k", K);
    o.c = compute("c", {M, N}, [&](Expr i, Expr j) {
        return cast(bf16, max(sum(cast(f32, o.a(i, k)) * cast(f32, o.b(j, k)), k), 0.0));
    });
    lesson.say("A product of bf16 matrices, summed in f32, with what one likes around the sum:");
    lesson.show(o.c);

    lesson.say("A warp's 32 lanes hold a tile together: 4 sums each. The loops of the instruction stand innermost:");
    Schedule instruction = by_instruction(o);
    lesson.show(instruction);
    lesson.compare("naive", naive(o), "one instruction at a time", instruction, flops);

    // Each element was loaded by many warps. From shared memory, ldmatrix gives a warp four 8 x 8 matrices at once, in
    // the layout that mma.sync wants; larger tiles of a warp use each of them several times.
    lesson.say("Tiles in shared memory, read by ldmatrix:");
    Schedule tiles = by_tiles(o, 1);
    lesson.show(tiles);

    // There all wait for a tile, then all multiply. With three buffers, cp.async brings the next two tiles past the
    // registers while this one is multiplied. Groups, waits and barriers are derived.
    lesson.say("Then pipeline(ko, {.stages = 3}): two tiles are under way while one is multiplied.");
    Schedule ahead = by_tiles(o, 3);
    lesson.compare("tiles", tiles, "copies ahead", ahead, flops);
    lesson.show_explanation(ahead);

    lesson.say("What does not fit is refused, with the reason. Rows and terms exchanged:");
    lesson.show_error([&] {
        Schedule s({o.c}, target("sm_90a"));
        auto [i, j] = s.loops<2>(o.c);
        s.mma(o.c, mma_sync, {.m = s.reduce(o.c), .n = j, .k = i});
    });
    lesson.say("Tiles that are no multiples of an instruction's:");
    lesson.show_error([&] {
        Schedule s({o.c}, target("sm_90a"));
        auto [i, j] = s.loops<2>(o.c);
        auto [bi, mi] = s.split(i, 8, {"bi", "mi"});
        s.order({bi, mi, j, s.reduce(o.c)});
        s.mma(o.c, mma_sync, {.m = mi, .n = j, .k = s.reduce(o.c)});
    });

    // schedules/tensor_product.h has this schedule for any product, with tiles that suit its extents.
    return lesson.finish();
}
