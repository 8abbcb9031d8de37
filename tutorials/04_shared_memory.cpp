// Tutorial 4: shared memory. The threads of a block read the same rows and columns; copy them once.
//
// stage() copies an operand, as the computation reads it in one iteration of a loop. Which threads copy what, how wide,
// in which layout and where barriers stand is derived; explain() tells.
#include "tutorials/lesson.h"

using namespace tw;

namespace {

Schedule tiled(const Tensor& c, const Tensor& a, const Tensor& b, bool shared) {
    Schedule s({c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(c);
    auto [bi, it] = s.split(i, 64, {"bi", "it"});
    auto [bj, jt] = s.split(j, 64, {"bj", "jt"});
    auto [ti, ri] = s.split(it, 4, {"ti", "ri"});
    auto [tj, rj] = s.split(jt, 4, {"tj", "rj"});
    auto [ko, ki] = s.split(s.reduce(c), 16, {"ko", "ki"});
    s.order({bi, bj, ti, tj, ko, ki, ri, rj});
    s.bind(bi, grid.y);
    s.bind(bj, grid.x);
    s.bind(ti, thread);
    s.bind(tj, thread);
    s.unroll(ri);
    s.unroll(rj);
    if (shared) {
        s.stage(c, a, Memory::Shared, ko);  // 64 rows x 16 of k, anew in each iteration of ko
        s.stage(c, b, Memory::Shared, ko);
    }
    return s;
}

}  // namespace

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "4. Shared memory");
    const int64_t M = lesson.size(256, 2048), N = M, K = M;

    Tensor a = input("a", f32, {M, K}), b = input("b", f32, {K, N});
    Axis k = reduce_axis("k", K);
    Tensor c = compute("c", {M, N}, [&](Expr i, Expr j) { return sum(a(i, k) * b(k, j), k); });

    Schedule s = tiled(c, a, b, true);
    lesson.say("A shared copy serves all threads, so thread loops around it count as running:");
    lesson.show(s);
    lesson.compare("register tile", tiled(c, a, b, false), "with shared memory", s, 2.0 * M * N * K);
    return lesson.finish();
}
