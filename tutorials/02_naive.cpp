// Tutorial 2: the naive product, from expression to a running kernel.
//
// A schedule starts with every stage as a serial kernel of its own. Binding loops is enough to run on a GPU.
#include "tutorials/lesson.h"

using namespace tw;

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "2. The naive product");
    const int64_t M = lesson.size(256, 2048), N = M, K = M;

    Tensor a = input("a", f32, {M, K}), b = input("b", f32, {K, N});
    Axis k = reduce_axis("k", K);
    Tensor c = compute("c", {M, N}, [&](Expr i, Expr j) { return sum(a(i, k) * b(k, j), k); });
    lesson.show(c);

    // The schedule stands for a tree of loops; print() shows it after any step.
    Schedule s({c}, target("sm_90a"));
    lesson.say("Before any step the loop nest is the formula's own:");
    lesson.show(s);

    // 16 x 16 elements a block, one a thread. The loops that `split` returns are handles for the next steps.
    auto [i, j] = s.loops<2>(c);
    auto [bi, ti] = s.split(i, 16);
    auto [bj, tj] = s.split(j, 16);
    s.order({bi, bj, ti, tj});
    s.bind(bi, grid.y);
    s.bind(bj, grid.x);
    s.bind(ti, thread);  // the threads of a block: a mixed radix, first bound slowest,
    s.bind(tj, thread);  // so neighbouring threads have neighbouring columns
    lesson.say("One thread an element:");
    lesson.show(s);

    lesson.run(s, 2.0 * M * N * K);
    return lesson.finish();
}
