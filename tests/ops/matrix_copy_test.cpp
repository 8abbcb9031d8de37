// Copies that lie as the loops of their reader run: stage(.., As::Matrix).
#include <gmock/gmock.h>

#include "dsl/interpret.h"
#include "dsl/schedule.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

using testing::HasSubstr;

class MatrixCopyTest : public testing::Test {
protected:
    Tensor x_ = input("x", f32, {2, 9, 6}), w_ = input("w", f32, {5, 3, 6});
    Axis r_ = reduce_axis("r", 3), c_ = reduce_axis("c", 6);
    Tensor y_ = compute("y", {2, 9, 5}, [&](Expr b, Expr t, Expr f) {
        return sum(padded(x_, 0)(b, t + r_ - 1, c_) * w_(f, r_, c_), {r_, c_});
    });

    static void expect_declared(const Schedule& s) {
        const Bindings bindings = whole_numbers(s.outputs(), 3);
        const auto tree = interpret_tree(s.tree(), bindings), plain = interpret_plain(s.outputs(), bindings);
        EXPECT_EQ(difference("y", tree[0], plain[0], bitwise), std::nullopt) << s.to_string();
    }
};

TEST_F(MatrixCopyTest, HasTheLoopsThatTheElementDependsOn) {
    Schedule s({y_}, target("sm_90a"));
    auto [b, t, f] = s.loops<3>(y_);
    auto [tile, row] = s.split(s.fuse(b, t, "token"), 4, Tail::Mask);
    s.order({tile, s.reduce(y_, 0), row, f, s.reduce(y_, 1)});
    s.stage(y_, x_, Memory::Shared, s.reduce(y_, 0), As::Matrix);
    EXPECT_THAT(s.to_string(), HasSubstr("x_shared: f32 [4, 1, 6]"));
    EXPECT_EQ(replay(s.save(), s.outputs(), s.target()).to_string(), s.to_string());
    expect_declared(s);
    s.split(row, 2);  // what follows may go on with the loops
    expect_declared(s);
}

TEST_F(MatrixCopyTest, TermsThatASplitMasksAreZeros) {
    Schedule s({y_}, target("sm_90a"));
    auto [b, t, f] = s.loops<3>(y_);
    Loop token = s.fuse(b, t);
    auto [channel, k] = s.split(s.reduce(y_, 1), 4, Tail::Mask);
    Loop step = s.fuse(s.reduce(y_, 0), channel);
    s.order({step, token, f, k});
    s.stage(y_, x_, Memory::Shared, step, As::Matrix);
    expect_declared(s);
}

TEST_F(MatrixCopyTest, IsRefusedWhereItIsNone) {
    Schedule s({y_}, target("sm_90a"));
    EXPECT_ERROR(s.stage(y_, x_, Memory::Shared, s.data_loops(y_)[0], As::Matrix),
                 "name a loop of 'y' from its outermost reduce loop on, or one around 'y'");
    EXPECT_ERROR(s.stage(y_, y_, Memory::Shared, s.reduce(y_), As::Matrix), "the terms of 'y' do not read 'y'");
    Tensor narrow = input("narrow", f32, {3, 1, 6}), v = input("v", f32, {6, 5});
    Axis tap = reduce_axis("tap", 1);
    Tensor padding = compute("padding", {3, 2, 5}, [&](Expr b, Expr t, Expr f) {
        return sum(padded(narrow, 0)(b, t * 3 + tap * 2 - 2, c_) * v(c_, f), {tap, c_});
    });
    Schedule nothing({padding}, target("sm_90a"));
    const auto of_padding = nothing.data_loops(padding);
    nothing.fuse(of_padding[0], of_padding[1]);
    const Loop terms_of_padding = nothing.fuse(nothing.reduce(padding, 0), nothing.reduce(padding, 1));
    EXPECT_ERROR(nothing.stage(padding, narrow, Memory::Shared, terms_of_padding, As::Matrix),
                 "that 'padding' reads are padding, outside of it; leave the product out");
    Tensor rows = input("rows", f32, {9, 6});
    Tensor product = compute("product", {9, 5}, [&](Expr t, Expr f) { return sum(rows(t, c_) * v(c_, f), c_); });
    Schedule aligned({product}, target("sm_90a"));
    const Loop terms = aligned.align(aligned.reduce(product), rows, 4);
    EXPECT_ERROR(aligned.stage(product, rows, Memory::Shared, terms, As::Matrix),
                 "is aligned with addresses, and not every element of a matrix would be where its row begins");
    Tensor twice_y = compute("twice_y", {2, 9, 5}, [&](Expr b, Expr t, Expr f) { return y_(b, t, f) * 2; });
    Schedule under({twice_y}, target("sm_90a"));
    under.at(y_, under.data_loops(twice_y)[0]);
    const auto of_y = under.data_loops(y_);
    under.fuse(of_y[0], of_y[1]);
    EXPECT_ERROR(under.stage(y_, x_, Memory::Shared, under.reduce(y_, 0), As::Matrix),
                 "runs along a part of no one axis; join the axes before, with join_axes");
    Tensor z = compute("z", {8}, [&](Expr t) { return sum(x_(0, t, c_) * x_(1, t + 1, c_), c_); });
    Schedule twice({z}, target("sm_90a"));
    EXPECT_ERROR(twice.stage(z, x_, Memory::Shared, twice.reduce(z), As::Matrix), "read 'x' in several ways");
}

/// Of what reduces nothing, too: an operand along joined axes, for each iteration of a loop, and of one around.
TEST_F(MatrixCopyTest, OfElementsHasTheirLoops) {
    Tensor z = compute("z", {2, 9, 6}, [&](Expr b, Expr t, Expr c) { return padded(x_, 0)(b, t - 1, c) * 2 + 1; });
    for (bool outer : {false, true}) {
        Schedule s({z}, target("sm_90a"));
        s.join_axes(z, 0, 1);
        auto [tile, row] = s.split(s.loops<2>(z)[0], 4, Tail::Mask, {"tile", "row"});
        auto [part, in_part] = s.split(row, 2, {"part", "in_part"});
        s.stage(z, x_, Memory::Shared, outer ? tile : part, As::Matrix);
        EXPECT_THAT(s.to_string(), HasSubstr(outer ? "x_shared: f32 [4, 6]" : "x_shared: f32 [2, 6]"));
        EXPECT_EQ(replay(s.save(), s.outputs(), s.target()).to_string(), s.to_string());
        expect_declared(s);
    }
}

TEST_F(MatrixCopyTest, TakesTheConditionOfAProductAlong) {
    Tensor dx = compute("dx", {2, 9, 6}, [&](Expr b, Expr t, Expr c) {
        Axis f = reduce_axis("f", 6);
        return sum(select(t - r_ >= 0, x_(b, max(t - r_, 0), f) * w_(f % 5, r_, c), 0.0f), {r_, f});
    });
    Schedule s({dx}, target("sm_90a"));
    s.order({s.reduce(dx, 0), s.data_loops(dx)[0], s.data_loops(dx)[1], s.data_loops(dx)[2], s.reduce(dx, 1)});
    s.stage(dx, x_, Memory::Shared, s.reduce(dx, 0), As::Matrix);
    EXPECT_THAT(s.explain(), HasSubstr("products with a zero of 'x' now"));
    expect_declared(s);
}

/// Experts, or groups of channels: blocks of columns that each multiply rows of their own.
TEST_F(MatrixCopyTest, LoopsOfASplitStayApartWhereTheElementDependsOnTheOuterAlone) {
    Tensor rows = input("rows", f32, {10, 12}), v = input("v", f32, {8, 3});
    Axis k = reduce_axis("k", 3);
    Tensor blocks =
        compute("blocks", {10, 8}, [&](Expr i, Expr j) { return sum(rows(i, j / 2 * 3 + k) * v(j, k), k); });
    for (bool again : {false, true}) {  // loops of one column are joined first
        Schedule s({blocks}, target("sm_90a"));
        auto [i, j] = s.loops<2>(blocks);
        auto [block, column] = s.split(j, 2, {"block", "column"});
        std::vector<Loop> columns = {column};
        if (again) {
            auto [tile, n] = s.split(column, 1, {"tile", "n"});
            columns = {tile, n};
        }
        std::vector<Loop> order = {block, s.reduce(blocks), i};
        order.insert(order.end(), columns.begin(), columns.end());
        s.order(order);
        s.stage(blocks, rows, Memory::Shared, s.reduce(blocks), As::Matrix);
        EXPECT_THAT(s.to_string(), HasSubstr("rows_shared: f32 [10, 1, 1]")) << s.to_string();
        EXPECT_EQ(replay(s.save(), s.outputs(), s.target()).to_string(), s.to_string());
        expect_declared(s);
    }
}

/// An adjoint in f32 of elements of two bytes, inlined.
TEST_F(MatrixCopyTest, ChoicesAreMadeBeforeConversions) {
    Tensor narrow = input("narrow", bf16, {2, 9, 6});
    Tensor wide = compute("wide", {2, 9, 6}, [&](Expr b, Expr t, Expr c) { return cast(f32, narrow(b, t, c)); });
    Tensor z = compute("z", {2, 9, 5}, [&](Expr b, Expr t, Expr f) {
        return sum(padded(wide, 0)(b, t + r_ - 1, c_) * w_(f, r_, c_), {r_, c_});
    });
    Schedule s({z}, target("sm_90a"));
    s.inline_stage(wide);
    auto [b, t, f] = s.loops<3>(z);
    s.order({s.reduce(z, 0), s.fuse(b, t), f, s.reduce(z, 1)});
    s.stage(z, narrow, Memory::Shared, s.reduce(z, 0), As::Matrix);
    EXPECT_THAT(s.to_string(), HasSubstr("cast(f32, narrow_shared["));
    EXPECT_THAT(s.to_string(), HasSubstr("narrow_shared: bf16 [1, 18, 6]"));
    expect_declared(s);
}

}  // namespace
}  // namespace tw
