// Loops in segments: the same result wherever they are cut, no masks where all holds, and every cut that is refused.
#include <random>

#include <gtest/gtest.h>

#include "dsl/interpret.h"
#include "dsl/schedule.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

/// A product along an axis of any length, in steps of 8.
struct Ragged {
    Expr n = size("n", {.min = 0, .max = 100});
    Tensor a = input("a", f32, {12, n}), b = input("b", f32, {n, 8});
    Axis k = reduce_axis("k", n);
    Tensor c = compute("c", {12, 8}, [&](Expr i, Expr j) { return sum(a(i, k) * b(k, j), k); });
    Schedule s{{c}, target("sm_90a")};
    Loop io, ko;

    Ragged() {
        auto [i, j] = s.loops<2>(c);
        io = s.split(i, 4)[0];
        ko = s.split(s.reduce(c), 8, Tail::Mask)[0];
    }

    void check(int64_t length) const {
        Bindings launch;
        launch.sizes["n"] = length;
        launch.inputs = {{"a", host_array(f32, {12, length})}, {"b", host_array(f32, {length, 8})}};
        fill_integers(launch.inputs["a"], -9, 9, 1);
        fill_integers(launch.inputs["b"], -9, 9, 2);
        auto wrong = difference("c", interpret_tree(s.tree(), launch)[0], interpret_plain({c}, launch)[0]);
        EXPECT_FALSE(wrong) << *wrong << " for n = " << length << "\n" << s.to_string() << s.trace_as_cpp();
    }
};

std::string text_after(const std::string& text, const std::string& start) {
    size_t at = text.find(start);
    return at == text.npos ? "" : text.substr(at);
}

TEST(Cut, SegmentsAnywhereGiveTheSame) {
    std::mt19937 random(7);
    auto between = [&](int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(random); };
    for (int round = 0; round < 60; ++round) {
        Ragged p;
        std::vector<Expr> positions;
        for (int count = between(0, 3); count > 0; --count) {
            Expr at = constant(i64, between(-3, 14));
            if (between(0, 1)) at = at + p.s.index(p.io) * between(-2, 2);
            if (between(0, 2) == 0) at = min(at, p.n / 8);
            if (between(0, 2) == 0) at = at % 5;
            positions.push_back(at);
        }
        p.s.cut(p.ko, positions);
        for (int64_t length : {0, 1, 8, 40, between(0, 100)}) p.check(length);
        EXPECT_EQ(replay(p.s.save(), {p.c}, target("sm_90a")).to_string(), p.s.to_string()) << p.s.save();
    }
}

TEST(Cut, WhereAllTermsExistThereAreNoMasks) {
    Ragged p;
    p.s.stage(p.c, p.a, Memory::Shared, p.ko);
    p.s.cut(p.ko, where_partial(p.c));
    std::string text = p.s.to_string();
    size_t full = text.find("for k_outer in 0..n / 8\n"), rest = text.find("for k_outer in 0..(n + 7) / 8 - n / 8\n");
    ASSERT_TRUE(full != text.npos && rest != text.npos) << text;
    EXPECT_EQ(text.substr(full, rest - full).find("if "), text.npos) << text;
    EXPECT_NE(text.find("if ", rest), text.npos) << text;
    for (int64_t length : {0, 7, 8, 9, 99, 100}) p.check(length);
    EXPECT_EQ(replay(p.s.save(), {p.c}, target("sm_90a")).to_string(), text);
    EXPECT_NE(p.s.trace_as_cpp().find("where_partial(c));"), std::string::npos);
}

TEST(Cut, BelowTheDiagonalNothingIsCompared) {
    Expr n = size("n", {.min = 16, .max = 64, .multiple_of = 16});
    Tensor x = input("x", f32, {n, n});
    Axis j = reduce_axis("j", n);
    Tensor y = compute("y", {n}, [&](Expr i) { return sum(select(Expr(j) <= i, x(i, j), 0.0), j); });
    Schedule s({y}, target("sm_90a"));
    auto [bi, ii] = s.split(s.loops<1>(y)[0], 16);
    auto [jo, ji] = s.split(s.reduce(y), 16);
    s.order({bi, jo, ii, ji});
    s.cut(jo, where_partial(y));
    std::string text = s.to_string(), full = text_after(text, "for j_outer in 0..i_outer\n");
    EXPECT_EQ(full.substr(0, full.find("for j_outer in 0..n / 16 - i_outer")).find("select"), std::string::npos)
        << text;
    s.cut(jo, {s.index(bi), s.index(bi) + 1});
    EXPECT_NE(s.to_string().find("for j_outer in 0..1\n"), std::string::npos) << s.to_string();
    Bindings launch;
    launch.sizes["n"] = 64;
    launch.inputs["x"] = host_array(f32, {64, 64});
    fill_integers(launch.inputs["x"], -9, 9, 1);
    EXPECT_FALSE(difference("y", interpret_tree(s.tree(), launch)[0], interpret_plain({y}, launch)[0]));
}

/// Rows from the diagonal on, in steps that the last row cuts: between the steps with the diagonal and the last one
/// nothing is compared, though blocks near the end have no such steps.
TEST(Cut, BetweenTheDiagonalAndAPartialEndNothingIsCompared) {
    for (int64_t n : {45, 46, 47, 53, 9, 13}) {
        Tensor x = input("x", f32, {n, n});
        Axis i = reduce_axis("i", n);
        Tensor seen = compute("seen", {n, n}, [&](Expr i, Expr j) { return select(j <= i, x(i, j), 0.0); });
        Tensor c = compute("c", {n}, [&](Expr j) { return sum(seen(i, j), i); });
        Schedule s({c}, target("sm_90a"));
        auto [block, column] = s.split(s.loops<1>(c)[0], 8, Tail::Mask, {"block", "column"});
        auto [step, row] = s.split(s.reduce(c), 4, Tail::Mask, {"step", "row"});
        s.order({block, step, column, row});
        s.at(seen, step);
        s.skip(step, seen);
        s.cut(step, where_partial(seen));
        Bindings launch;
        launch.inputs["x"] = host_array(f32, {n, n});
        fill_integers(launch.inputs["x"], -9, 9, 1);
        auto wrong = difference("c", interpret_tree(s.tree(), launch)[0], interpret_plain({c}, launch)[0]);
        EXPECT_FALSE(wrong) << *wrong << "\n" << s.to_string();
        if (n < 40 || n % 4 == 0) continue;
        const std::string text = s.to_string(), loop = "for step in";
        const size_t first = text.find(loop), second = text.find(loop, first + 1), third = text.find(loop, second + 1);
        ASSERT_TRUE(first < second && second < third && third != text.npos) << text;
        const std::string middle = text.substr(second, third - second);
        EXPECT_EQ(middle.find("select"), middle.npos) << text;
    }
}

TEST(Cut, PaddingIsPeeledAtBothEnds) {
    Tensor x = input("x", f32, {40});
    Axis t = reduce_axis("t", 5);
    Tensor y = compute("y", {40}, [&](Expr i) { return sum(padded(x, 0.0)(i + t - 2), t); });
    Schedule s({y}, target("sm_90a"));
    auto [io, ii] = s.split(s.loops<1>(y)[0], 8);
    s.cut(io, where_partial(y));
    std::string text = s.to_string();
    EXPECT_NE(text.find("for i_outer in 0..3\n"), std::string::npos) << text;
    std::string full = text_after(text, "for i_outer in 0..3\n");
    EXPECT_EQ(full.substr(0, full.find("for i_outer in 0..1\n")).find("select"), std::string::npos) << text;
}

TEST(Cut, ALoopWithoutIterationsStays) {
    Tensor x = input("x", f32, {3, 0});
    Tensor y = compute("y", {3, 0}, [&](Expr i, Expr j) { return x(i, j) + 1.0; });
    Schedule s({y}, target("sm_90a"));
    s.cut(s.loops<2>(y)[1], {constant(i64, 0), constant(i64, -1)});
    EXPECT_NE(s.to_string().find("for j"), std::string::npos) << s.to_string();
}

TEST(Cut, JoinedSegmentsAreOneLoop) {
    Ragged p;
    std::string before = p.s.to_string();
    p.s.cut(p.ko, {2, 3});
    EXPECT_NE(p.s.to_string(), before);
    EXPECT_NE(p.s.trace_as_cpp().find("s.cut(k_outer, {2, 3});"), std::string::npos) << p.s.trace_as_cpp();
    EXPECT_ERROR(
        p.s.split(p.ko, 2),
        "loop 'k_outer' is cut into segments, or skips some; split it before, or make it whole first: cut(loop, {})");
    p.s.cut(p.io, {1});
    EXPECT_ERROR(p.s.bind(p.io, unrolled), "the loop is cut: its segments follow each other");
    p.s.cut(p.io, {});
    p.s.cut(p.ko, {});
    EXPECT_EQ(p.s.to_string(), before);
}

TEST(Cut, Refusals) {
    Ragged p;
    Expr flag = scalar("flag", i64);
    EXPECT_ERROR(p.s.cut(p.ko, {flag}),
                 "positions are made of integers, named sizes and index(loop) of loops around 'k_outer'");
    EXPECT_ERROR(p.s.cut(p.ko, {constant(f32, 1.0)}), "a position is an integer: the first iteration of a segment");
    EXPECT_ERROR(p.s.cut(p.ko, {p.s.index(p.ko)}), "'k_outer' would not stand around it");
    EXPECT_ERROR(p.s.cut(p.io, where_partial(p.c)), "there is nothing to cut");
    p.s.cut(p.ko, {p.s.index(p.io)});
    EXPECT_ERROR(p.s.order({p.ko, p.io}),
                 "loop 'k_outer' of 'c' is cut at i_outer, but 'i_outer' would not stand around it");
    p.s.cut(p.ko, {});
    p.s.bind(p.io, grid.x);
    EXPECT_ERROR(p.s.cut(p.io, {1}), "the loop is bound to grid.x; only a serial loop runs in segments");
    EXPECT_ERROR(replay("tilewright trace 1\ncut 0 1 x\n", {p.c}, target("sm_90a")), "\"x\" is no position of a cut");
    EXPECT_ERROR(replay("tilewright trace 1\ncut 0 1 n:m\n", {p.c}, target("sm_90a")),
                 "the computation has no size 'm'");
}

}  // namespace
}  // namespace tw
