// Neighbouring dimensions of a result as one: join_axes.
#include <gmock/gmock.h>

#include "dsl/interpret.h"
#include "dsl/schedule.h"
#include "ops/program.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class JoinedAxesTest : public RandomCases {
protected:
    JoinedAxesTest() : RandomCases(61) {}
};
TW_ON_EACH_DEVICE(JoinedAxesTest);

/// Sums of windows, what another kernel makes of them, and both as outputs: any neighbours joined.
TEST_P(JoinedAxesTest, OfAnyTensorAreTheDeclared) {
    for (int round = 0; round < 20; ++round) {
        const int b = between(1, 4), t = between(1, 7), f = between(1, 6);
        Tensor x = input("x", f32, {b, t + 2, 5}), w = input("w", f32, {f, 5});
        Axis c = reduce_axis("c", 5), k = reduce_axis("k", f);
        Tensor y = compute("y", {b, t, f},
                           [&](Expr i, Expr j, Expr l) { return sum(x(i, j + 1, c) * w(l, c), c) + cast(f32, i); });
        Tensor z = compute("z", {b, t}, [&](Expr i, Expr j) { return sum(padded(y, 0)(i, j - 1, k), k); });
        Schedule s({y, z}, device_target());
        const int first = between(0, 1), last = between(first + 1, 2);
        s.join_axes(y, first, last);
        const std::vector<Loop> loops = s.data_loops(y);
        EXPECT_EQ(loops.size(), static_cast<size_t>(3 - (last - first)));
        auto [block, row] = s.split(loops[0], between(1, 5), Tail::Mask);
        s.bind(block, grid.x);
        if (chance()) s.bind(row, thread);
        if (chance()) s.join_axes(z, 0, 1);
        if (const int of_x = between(0, 1); chance()) s.join_axes(x, of_x, between(of_x + 1, 2));
        SCOPED_TRACE(s.trace_as_cpp());
        EXPECT_EQ(replay(s.save(), s.outputs(), s.target()).to_string(), s.to_string());
        const Bindings bindings = whole_numbers(s.outputs(), static_cast<unsigned>(between(0, 1000)));
        EXPECT_THAT(interpret_tree(s.tree(), bindings)[0].shape, ElementsAre(b, t, f));
        expect_declared(s, bindings);
    }
}

/// What another kernel reads may leave through shared memory, too.
TEST_P(JoinedAxesTest, TensorsBetweenKernelsAreStagedLikeResults) {
    Tensor x = input("x", f32, {3, 10, 8});
    Axis k = reduce_axis("k", 8);
    Tensor y = compute("y", {3, 10, 8}, [&](Expr b, Expr t, Expr f) { return sum(x(b, t, k), k) + cast(f32, f); });
    Tensor z = compute("z", {3, 10}, [&](Expr b, Expr t) { return y(b, t, 2) * y(b, 9 - t, 0); });
    Schedule s({z}, device_target());
    s.join_axes(y, 0, 1);
    auto [tile, row] = s.split(s.data_loops(y)[0], 4, Tail::Mask);
    s.bind(tile, grid.x);
    s.stage(y, Memory::Shared, tile);
    EXPECT_THAT(s.to_string(), HasSubstr("y: f32 [4, 8] in shared"));
    EXPECT_EQ(replay(s.save(), s.outputs(), s.target()).to_string(), s.to_string());
    expect_declared(s, whole_numbers(s.outputs(), 8));
}

/// Rows of a layer over [batch, token, channel] are those of a matrix, whose tiles leave as boxes.
TEST_P(JoinedAxesTest, RowsOfAProductLeaveAsBoxes) {
    Tensor x = input("x", bf16, {3, 50, 64}), w = input("w", bf16, {72, 64});
    Axis k = reduce_axis("k", 64);
    Tensor y = compute("y", {3, 50, 72}, [&](Expr b, Expr t, Expr f) {
        return cast(bf16, sum(cast(f32, x(b, t, k)) * cast(f32, w(f, k)), k));
    });
    Schedule s({y}, device_target());
    if (!s.target().has_wgmma) GTEST_SKIP() << "needs wgmma";
    s.join_axes(y, 0, 1);
    auto [token, f] = s.loops<2>(y);
    auto [tile, m] = s.split(token, 64, Tail::Mask);
    auto [column, n] = s.split(f, 64, Tail::Mask);
    auto [step, in_step] = s.split(s.reduce(y), 32);
    s.order({tile, column, step, m, n, in_step});
    s.bind(tile, grid.x);
    s.bind(column, grid.y);
    s.stage(y, x, Memory::Shared, step, As::Matrix);
    s.stage(y, w, Memory::Shared, step);
    s.via(s.stage(y, Memory::Shared, column), Copy::Tma);
    s.mma(y, wgmma, {.m = m, .n = n, .k = in_step});
    EXPECT_THAT(build(s).explain(), HasSubstr("y_out: by the tensor memory accelerator, boxes of 64 x 64"));
    expect_declared(s, whole_numbers(s.outputs(), 5));
}

/// An input's rows, which are read at the digits of a number, are those of a matrix: pixels of images whose channels
/// come first, multiplied as they lie.
TEST_P(JoinedAxesTest, RowsOfAnInputArriveAsBoxes) {
    Tensor x = input("x", bf16, {3, 48, 4, 10}), w = input("w", bf16, {80, 48, 1});
    Axis c = reduce_axis("c", 48);
    Tensor y = compute("y", {3, 80, 4, 10}, [&](Expr n, Expr f, Expr p, Expr q) {
        return cast(bf16, sum(cast(f32, w(f, c, 0)) * cast(f32, x(n, c, p, q)), c));
    });
    Schedule s({y}, device_target());
    if (!s.target().has_wgmma) GTEST_SKIP() << "needs wgmma";
    s.join_axes(y, 2, 3);
    s.join_axes(x, 2, 3);
    s.join_axes(w, 1, 2);
    auto [image, f, pixel] = s.loops<3>(y);
    auto [tile, m] = s.split(f, 64, Tail::Mask);
    auto [column, n] = s.split(pixel, 32, Tail::Mask);
    auto [step, k] = s.split(s.reduce(y), 32, Tail::Mask);
    s.order({image, tile, column, step, m, n, k});
    s.bind(image, grid.z);
    s.bind(tile, grid.y);
    s.bind(column, grid.x);
    s.stage(y, x, Memory::Shared, step);
    s.stage(y, w, Memory::Shared, step);
    s.mma(y, wgmma, {.m = m, .n = n, .k = k});
    s.pipeline(step, {.stages = 2});
    EXPECT_THAT(build(s).explain(), HasSubstr("x_shared: by the tensor memory accelerator, boxes of 32 x 32"));
    EXPECT_EQ(replay(s.save(), s.outputs(), s.target()).to_string(), s.to_string());
    EXPECT_THAT(s.trace_as_cpp(), HasSubstr("s.join_axes(x, 2, 3);"));
    const Bindings bindings = whole_numbers(s.outputs(), 6);
    EXPECT_EQ(difference("y", interpret_tree(s.tree(), bindings)[0], interpret_plain({y}, bindings)[0], bitwise),
              std::nullopt);
    expect_declared(s, bindings);
}

TEST(JoinAxes, RefusesWhatHasNoSuchNeighbours) {
    Tensor x = input("x", f32, {2, 3, 4}), at = input("at", i32, {2});
    Tensor y = compute("y", {2, 3, 4}, [&](Expr i, Expr j, Expr k) { return x(i, j, k) + 1; });
    Schedule s({y}, target("sm_90a"));
    EXPECT_ERROR(s.join_axes(y, 1, 1), "'y' has the dimensions 0 to 2; name the first and the last of neighbours");
    EXPECT_ERROR(s.join_axes(y, -1, 1), "name the first and the last of neighbours");
    EXPECT_ERROR(s.join_axes(y, 1, 3), "name the first and the last of neighbours");
    EXPECT_ERROR(s.join_axes(x, 2, 3), "'x' has the dimensions 0 to 2; name the first and the last of neighbours");
    EXPECT_ERROR(s.join_axes(input("other", f32, {2, 2}), 0, 1), "no stage of this schedule reads 'other'");
    s.join_axes(x, 0, 1);
    EXPECT_ERROR(s.join_axes(x, 1, 2), "axes of 'x' are joined already; name all of the neighbours at once");
    Tensor back = compute("back", {2, 3, 4}, [&](Expr i, Expr j, Expr k) { return x(i, 2 - j, k) + 1; });
    Schedule reversed({back}, target("sm_90a"));
    reversed.join_axes(x, 0, 1);
    EXPECT_ERROR(reversed.in_place(back, x), "join those of both alike, or of none");
    Tensor lengths = input("lengths", i32, {2, 3});
    Tensor ragged = compute("ragged", {2, 3}, [&](Expr i, Expr j) {
        Axis r = reduce_axis("r", lengths(i, j));
        return sum(x(i, j, r), r);
    });
    EXPECT_ERROR(Schedule({ragged}, target("sm_90a")).join_axes(lengths, 0, 1),
                 "the extent of loop 'r' reads 'lengths'");
    Tensor apart = input("apart", f32, {2, 4}, {8, 1});
    Schedule of_rows({compute("twice", {2, 4}, [&](Expr i, Expr j) { return apart(i, j) * 2; })}, target("sm_90a"));
    EXPECT_ERROR(of_rows.join_axes(apart, 0, 1), "rows of 'apart' have strides of their own");
    s.split(s.data_loops(y)[0], 2);
    EXPECT_ERROR(s.join_axes(y, 0, 1), "loops of 'y' are scheduled already; join its axes first");
    Tensor h = compute("h", {2, 3, 4}, [&](Expr i, Expr j, Expr k) { return x(i, j, k) * 2; });
    Tensor z = compute("z", {2, 3}, [&](Expr i, Expr j) {
        Axis k = reduce_axis("k", 4);
        return sum(h(i, j, k), k);
    });
    Schedule under({z}, target("sm_90a"));
    under.at(h, under.data_loops(z)[0]);
    EXPECT_ERROR(under.join_axes(h, 0, 1), "'h' stands under a loop of another stage");
    Axis u = reduce_axis("u", 2);
    Tensor counts = compute("counts", {3, 4}, [&](Expr i, Expr j) {
        return sum(select(cast(Type::I64, at(u)) == i, x(u, 0, j), constant(Type::F32, 0.0)), u);
    });
    Schedule updates({counts}, target("sm_90a"));
    updates.scatter(counts, Combine::Atomic);
    EXPECT_ERROR(updates.join_axes(counts, 0, 1), "elements of 'counts' are updated atomically");
}

}  // namespace
}  // namespace tw
