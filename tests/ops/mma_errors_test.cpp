// What matrix instructions and boxes cannot do: messages that say what to change.
#include "ops/program.h"
#include "tests/ops/warp_tiles.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

/// A product of bf16 whose loops are ready for mma.
struct Ready {
    explicit Ready(const std::string& arch = "sm_90a") : s({c}, target(arch)) {
        auto [i, j] = s.loops<2>(c);
        auto [io, ii] = s.split(i, 16);
        auto [jo, ji] = s.split(j, 8);
        auto [ko, ki] = s.split(s.reduce(c), 16);
        s.order({io, jo, ko, ii, ji, ki});
        loops = {ii, ji, ki};
        outer = {io, jo, ko};
    }
    Tensor a = input("a", bf16, {64, 64}), b = input("b", bf16, {64, 64});
    Axis k = reduce_axis("k", 64);
    Tensor c = compute("c", {64, 64}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, k)) * cast(f32, b(j, k)), k); });
    Schedule s;
    MmaLoops loops, outer;
};

TEST(MmaErrors, SayWhatDoesNotFit) {
    Ready r;
    EXPECT_ERROR(r.s.mma(r.c, mma_sync, {r.loops.m, Loop(), r.loops.k}), ".n is missing; name three loops");
    EXPECT_ERROR(r.s.mma(r.c, mma_sync, {r.loops.k, r.loops.n, r.loops.m}),
                 "m and n must be loops of the result, k one of");
    EXPECT_ERROR(r.s.mma(r.c, mma_sync, {r.outer.m, r.loops.n, r.loops.k}),
                 "are not its innermost ones; order them last");
    r.s.bind(r.loops.m, thread);
    EXPECT_ERROR(r.s.mma(r.c, mma_sync, r.loops), "is bound to thread; the instruction runs it itself");
    r.s.bind(r.loops.m, serial);
    r.s.bind(r.outer.m, thread);
    EXPECT_ERROR(r.s.mma(r.c, mma_sync, r.loops), "but whole warps work on it; bind it to warp");
    r.s.bind(r.outer.m, serial);
    r.s.mma(r.c, mma_sync, r.loops);
    EXPECT_ERROR(r.s.split(r.loops.m, 8), "is run by a matrix instruction; split it before mma");
}

/// What no order of loops mends is told before the order.
TEST(MmaErrors, TypesComeFirst) {
    const Tensor a = input("a", f32, {16, 16}), b = input("b", f32, {8, 16});
    Axis k = reduce_axis("k", 16);
    const Tensor c = compute("c", {16, 8}, [&](Expr i, Expr j) { return sum(a(i, k) * b(j, k), k); });
    Schedule s({c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(c);
    EXPECT_ERROR(s.mma(c, mma_sync, {i, j, s.reduce(c)}), "write truncate_tf32(x) of both");
}

TEST(MmaErrors, OfFormsAndTypes) {
    Axis k = reduce_axis("k", 16);
    auto attempt = [&](Type x, Type y, const std::function<Expr(Expr, Expr)>& term, const std::string& arch = "sm_90a",
                       bool entangled = false) {
        Tensor a = input("a", x, {32, 16}), b = input("b", y, {8, 16});
        Tensor c =
            compute("c", {16, 8}, [&](Expr i, Expr j) { return sum(term(a(entangled ? i + j : i, k), b(j, k)), k); });
        Schedule s({c}, target(arch));
        auto [i, j] = s.loops<2>(c);
        s.order({s.reduce(c), i, j});
        s.mma(c, mma_sync, {i, j, s.reduce(c)});
    };
    auto product = [](Expr x, Expr y) { return cast(f32, x) * cast(f32, y); };
    attempt(bf16, bf16, product);
    EXPECT_ERROR(attempt(bf16, bf16, [](Expr x, Expr y) { return cast(f32, x) + cast(f32, y); }),
                 "its terms are no products of two elements");
    EXPECT_ERROR(attempt(bf16, bf16, [](Expr x, Expr y) { return exp(cast(f32, x)) * cast(f32, y); }),
                 "compute what stands around them in stages of their own");
    EXPECT_ERROR(attempt(bf16, bf16, product, "sm_90a", true), "it must depend on 'i' and 'k', and not on 'j'");
    EXPECT_ERROR(attempt(bf16, f16, product), "its factors are bf16 and f16; no instruction multiplies these");
    auto bare_product = [](Expr x, Expr y) { return x * y; };
    EXPECT_ERROR(attempt(f32, f32, bare_product), "write truncate_tf32(x) of both, or round the stages");
    EXPECT_ERROR(attempt(f32, bf16, product), "its factors are f32 and bf16; of f32 it multiplies the first 10 bits");
    EXPECT_ERROR(attempt(f64, f64, bare_product), "no instruction multiplies f64 to sums of f64");
    EXPECT_ERROR(attempt(e4m3, e4m3, product, "sm_80"), "needs sm_89, the target is sm_80");
    EXPECT_ERROR(attempt(i8, i8, [](Expr x, Expr y) { return cast(i32, x) * cast(i32, y); }),
                 "which must be multiples");
}

TEST(MmaErrors, OfLoops) {
    Ready r;
    r.s.bind(r.outer.m, warpgroup);
    EXPECT_ERROR(r.s.bind(r.outer.n, warp), "a warpgroup has 4 warps; bind them to warp alone");
    Tensor d = compute("d", {64, 64}, [&](Expr i, Expr j) { return r.c(i, j) + 1.0; });
    Schedule two({d}, target("sm_90a"));
    EXPECT_ERROR(two.mma(r.c, mma_sync, {two.loops<2>(d)[0], two.loops<2>(r.c)[1], two.reduce(r.c)}), "belongs to 'd'");
}

/// A product of 64 x 64 x 32 of these operands, staged or not, by wgmma.
void build_by_warpgroup(const Tensor& a, const Tensor& b, int64_t n,
                        const std::function<Expr(Expr, Expr, const Axis&)>& term, bool staged = true,
                        Memory of_b = Memory::Shared) {
    Axis k = reduce_axis("k", 64);
    Tensor c = compute("c", {64, n}, [&](Expr i, Expr j) { return sum(term(i, j, k), k); });
    Schedule s({c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(c);
    auto [ko, ki] = s.split(s.reduce(c), 32);
    s.order({ko, i, j, ki});
    if (staged) s.stage(c, a, Memory::Shared, ko);
    if (staged && !a.same(b)) s.stage(c, b, of_b, ko);
    s.mma(c, wgmma, {i, j, ki});
    build(s);
}

TEST(MmaErrors, OfWhatWarpgroupsRead) {
    auto f = [](Expr x) { return cast(f32, x); };
    Tensor a = input("a", bf16, {64, 64}), b = input("b", bf16, {64, 64}), thick = input("a", bf16, {64, 64, 2}),
           narrow = input("b", bf16, {64, 8}), bytes = input("a", i8, {64, 64}), other = input("b", i8, {64, 64}),
           cube = input("a", bf16, {64, 8, 64});
    build_by_warpgroup(a, b, 64, [&](Expr i, Expr j, const Axis& k) { return f(a(i, k)) * f(b(j, k)); });
    EXPECT_ERROR(build_by_warpgroup(
                     a, b, 64, [&](Expr i, Expr j, const Axis& k) { return f(a(i, k)) * f(b(j, k)); }, false),
                 "reads its operands from shared memory, but 'a' is in global; stage it");
    EXPECT_ERROR(build_by_warpgroup(
                     a, b, 64, [&](Expr i, Expr j, const Axis& k) { return f(a(i, k)) * f(b(j, k)); }, false),
                 "mma_errors_test.cpp:");  // the step's line
    EXPECT_ERROR(
        build_by_warpgroup(
            a, b, 64, [&](Expr i, Expr j, const Axis& k) { return f(a(i, k)) * f(b(j, k)); }, true, Memory::Registers),
        "but 'b_registers' is in registers; set_memory(b_registers, Memory::Shared)");
    EXPECT_ERROR(
        build_by_warpgroup(thick, b, 64, [&](Expr i, Expr j, const Axis& k) { return f(thick(i, k, 0)) * f(b(j, k)); }),
        "with neighbours along rows, columns or k; stage it so");
    EXPECT_ERROR(build_by_warpgroup(
                     bytes, other, 64,
                     [&](Expr i, Expr j, const Axis& k) { return cast(i32, bytes(k, i)) * cast(i32, other(j, k)); }),
                 "with neighbours along k; transpose it in memory");
    EXPECT_ERROR(
        build_by_warpgroup(a, narrow, 8, [&](Expr i, Expr j, const Axis& k) { return f(a(i, k)) * f(narrow(k, j)); }),
        "reads lines of 32, 64 or 128 bytes in groups of eight");
    EXPECT_ERROR(build_by_warpgroup(cube, cube, 8,
                                    [&](Expr i, Expr j, const Axis& k) { return f(cube(i, 0, k)) * f(cube(0, j, k)); }),
                 "in two layouts; stage a copy for each");
    EXPECT_ERROR(build_by_warpgroup(
                     a, b, 64, [&](Expr i, Expr j, const Axis& k) { return f(padded(a, 0)(i - 1, k)) * f(b(j, k)); }),
                 "its terms are no products of two elements");
    EXPECT_ERROR(
        build_by_warpgroup(a, b, 64, [&](Expr i, Expr j, const Axis& k) { return f(a(i / 2, k)) * f(b(j, k)); }),
        "which does not step evenly with the tile");
}

TEST(MmaErrors, OfTwoUnitsAndTwoWays) {
    Axis r = reduce_axis("r", 32), k = reduce_axis("k", 64);
    Tensor a = input("a", bf16, {64, 32}), b = input("b", bf16, {64, 32}), d = input("d", bf16, {64, 64});
    Tensor p = compute("p", {64, 64},
                       [&](Expr i, Expr j) { return cast(bf16, sum(cast(f32, a(i, r)) * cast(f32, b(j, r)), r)); });
    Tensor z = compute("z", {64, 64}, [&](Expr i, Expr j) { return sum(cast(f32, p(i, k)) * cast(f32, d(j, k)), k); });
    Schedule s({z}, target("sm_90a"));
    auto [i, j] = s.loops<2>(z);
    auto [io, ii] = s.split(i, 64);
    s.order({io, s.reduce(z), ii, j});
    s.at(p, io);
    s.set_memory(p, Memory::Shared);
    s.stage(z, d, Memory::Shared, io);
    auto [pi, pj] = s.loops<2>(p);
    EXPECT_ERROR(s.mma(p, mma_sync, {pi, pj, s.reduce(p)}),
                 "a loop of the reduction must stand outside of 'i' and 'j', so that all sums of a tile are kept: "
                 "order({r, i, j})");
    s.order({s.reduce(p), pi, pj});
    s.mma(p, mma_sync, {pi, pj, s.reduce(p)});
    s.mma(z, wgmma, {ii, j, s.reduce(z)});
    EXPECT_ERROR(build(s), "uses both mma_sync and wgmma; use one matrix unit in a kernel");

    Tensor y = compute("y", {64, 64},
                       [&](Expr row, Expr column) { return cast(f32, p(row, column)) + cast(f32, p(column, row)); });
    Schedule both({y}, target("sm_90a"));
    auto [yi, yj] = both.loops<2>(y);
    auto [yo, y_inner] = both.split(yi, 64);
    both.order({yo, y_inner, yj});
    both.at(p, yo);
    both.set_memory(p, Memory::Registers);
    auto [qi, qj] = both.loops<2>(p);
    both.order({both.reduce(p), qi, qj});
    both.mma(p, mma_sync, {qi, qj, both.reduce(p)});
    EXPECT_ERROR(build(both), "meets registers that lanes share as rows and such that they share as columns");
}

TEST(Tma, IsAPromise) {
    auto attempt = [](int64_t columns, int stages, const std::string& arch = "sm_90a", bool shared_out = false) {
        Tensor x = input("x", f32, {64, columns});
        Axis r = reduce_axis("r", 64);
        Tensor y = compute("y", {64}, [&](Expr j) { return sum(x(r, j), r); });
        Schedule s({y}, target(arch));
        auto [ro, ri] = s.split(s.reduce(y), 8, Tail::Mask);
        auto [j] = s.loops<1>(y);
        s.order({j, ro, ri});
        s.bind(j, thread);
        Stage copy = s.stage(y, x, Memory::Shared, ro);
        if (shared_out) s.bind(s.loops<2>(copy)[0], thread);
        if (stages > 1) s.pipeline(ro, {.stages = stages});
        s.via(copy, Copy::Tma);
        build(s);
    };
    attempt(64, 2);
    EXPECT_ERROR(attempt(66, 2), "rows of 'x' are 66 elements apart, which is no multiple of 16 bytes");
    EXPECT_ERROR(attempt(64, 2, "sm_90a", true), "its loops are bound to threads, and one thread asks for a whole box");
    EXPECT_ERROR(attempt(64, 1), "its loop is not pipelined; pipeline(loop, {.stages = 2}) has it run ahead");
    EXPECT_ERROR(attempt(64, 2, "sm_80"), "via(x_shared, tma): needs sm_90, the target is sm_80");
}

TEST(Tma, IsAPromiseForResults) {
    auto attempt = [](int64_t columns, Memory memory, bool added_up = false, bool threads = false) {
        Tensor x = input("x", f32, {64, columns});
        Tensor y = compute("y", {64, columns}, [&](Expr i, Expr j) { return x(i, j) * 2.0; });
        Axis t = reduce_axis("t", columns);
        Tensor sums = compute("sums", {64}, [&](Expr i) { return sum(y(i, t), t); });
        Schedule s(added_up ? std::vector<Tensor>{y, sums} : std::vector<Tensor>{y}, target("sm_90a"));
        auto [i, j] = s.loops<2>(y);
        auto [io, ii] = s.split(i, 8);
        Stage out = s.stage(y, memory, io);
        if (added_up) s.at(sums, io);
        if (threads) s.bind(s.loops<2>(out)[0], thread);
        if (memory == Memory::Shared) {
            EXPECT_ERROR(s.via(out, Copy::Async), "it is a copy out of shared; asynchronous");
        }
        s.via(out, Copy::Tma);
        build(s);
    };
    attempt(64, Memory::Shared);
    EXPECT_ERROR(attempt(63, Memory::Shared), "rows of 'y' are 63 elements apart, which is no multiple of 16 bytes");
    EXPECT_ERROR(attempt(64, Memory::Registers),
                 "what it copies lives in registers; asynchronous copies go into shared");
    EXPECT_ERROR(attempt(64, Memory::Shared, true), "other parts of the kernel use 'y' too");
    EXPECT_ERROR(attempt(64, Memory::Shared, false, true), "its loops are bound to threads");
}

TEST(MmaErrors, OfWhatStaysMasked) {
    Tensor a = input("a", bf16, {60, 64}), b = input("b", bf16, {64, 64});
    Axis k = reduce_axis("k", 64);
    Tensor c = compute("c", {60, 64}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, k)) * cast(f32, b(j, k)), k); });
    Schedule s({c}, target("sm_90a"));
    auto [ko, loops] = tile_for_warps(s, c, {});
    s.mma(c, mma_sync, loops);
    EXPECT_ERROR(build(s), "stage 'a' and 'b' in shared memory, where zeros take the place of what is missing");
}

TEST(MmaErrors, OfWhatIsComputedAndStaysMasked) {
    Tensor a = input("a", bf16, {60, 60}), b = input("b", bf16, {64, 60});
    Axis k = reduce_axis("k", 60);
    Tensor p = compute("p", {60, 60}, [&](Expr i, Expr j) { return cast(bf16, cast(f32, a(i, j)) * 2.0); });
    Tensor c = compute("c", {60, 64}, [&](Expr i, Expr j) { return sum(cast(f32, p(i, k)) * cast(f32, b(j, k)), k); });
    Schedule s({c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(c);
    auto [io, ii] = s.split(i, 32, Tail::Mask);
    auto [ko, ki] = s.split(s.reduce(c), 32, Tail::Mask);
    s.order({io, ko, ii, j, ki});
    s.at(p, ko);
    s.set_memory(p, Memory::Shared);
    s.stage(c, b, Memory::Shared, ko);
    s.mma(c, mma_sync, {.m = ii, .n = j, .k = ki});
    std::string told;
    try {
        told = build(s).explain();
    } catch (const Error& error) {
        told = error.what();
    }
    EXPECT_EQ(told.find("stage both operands"), told.npos) << told;
    EXPECT_EQ(told.find("need no mask;"), told.npos) << told;
}

}  // namespace
}  // namespace tw
