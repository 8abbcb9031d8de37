// Rows of a tensor core's product that are made on the way: elements that lie in shared memory as they are, by some
// computation in registers. Whole numbers, bit for bit.
#include <gmock/gmock.h>

#include "ops/program.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

using testing::HasSubstr;
using testing::Not;

class RowsInRegisters : public RandomCases {
protected:
    RowsInRegisters() : RandomCases(77) {}
};
TW_ON_EACH_DEVICE(RowsInRegisters);

/// y = made(x) b' of m x n in k terms: `made` in registers, a tile of rows and a step of terms at a time.
struct MadeRows {
    Tensor x, b, rows, y;

    template <class Made>
    MadeRows(Type stored, int64_t m, int64_t n, int64_t k, const Made& made) {
        x = input("x", stored, {m, k}), b = input("b", bf16, {n, k});
        rows = compute("rows", {m, k}, [&](Expr i, Expr j) { return made(x, i, j); });
        Axis t = reduce_axis("t", k);
        y = compute("y", {m, n}, [&](Expr i, Expr j) { return sum(cast(f32, rows(i, t)) * cast(f32, b(j, t)), t); });
    }
};

struct Options {
    bool group = true;    ///< wgmma, by roles; else mma_sync
    bool behind = false;  ///< what is multiplied is made an iteration before
};

Schedule scheduled(const MadeRows& p, const Options& o, const Target& target) {
    Schedule s({p.y}, target);
    auto [i, j] = s.loops<2>(p.y);
    auto [block, in_block] = s.split(i, 128, Tail::Mask, {"block", "in_block"});
    auto [part, m] = s.split(in_block, o.group ? 64 : 16, {"part", "m"});
    auto [step, k] = s.split(s.reduce(p.y), 32, Tail::Mask, {"step", "k"});
    s.order({block, part, step, m, j, k});
    s.bind(block, grid.x);
    s.bind(part, o.group ? warpgroup : warp);
    s.at(p.rows, step);
    s.set_memory(p.rows, Memory::Registers);
    const Stage xs = s.stage(p.rows, p.x, Memory::Shared, step), bs = s.stage(p.y, p.b, Memory::Shared, step);
    s.mma(p.y, o.group ? wgmma : mma_sync, {.m = m, .n = j, .k = k});
    s.pipeline(step, {.stages = 2});
    if (o.behind) s.delay(p.y, step, {.before = p.rows});
    if (o.group) s.roles({{"load", warps(1), {}, {xs, bs}}, {"math", warpgroups(2), {}, {p.y}}});
    return s;
}

/// Weights of a byte, each row of a scale of its own.
Expr dequantised(const Tensor& x, const Expr& i, const Expr& j) {
    const Tensor scale = input("scale", f32, {x.shape()[0]});
    return cast(bf16, cast(f32, x(i, j)) * scale(i));
}

TEST_P(RowsInRegisters, OfBytesThatAreScaled) {
    for (const Options& o : {Options{}, Options{.behind = true}, Options{.group = false}}) {
        const MadeRows p(i8, 64 * between(1, 5), 8 * between(1, 6), 64 * between(1, 3), dequantised);
        const Schedule s = scheduled(p, o, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        const std::string text = build(s).cuda();
        EXPECT_THAT(text, HasSubstr("rows[")) << text;
        EXPECT_THAT(text, Not(HasSubstr("rows_shared")));
        expect_declared(s, whole_numbers({p.y}, 4));
    }
}

/// A triangle of factors: elements above the diagonal are chosen to be zero, behind what is made of memory.
TEST_P(RowsInRegisters, OfATriangle) {
    auto lower = [](const Tensor& x, const Expr& i, const Expr& j) {
        const Tensor weight = input("weight", f32, {x.shape()[1]});
        return select(j <= i, cast(bf16, relu(cast(f32, x(i, j)) * weight(j) + 1.0)), constant(bf16, 0.0));
    };
    for (bool behind : {false, true}) {
        const MadeRows p(bf16, 128 * between(1, 2), 8 * between(1, 6), 64 * between(1, 3), lower);
        const Schedule s = scheduled(p, {.behind = behind}, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        EXPECT_THAT(build(s).cuda(), HasSubstr("tw::load<2>(x_shared_values"));
        expect_declared(s, whole_numbers({p.y}, 6));
    }
}

/// y[b, t, f] = sum relu(x[b, t + r - 1, c] scale[c]) w[f, r, c] + x[b, t, f]: windows of what is made, and an operand
/// of what is made of the sums, both as the loops of their readers run.
TEST_P(RowsInRegisters, OfWindows) {
    Tensor x = input("x", bf16, {3, 50, 64}), w = input("w", bf16, {64, 3, 64}), scale = input("scale", f32, {64});
    Tensor a = compute("a", {3, 50, 64},
                       [&](Expr b, Expr t, Expr c) { return cast(bf16, relu(cast(f32, x(b, t, c)) * scale(c))); });
    Axis r = reduce_axis("r", 3), c = reduce_axis("c", 64);
    Tensor y = compute("y", {3, 50, 64}, [&](Expr b, Expr t, Expr f) {
        return sum(cast(f32, padded(a, 0)(b, t + r - 1, c)) * cast(f32, w(f, r, c)), {r, c});
    });
    for (bool delayed : {false, true}) {
        Schedule s({y}, device_target());
        s.join_axes(y, 0, 1);
        auto [token, f] = s.loops<2>(y);
        auto [tile, m] = s.split(token, 64, Tail::Mask, {"tile", "m"});
        const Loop step = s.reduce(y, 0), k = s.reduce(y, 1);
        s.order({tile, step, m, f, k});
        s.persistent({tile}, {.blocks = 2});
        const Stage rows = s.stage(y, a, Memory::Registers, step, As::Matrix);
        s.inline_stage(a);
        const Stage xs = s.stage(rows, x, Memory::Shared, step, As::Matrix), ws = s.stage(y, w, Memory::Shared, step);
        EXPECT_THAT(s.to_string(), HasSubstr("x_shared: bf16 [64, 1, 64] in shared"));
        s.mma(y, wgmma, {.m = m, .n = f, .k = k});
        s.pipeline(step, {.stages = 2});
        if (delayed) s.delay(y, step, {.before = rows});
        s.roles({{"load", warps(1), {}, {xs, ws}}, {"math", warpgroups(1), {}, {y}}});
        EXPECT_THAT(build(s).explain(), HasSubstr("x_shared: by the tensor memory accelerator, pixels (im2col)"));
        EXPECT_EQ(replay(s.save(), s.outputs(), s.target()).to_string(), s.to_string());
        expect_declared(s, whole_numbers({y}, 9));
    }
}

/// Segments of a loop over taps walk from corners of their own, which one descriptor holds.
TEST_P(RowsInRegisters, WalksOfSegmentsShareCorners) {
    Tensor x = input("x", bf16, {2, 40, 64}), w = input("w", bf16, {64, 5, 64});
    Axis r = reduce_axis("r", 5), c = reduce_axis("c", 64);
    Tensor y = compute("y", {2, 40, 64}, [&](Expr b, Expr t, Expr f) {
        return sum(cast(f32, padded(x, 0)(b, t + r - 2, c)) * cast(f32, w(f, r, c)), {r, c});
    });
    Schedule s({y}, device_target());
    auto [b, t, f] = s.loops<3>(y);
    auto [tile, m] = s.split(s.fuse(b, t, "token"), 64, Tail::Mask, {"tile", "m"});
    const Loop step = s.reduce(y, 0), k = s.reduce(y, 1);
    s.order({tile, step, m, f, k});
    s.bind(tile, grid.x);
    const Stage xs = s.stage(y, x, Memory::Shared, step, As::Matrix), ws = s.stage(y, w, Memory::Shared, step);
    s.mma(y, wgmma, {.m = m, .n = f, .k = k});
    s.cut(step, {integer(2), integer(3)});
    s.pipeline(step, {.stages = 2});
    s.roles({{"load", warps(1), {}, {xs, ws}}, {"math", warpgroups(1), {}, {y}}});
    EXPECT_THAT(build(s).explain(), HasSubstr("x_shared: by the tensor memory accelerator, pixels (im2col)"));
    expect_declared(s, whole_numbers({y}, 3));
}

/// Taps that each part of the loop reaches, but no descriptor from the first one's corner.
TEST(RowsOfSegments, ReachNoFartherThanADescriptor) {
    Tensor x = input("x", bf16, {2, 401, 8, 64}), w = input("w", bf16, {64, 4, 64});
    Axis r = reduce_axis("r", 4), c = reduce_axis("c", 64);
    Tensor y = compute("y", {2, 401, 8, 64}, [&](Expr b, Expr p, Expr q, Expr f) {
        return sum(cast(f32, padded(x, 0)(b, p + r * 100 - 128, q, c)) * cast(f32, w(f, r, c)), {r, c});
    });
    Schedule s({y}, target("sm_90a"));
    s.join_axes(y, 0, 2);
    auto [pixel, f] = s.loops<2>(y);
    auto [tile, m] = s.split(pixel, 64, Tail::Mask, {"tile", "m"});
    const Loop step = s.reduce(y, 0), k = s.reduce(y, 1);
    s.order({tile, step, m, f, k});
    s.bind(tile, grid.x);
    const Stage xs = s.stage(y, x, Memory::Shared, step, As::Matrix), ws = s.stage(y, w, Memory::Shared, step);
    s.mma(y, wgmma, {.m = m, .n = f, .k = k});
    s.cut(step, {integer(1)});
    s.pipeline(step, {.stages = 2});
    s.roles({{"load", warps(1), {}, {xs, ws}}, {"math", warpgroups(1), {}, {y}}});
    EXPECT_ERROR(build(s),
                 "in parts of its loop together, it reads pixels 300 from each other, and a walk over 4 "
                 "dimensions holds offsets to 255; leave the loop whole");
}

}  // namespace
}  // namespace tw
