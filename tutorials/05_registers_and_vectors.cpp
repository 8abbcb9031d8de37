// Tutorial 5: registers and vectors. Larger tiles, wide accesses without bank conflicts.
//
// 8 x 8 elements a thread as four chunks of 4 x 4: neighbouring threads then read neighbouring 16 bytes of shared
// memory.
#include "tutorials/lesson.h"

using namespace tw;

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "5. Registers and vectors");
    const int64_t M = lesson.size(256, 4096), N = M, K = M;

    Tensor a = input("a", f32, {M, K}), b = input("b", f32, {K, N});
    Axis k = reduce_axis("k", K);
    Tensor c = compute("c", {M, N}, [&](Expr i, Expr j) { return sum(a(i, k) * b(k, j), k); });

    // Contiguous 8 x 8 tiles: two threads whose columns are 32 bytes apart meet in one bank.
    Schedule contiguous({c}, target("sm_90a"));
    {
        Schedule& s = contiguous;
        auto [i, j] = s.loops<2>(c);
        auto [bi, it] = s.split(i, 128, {"bi", "it"});
        auto [bj, jt] = s.split(j, 128, {"bj", "jt"});
        auto [ti, ri] = s.split(it, 8, {"ti", "ri"});
        auto [tj, rj] = s.split(jt, 8, {"tj", "rj"});
        auto [ko, ki] = s.split(s.reduce(c), 16, {"ko", "ki"});
        s.order({bi, bj, ti, tj, ko, ki, ri, rj});
        s.bind(bi, grid.y);
        s.bind(bj, grid.x);
        s.bind(ti, thread);
        s.bind(tj, thread);
        s.stage(c, a, Memory::Shared, ko);
        s.stage(c, b, Memory::Shared, ko);
        s.unroll(ri);
        s.unroll(rj);
    }

    // The same tile with each side split twice: block = repeat x thread x chunk. A thread's eight rows are two chunks
    // of four neighbours, 64 rows apart; so are its columns. The order puts all eight by eight below the loop over k,
    // so that they are its accumulators; pipeline() has the next tiles of a and b on their way while these are
    // multiplied.
    Schedule chunked({c}, target("sm_90a"));
    {
        Schedule& s = chunked;
        auto [i, j] = s.loops<2>(c);
        auto [bi, it] = s.split(i, 128, {"bi", "it"});
        auto [bj, jt] = s.split(j, 128, {"bj", "jt"});
        auto [repeat_i, part_i] = s.split(it, 64, {"repeat_i", "part_i"});
        auto [repeat_j, part_j] = s.split(jt, 64, {"repeat_j", "part_j"});
        auto [ti, chunk_i] = s.split(part_i, 4, {"ti", "chunk_i"});
        auto [tj, chunk_j] = s.split(part_j, 4, {"tj", "chunk_j"});
        auto [ko, ki] = s.split(s.reduce(c), 16, {"ko", "ki"});
        s.order({bi, bj, ti, tj, ko, ki, repeat_i, chunk_i, repeat_j, chunk_j});
        s.bind(bi, grid.y);
        s.bind(bj, grid.x);
        s.bind(ti, thread);
        s.bind(tj, thread);
        s.stage(c, a, Memory::Shared, ko);
        s.stage(c, b, Memory::Shared, ko);
        s.pipeline(ko, {.stages = 2});
        for (Loop loop : {repeat_i, chunk_i, repeat_j, chunk_j}) s.unroll(loop);
    }
    lesson.say("block = repeat x thread x chunk:");
    lesson.show(chunked);

    lesson.compare("contiguous 8 x 8", contiguous, "chunks of 4", chunked, 2.0 * M * N * K);
    lesson.show_explanation(chunked);

    // schedules/product.h has these steps as a function, schedule_product(s, c, a, b, tiles), for any extents: with
    // Tail::Mask in its splits, and tiles that suit the product.
    return lesson.finish();
}
