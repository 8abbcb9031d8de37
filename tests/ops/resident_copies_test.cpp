// Copies that blocks in turn make once, for they are the same for all tiles, and taps that read one tile at rows of
// their own.
#include <gmock/gmock.h>

#include "dsl/schedule.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"

namespace tw {
namespace {

using testing::HasSubstr;
using testing::Not;

class ResidentCopies : public RandomCases {
protected:
    ResidentCopies() : RandomCases(11) {}

    Target sm90() const { return target("sm_90a"); }
    void expect_built(const Schedule& s) {
        const Program program = build(s);
        expect_compiles(program);
        expect_declared(s, whole_numbers(s.outputs(), static_cast<unsigned>(between(0, 1000))));
    }
};
TW_ON_EACH_DEVICE(ResidentCopies);

/// Filters over time: samples are rows of the unit, a tap reads the tile's from its own on.
TEST_P(ResidentCopies, AreTheWeightsOfAFilterBank) {
    for (int round = 0; round < 4; ++round) {
        const int64_t batch = between(1, 3), taps = between(2, 9), channels = 16 << between(0, 2),
                      samples = between(140, 400), filters = 8 * between(1, 8), blocks = between(1, 3);
        Tensor x = input("x", bf16, {batch, samples, channels}), w = input("w", bf16, {taps, filters, channels});
        Axis k = reduce_axis("k", taps), c = reduce_axis("c", channels);
        Tensor y = compute("y", {batch, samples - taps + 1, filters}, [&](Expr b, Expr t, Expr f) {
            return sum(cast(f32, x(b, t + k, c)) * cast(f32, w(k, f, c)), {k, c});
        });
        Schedule s({y}, sm90());
        auto [b, t, f] = s.loops<3>(y);
        auto [tile, row] = s.split(t, 128, Tail::Mask, {"tile", "row"});
        auto [warpgroup_row, m] = s.split(row, 64, {"warpgroup_m", "m"});
        const Loop tap = s.reduce(y, 0), channel = s.reduce(y, 1);
        s.order({b, tile, warpgroup_row, tap, m, f, channel});
        s.bind(warpgroup_row, warpgroup);
        s.persistent({b, tile}, {.blocks = static_cast<int>(blocks), .stages = 2});
        const Stage xs = s.stage(y, x, Memory::Shared, tile), ws = s.stage(y, w, Memory::Shared, tile);
        s.mma(y, wgmma, {.m = m, .n = f, .k = channel});
        s.roles({{"load", warps(1), registers(40), {xs, ws}}, {"math", warpgroups(2), registers(232), {y}}});
        SCOPED_TRACE(s.trace_as_cpp());
        const std::string cuda = build(s).cuda();
        EXPECT_THAT(cuda, HasSubstr("w_shared[1]"));
        EXPECT_THAT(cuda, HasSubstr("x_shared[2]"));
        EXPECT_THAT(cuda, Not(HasSubstr("w_shared_empty")));
        expect_built(s);
    }
}

/// Of a tall product, columns stay while rows come, of all groups in turn.
TEST_P(ResidentCopies, AreTheColumnsOfATallProduct) {
    for (int turns : {1, 2}) {
        const int64_t rows = between(150, 500), columns = 16 * between(1, 8), depth = 128;
        Tensor a = input("a", bf16, {rows, depth}), w = input("w", bf16, {columns, depth});
        Axis k = reduce_axis("k", depth);
        Tensor c = compute("c", {rows, columns},
                           [&](Expr i, Expr j) { return cast(bf16, sum(cast(f32, a(i, k)) * cast(f32, w(j, k)), k)); });
        Schedule s({c}, sm90());
        auto [i, j] = s.loops<2>(c);
        auto [tile, row] = s.split(i, 64, Tail::Mask, {"tile", "row"});
        auto [step, in_step] = s.split(s.reduce(c), 64, {"step", "in_step"});
        auto [warpgroup_row, m] = s.split(row, 64, {"warpgroup_m", "m"});
        s.order({tile, warpgroup_row, step, m, j, in_step});
        s.bind(warpgroup_row, warpgroup);
        s.persistent({tile}, {.blocks = 2});
        const Stage as = s.stage(c, a, Memory::Shared, step), ws = s.stage(c, w, Memory::Shared, tile);
        s.mma(c, wgmma, {.m = m, .n = j, .k = in_step});
        s.pipeline(step, {.stages = 3, .in_flight = 1});
        s.roles({{"load", warps(1), registers(40), {as, ws}},
                 {"math", warpgroups(turns), registers(turns == 1 ? 256 : 232), {c}, ping_pong(turns)}});
        SCOPED_TRACE(s.trace_as_cpp());
        EXPECT_THAT(build(s).cuda(), HasSubstr("w_shared[1]"));
        expect_built(s);
    }
}

/// Covariances of two series at several lags: samples are terms, and each lag reads those of a step from its own on,
/// lines of neighbours along the unit's columns.
TEST_P(ResidentCopies, OfAStepServeAllLags) {
    for (int round = 0; round < 4; ++round) {
        const int64_t lags = between(2, 6), columns = 16 << between(0, 2), rows = 8 * between(2, 20),
                      terms = 16 * between(2, 8), samples = terms * between(2, 9);
        Tensor a = input("a", bf16, {samples, rows}), b = input("b", bf16, {samples + lags - 1, columns});
        Axis t = reduce_axis("t", samples);
        Tensor c = compute("c", {lags, rows, columns}, [&](Expr lag, Expr i, Expr j) {
            return sum(cast(f32, a(t, i)) * cast(f32, b(t + lag, j)), t);
        });
        Schedule s({c}, sm90());
        auto [lag, i, j] = s.loops<3>(c);
        auto [tile, m] = s.split(i, 64, Tail::Mask, {"tile", "m"});
        auto [step, k] = s.split(s.reduce(c), terms, {"step", "k"});
        s.order({tile, step, lag, m, j, k});
        s.bind(tile, grid.x);
        const Stage as = s.stage(c, a, Memory::Shared, step), bs = s.stage(c, b, Memory::Shared, step);
        s.mma(c, wgmma, {.m = m, .n = j, .k = k});
        s.pipeline(step, {.stages = between(2, 3), .in_flight = 1});
        s.roles({{"load", warps(1), registers(40), {as, bs}}, {"math", warpgroups(1), registers(216), {c}}});
        SCOPED_TRACE(s.trace_as_cpp());
        expect_built(s);
    }
}

}  // namespace
}  // namespace tw
