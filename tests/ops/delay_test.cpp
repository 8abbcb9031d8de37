// Delays: what stands under a loop in two parts, the second one iterations behind the first.
#include <gmock/gmock.h>

#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

using testing::HasSubstr;

class Delays : public RandomCases {
protected:
    Delays() : RandomCases(31) {}
};
TW_ON_EACH_DEVICE(Delays);

// Tiles of operands arrive ahead of the products: by threads' arithmetic and by either matrix unit.
TEST_P(Delays, OperandsOfProducts) {
    for (int round = 0; round < 9; ++round) {
        int unit = round % 3;
        int64_t tiles = between(1, 5), m = 64 * between(1, 2), n = 32 * between(1, 3), k = 16 * tiles;
        int delay = between(1, static_cast<int>(std::min<int64_t>(tiles, 3)));
        Tensor a = input("a", bf16, {m, k}), b = input("b", bf16, {n, k});
        Axis r = reduce_axis("r", k);
        Tensor c =
            compute("c", {m, n}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, r)) * cast(f32, b(j, r)), r); });
        Schedule s({c}, device_target());
        auto [i, j] = s.loops<2>(c);
        auto [bi, it] = s.split(i, 64);
        auto [bj, nj] = s.split(j, 32);
        auto [wi, mi] = s.split(it, unit == 2 ? 64 : 16);
        auto [ko, ki] = s.split(s.reduce(c), 16);
        s.order({bi, bj, wi, ko, mi, nj, ki});
        s.bind(bi, grid.y);
        s.bind(bj, grid.x);
        s.bind(wi, unit == 0 ? thread : unit == 1 ? warp : warpgroup);
        s.stage(c, a, Memory::Shared, ko);
        s.stage(c, b, Memory::Shared, ko);
        if (unit > 0) s.mma(c, unit == 1 ? mma_sync : wgmma, {.m = mi, .n = nj, .k = ki});
        s.delay(c, ko, delay);
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers({c}, round));
        EXPECT_EQ(replay(s.save(), {c}, device_target()).to_string(), s.to_string());
        EXPECT_THAT(s.to_string(), HasSubstr(fmt::format("a_shared_{}: ", delay)));
    }
}

// Rows are loaded into registers while the rows before are computed with.
TEST_P(Delays, LoadsIntoRegisters) {
    for (int round = 0; round < 4; ++round) {
        int64_t rows = between(1, 9), columns = between(1, 70);
        Tensor x = input("x", f32, {rows, columns}), w = input("w", f32, {columns});
        Tensor y = compute("y", {rows, columns}, [&](Expr i, Expr j) { return relu(x(i, j)) * w(j) + x(i, j); });
        Schedule s({y}, device_target());
        auto [i, j] = s.loops<2>(y);
        auto [jo, ji] = s.split(j, 8, Tail::Mask);
        s.order({jo, ji, i});
        s.bind(jo, grid.x);
        s.bind(ji, thread);
        s.stage(y, x, Memory::Registers, i);
        s.delay(y, i, between(1, static_cast<int>(std::min<int64_t>(rows, 4))));
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers({y}, round));
    }
}

// A product, what is made of its tile, and a product with that: the second and third under the next tile's first.
TEST_P(Delays, OneProductUnderTheNext) {
    for (int round = 0; round < 4; ++round) {
        bool units = round % 2 == 0;
        int64_t m = 32, n = 16 * between(2, 5), d = 16, e = 16;
        Tensor q = input("q", bf16, {m, d}), k = input("k", bf16, {n, d}), v = input("v", bf16, {n, e});
        Axis t = reduce_axis("t", d), u = reduce_axis("u", n);
        Tensor scores =
            compute("scores", {m, n}, [&](Expr i, Expr j) { return sum(cast(f32, q(i, t)) * cast(f32, k(j, t)), t); });
        Tensor weights =
            compute("weights", {m, n}, [&](Expr i, Expr j) { return cast(bf16, min(relu(scores(i, j)), 3.0)); });
        Tensor o =
            compute("o", {m, e}, [&](Expr i, Expr j) { return sum(cast(f32, weights(i, u)) * cast(f32, v(u, j)), u); });
        Schedule s({o}, device_target());
        auto [i, j] = s.loops<2>(o);
        auto [bi, it] = s.split(i, 32);
        auto [wi, mi] = s.split(it, 16);
        auto [uo, ui] = s.split(s.reduce(o), 16);
        s.order({bi, wi, uo, mi, j, ui});
        s.bind(bi, grid.x);
        s.bind(wi, units ? warp : thread);
        s.at(weights, uo);
        s.at(scores, uo);
        s.set_memory(scores, Memory::Registers);
        s.set_memory(weights, Memory::Registers);
        if (units) {
            s.set_memory(weights, Memory::Shared);
            s.stage(o, v, Memory::Shared, uo);
            s.stage(scores, q, Memory::Shared, uo);
            s.stage(scores, k, Memory::Shared, uo);
            auto [si, sj] = s.loops<2>(scores);
            auto [to, ti] = s.split(s.reduce(scores), 16);
            s.order({to, si, sj, ti});
            s.mma(scores, mma_sync, {.m = si, .n = sj, .k = ti});
            s.mma(o, mma_sync, {.m = mi, .n = j, .k = ui});
        }
        if (!units) s.delay(weights, uo, between(1, 2));
        if (units) s.delay(o, uo, 1);
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers({o}, round));
    }
}

/// Two products of warpgroups without any reduction between: the second one of a tile stands between the first of the
/// next and what is made of that, in a pipelined loop, of which copies that only it reads are late, too, of inputs and
/// of what a kernel before has stored.
TEST_P(Delays, ProductsInTheMiddleOfTheNext) {
    for (int round = 0; round < 6; ++round) {
        const bool by_role = round % 2 == 0, is_stored = round % 3 == 0;
        const int64_t m = 64, n = 32 * between(1, 5), d = 64, e = 64;
        Tensor q = input("q", bf16, {m, d}), k = input("k", bf16, {n, d}), v = input("v", bf16, {n, e});
        Axis t = reduce_axis("t", d), u = reduce_axis("u", n);
        Tensor scores =
            compute("scores", {m, n}, [&](Expr i, Expr j) { return sum(cast(f32, q(i, t)) * cast(f32, k(j, t)), t); });
        Tensor weights =
            compute("weights", {m, n}, [&](Expr i, Expr j) { return cast(bf16, min(relu(scores(i, j)), 3.0)); });
        Tensor twice = compute("twice", {n, e}, [&](Expr i, Expr j) { return cast(bf16, cast(f32, v(i, j)) * 2.0); });
        const Tensor& factor = is_stored ? twice : v;
        Tensor o = compute("o", {m, e},
                           [&](Expr i, Expr j) { return sum(cast(f32, weights(i, u)) * cast(f32, factor(u, j)), u); });
        Schedule s({o}, device_target());
        auto [i, j] = s.loops<2>(o);
        auto [bi, it] = s.split(i, 64);
        auto [wi, mi] = s.split(it, 64);
        auto [uo, ui] = s.split(s.reduce(o), 32);
        s.order({bi, wi, uo, mi, j, ui});
        s.bind(bi, grid.x);
        s.bind(wi, warpgroup);
        s.at(weights, uo);
        s.at(scores, uo);
        for (const Tensor& made : {scores, weights}) s.set_memory(made, Memory::Registers);
        Stage values = s.stage(o, factor, Memory::Shared, uo), keys = s.stage(scores, k, Memory::Shared, uo);
        s.stage(scores, q, Memory::Shared, bi);
        auto [si, sj] = s.loops<2>(scores);
        auto [to, ti] = s.split(s.reduce(scores), 64);
        s.order({to, si, sj, ti});
        s.mma(scores, wgmma, {.m = si, .n = sj, .k = ti});
        s.mma(o, wgmma, {.m = mi, .n = j, .k = ui});
        s.delay(o, uo, {.before = weights});
        s.pipeline(uo, {.stages = between(2, 3)});
        if (by_role) s.roles({{"load", tw::warps(1), {}, {keys, values}}, {"math", warpgroups(1), {}, {o}}});
        if (chance()) s.reverse(uo);
        SCOPED_TRACE(s.trace_as_cpp());
        const std::string text = build(s).cuda();
        EXPECT_EQ(text.find("k_shared_empty") != std::string::npos, by_role) << text;
        EXPECT_TRUE(n == 32 || text.find("wgmma_wait<1>") != std::string::npos) << text;
        expect_declared(s, whole_numbers({o}, round));
        EXPECT_EQ(replay(s.save(), {o}, device_target()).to_string(), s.to_string());
    }
}

TEST(Delay, RefusesWhatWouldChangeResults) {
    Tensor x = input("x", f32, {8, 16});
    Axis r = reduce_axis("r", 16);
    Tensor y = compute("y", {8}, [&](Expr i) { return sum(x(i, r), r); });
    Tensor z = compute("z", {8, 16}, [&](Expr i, Expr j) { return x(i, j) + y(i); });
    Schedule s({z}, target("sm_90a"));
    auto [i, j] = s.loops<2>(z);
    EXPECT_ERROR(s.delay(z, i), "delay(z, i, 1): nothing stands before 'z' under the loop");
    EXPECT_ERROR(s.delay(y, i), "'y' does not stand under the loop; place it there first: at(y, i)");
    s.at(y, i);
    EXPECT_ERROR(s.delay(z, i, 9), "a stage can come 1 to 8 iterations later");
    s.delay(z, i, 2);
    EXPECT_ERROR(s.split(i, 2), "a stage is delayed in loop 'i'; split it before, or delay(stage, loop, 0) first");
    EXPECT_ERROR(s.bind(i, grid.x), "a stage is delayed in the loop: its iterations follow each other");
    EXPECT_ERROR(s.cut(i, {4}),
                 "delay(z, i, 2): 'y' would be made again before 'z' has read it, but the loop is pipelined");
    EXPECT_ERROR(s.persistent({i}), "persistent: a stage is delayed in loop 'i'");
    EXPECT_ERROR(s.reverse(i), "reverse(i): it is no reduce loop");
    EXPECT_ERROR(s.delay(z, i, {.before = z}), "'z' does not stand before 'z' under the loop; name a stage that does");
    EXPECT_ERROR(s.at(y, j), "delay(z, i, 2): nothing stands before 'z' under the loop");
    s.delay(z, i, 0);
    s.bind(i, grid.x);
    EXPECT_ERROR(s.delay(z, i), "loop 'i' is bound to grid.x; delay it before binding");
    Schedule moved({z}, target("sm_90a"));
    auto [mi, mj] = moved.loops<2>(z);
    moved.at(y, mi);
    EXPECT_ERROR(moved.delay(y, mi), "delay(y, i, 1): nothing stands before 'y' under the loop");
    moved.stage(z, x, Memory::Shared, mi);
    moved.delay(y, mi);
    EXPECT_ERROR(moved.at(y, mj), "'y' stands no longer under the loop; place it there: at(y, i)");
    Tensor w = compute("w", {8, 16}, [&](Expr i, Expr j) { return z(i, j) * 2.0; });
    Schedule both({z, w}, target("sm_90a"));
    Loop zi = both.loops<2>(z)[0];
    both.at(w, zi);
    EXPECT_ERROR(both.delay(w, zi), "delay(w, i, 1): both parts use 'z', which outlives an iteration");
    Tensor short_z = compute("z", {1, 16}, [&](Expr a, Expr b) { return x(a, b) + y(a); });
    Schedule backwards({y}, target("sm_90a"));
    backwards.reverse(backwards.reduce(y));
    EXPECT_ERROR(backwards.split(backwards.reduce(y), 2), "loop 'r' runs backwards; split it before reverse");
    EXPECT_ERROR(backwards.bind(backwards.reduce(y), thread),
                 "the loop runs backwards: its iterations follow each other");
    backwards.reverse(backwards.reduce(y));
    backwards.split(backwards.reduce(y), 2);
    Schedule few({short_z}, target("sm_90a"));
    few.at(y, few.loops<2>(short_z)[0]);
    EXPECT_ERROR(few.delay(short_z, few.loops<2>(short_z)[0], 2), "the loop has 1 iterations");
}

}  // namespace
}  // namespace tw
