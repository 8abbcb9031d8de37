// Tutorial 3: tiling. A register tile for each thread.
//
// The naive kernel reads two numbers for each multiply-add. A thread that computes 4 x 4 elements reads eight for
// sixteen.
#include "tutorials/lesson.h"

using namespace tw;

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "3. Tiling");
    const int64_t M = lesson.size(256, 2048), N = M, K = M;

    Tensor a = input("a", f32, {M, K}), b = input("b", f32, {K, N});
    Axis k = reduce_axis("k", K);
    Tensor c = compute("c", {M, N}, [&](Expr i, Expr j) { return sum(a(i, k) * b(k, j), k); });

    // The naive schedule again, as what to beat.
    Schedule naive({c}, target("sm_90a"));
    {
        auto [i, j] = naive.loops<2>(c);
        auto [bi, ti] = naive.split(i, 16);
        auto [bj, tj] = naive.split(j, 16);
        naive.order({bi, bj, ti, tj});
        naive.bind(bi, grid.y);
        naive.bind(bj, grid.x);
        naive.bind(ti, thread);
        naive.bind(tj, thread);
    }

    // split() can be given names. The nest, messages and the kernel say them; without, the halves of i are i_outer and
    // i_inner, and those of i_inner i_inner_outer and so on.
    Schedule s({c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(c);
    auto [bi, it] = s.split(i, 64, {"bi", "it"});
    auto [bj, jt] = s.split(j, 64, {"bj", "jt"});
    auto [ti, ri] = s.split(it, 4, {"ti", "ri"});
    auto [tj, rj] = s.split(jt, 4, {"tj", "rj"});
    Loop kk = s.reduce(c);

    // The order of loops decides what the accumulator is: the data loops inside the reduce loop, here 4 x 4.
    s.order({bi, bj, ti, tj, kk, ri, rj});
    lesson.say("The accumulator tile stands above the reduce loop:");
    lesson.show(s);
    s.bind(bi, grid.y);
    s.bind(bj, grid.x);
    s.bind(ti, thread);
    s.bind(tj, thread);
    s.unroll(ri);
    s.unroll(rj);

    lesson.compare("naive", naive, "register tile", s, 2.0 * M * N * K);
    return lesson.finish();
}
