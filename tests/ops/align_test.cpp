// Loops that begin where vectors do: rows of any length, by vectors but for their ends.
#include <gmock/gmock.h>

#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

using testing::HasSubstr;

class Aligned : public RandomCases {
protected:
    Aligned() : RandomCases(71) {}

    /// Vectors of `elements` on threads, several a step, perhaps without masks between the ends.
    void spread(Schedule& s, const StageRef& stage, const Loop& aligned, int elements, bool reduces) {
        auto [step, in_step] = s.split(aligned, between(1, 40) * elements, Tail::Mask, {"step", "in_step"});
        auto [share, element] = s.split(in_step, elements, {"share", "element"});
        s.bind(share, thread);
        if (reduces)
            s.unroll(element);
        else
            s.bind(element, tw::vector);
        const int how = between(0, 2);
        if (how == 0) s.unroll(step);
        try {
            if (how == 1) s.cut(step, where_partial(stage));
        } catch (const Error& error) {
            EXPECT_THAT(error.what(), HasSubstr("there is nothing to cut"));  // rows of whole steps
        }
    }

    void expect_aligned(const Schedule& s) {
        SCOPED_TRACE(s.trace_as_cpp());
        EXPECT_EQ(replay(s.save(), s.outputs(), s.target()).to_string(), s.to_string());
        const Bindings launch = whole_numbers(s.outputs(), static_cast<unsigned>(between(0, 1000)));
        const std::vector<HostArray> tree = interpret_tree(s.tree(), launch);
        const std::vector<HostArray> plain = interpret_plain(s.outputs(), launch);
        for (size_t n = 0; n < tree.size(); ++n)
            EXPECT_EQ(difference("output", tree[n], plain[n], equal_values), std::nullopt) << s.to_string();
        expect_declared(s, launch);
    }
};
TW_ON_EACH_DEVICE(Aligned);

/// Of two inputs and a value a row, which gives two results a place, over two or three dimensions.
TEST_P(Aligned, ElementsOfRowsAnywhere) {
    for (int round = 0; round < 24; ++round) {
        const int64_t batch = between(1, 3), rows = between(1, 9), columns = between(1, 150);
        const Type type = chance() ? bf16 : f32;
        const int elements = 1 << between(1, 3);
        Tensor x = input("x", type, {batch, rows, columns}), g = input("g", f32, {batch, rows});
        std::vector<Tensor> y = compute_tuple("y", {batch, rows, columns}, [&](const std::vector<Expr>& at) {
            const Expr value = cast(f32, x(at[0], at[1], at[2])) * g(at[0], at[1]);
            return std::vector<Expr>{cast(type, value), value + 1.0};
        });
        Schedule s(y, device_target());
        auto [b, i, j] = s.loops<3>(y[0]);
        const Loop aligned = s.align(j, chance() ? x : y[1], elements);
        const Loop row = s.fuse(b, i);
        if (chance()) {
            auto [block, in_block] = s.split(row, between(1, 4), Tail::Mask);
            s.bind(block, grid.x);
            s.bind(in_block, thread);
        } else {
            s.bind(row, grid.x);
        }
        spread(s, y[0], aligned, elements, false);
        expect_aligned(s);
    }
}

/// Sums and a largest element of rows, with threads along the row.
TEST_P(Aligned, ReductionsOfRowsAnywhere) {
    for (int round = 0; round < 24; ++round) {
        const int64_t rows = between(1, 9), columns = between(1, 200);
        const Type type = chance() ? f16 : f32;
        const int elements = 1 << between(1, 3);
        Tensor x = input("x", type, {rows, columns});
        Axis k = reduce_axis("k", columns);
        Tensor y = compute("y", {rows}, [&](Expr i) {
            const Expr term = cast(f32, x(i, k));
            return round % 2 ? sum(term, k) : reduce_max(term * 2.0, k);
        });
        Schedule s({y}, device_target());
        const Loop aligned = s.align(s.reduce(y), x, elements);
        s.bind(s.loops<1>(y)[0], grid.x);
        spread(s, y, aligned, elements, true);
        expect_aligned(s);
    }
}

/// A stage behind the aligned loop makes the elements that the iteration has made.
TEST_P(Aligned, FollowersOfAlignedLoops) {
    for (int64_t columns : {5, 37, 99}) {
        Tensor x = input("x", f32, {6, columns});
        Tensor y = compute("y", {6, columns}, [&](Expr i, Expr j) { return x(i, j) + 1.0; });
        Tensor z = compute("z", {6, columns}, [&](Expr i, Expr j) { return y(i, j) * 2.0; });
        Schedule s({y, z}, device_target());
        auto [i, j] = s.loops<2>(y);
        auto [step, element] = s.split(s.align(j, x, 4), 4, Tail::Mask, {"step", "element"});
        s.bind(i, grid.x);
        s.bind(step, thread);
        s.at(z, step);
        expect_aligned(s);
    }
}

/// Parts of a chain along an aligned loop: each thread's own, of which members know their rows by how they are read.
TEST_P(Aligned, ChainsInParts) {
    for (int64_t columns : {7, 61, 203}) {
        Tensor x = input("x", f32, {5, columns});
        Axis k = reduce_axis("k", columns);
        Tensor m = compute("m", {5}, [&](Expr r) { return reduce_max(x(r, k), k); });
        Tensor lowest = compute("lowest", {5}, [&](Expr r) { return reduce_min(x(r, k), k); });
        Tensor p = compute("p", {5, columns}, [&](Expr a, Expr b) { return exp2(x(a, b) - m(a)); });
        Tensor l = compute("l", {5}, [&](Expr i) { return sum(p(i, k), k); });
        Schedule s({m, lowest, l}, device_target());
        s.inline_stage(p);
        auto [step, in_step] = s.split(s.align(s.reduce(l), x, 4), 32, Tail::Mask, {"step", "in_step"});
        auto [share, element] = s.split(in_step, 4, {"share", "element"});
        const std::vector<Stage> parts = s.rfactor({m, lowest, l}, share);
        s.stream({parts.begin(), parts.end()}, step);
        expect_aligned(s);
    }
}

std::string text_of(const Schedule& s) {
    const std::string text = build(s).cuda();
    return text.substr(text.find("extern \"C\""));
}

/// Between the ends vectors move whole; a vector that a row's end cuts goes one by one. Rows of 1008 hold 1001 too.
TEST(AlignedText, VectorsBetweenTheEnds) {
    for (bool aligns : {true, false}) {
        Tensor x = aligns ? input("x", bf16, {64, 1001}) : input("x", bf16, {64, 1001}, {1008, 1});
        Tensor y = compute("y", {64, 1001}, [&](Expr i, Expr j) { return -cast(f32, x(i, j)); });
        Schedule s({y}, target("sm_90a"));
        auto [i, j] = s.loops<2>(y);
        auto [step, in_step] = s.split(s.align(j, x, 8), 256, Tail::Mask, {"step", "in_step"});
        auto [share, element] = s.split(in_step, 8, {"share", "element"});
        s.bind(i, grid.x);
        s.bind(share, thread);
        s.unroll(element);
        const std::string text = text_of(s);
        EXPECT_THAT(text, HasSubstr("tw::load<8>(x_values, &x[")) << text;
        EXPECT_EQ(text.find("i % 8") != text.npos || text.find("i * 1001 % 8") != text.npos, aligns) << text;
    }
}

TEST(AlignErrors, Refusals) {
    Tensor x = input("x", f32, {6, 5, 7}), ids = input("ids", i32, {6});
    Axis a = reduce_axis("a", 5), b = reduce_axis("b", 7);
    Tensor y =
        compute("y", {6, 7}, [&](Expr i, Expr j) { return x(i, 0, j) + x(i, 1, j) + x(cast(i64, ids(i)), 2, j); });
    Tensor t = compute("t", {6}, [&](Expr i) { return sum(x(i, a, b), {a, b}); });
    Tensor u = compute("u", {6}, [&](Expr i) { return t(i) + 1.0; });
    Tensor w = compute("w", {6, 7}, [&](Expr i, Expr j) { return x(cast(i64, ids(i)), 2, j) * 2.0; });
    Schedule s({y, u, w}, target("sm_90a"));
    auto [i, j] = s.loops<2>(y);
    EXPECT_ERROR(s.align(j, x, 3), "align(j, x, 3): vectors have 1, 2, 4");
    EXPECT_ERROR(s.align(j, x, 4), "'x' is read at places that begin differently");
    EXPECT_ERROR(s.align(i, x, 4), "no access of 'x' by 'y' goes to the next element");
    EXPECT_ERROR(s.align(s.loops<2>(w)[1], x, 4), "where 'x' begins depends on data or on terms");
    EXPECT_ERROR(s.align(s.reduce(t, 1), x, 4), "where 'x' begins depends on data or on terms");
    Schedule split = s;
    EXPECT_ERROR(split.align(split.split(j, 2, Tail::Mask)[0], y, 4), "the loop is no axis of 'y'");
    Schedule under = s;
    under.at(t, under.loops<1>(u)[0]);
    EXPECT_ERROR(under.align(under.reduce(t, 1), x, 4), "'t' stands in another kernel");
    Schedule around = s;
    around.at(t, around.loops<1>(u)[0]);
    EXPECT_ERROR(around.align(around.loops<1>(u)[0], u, 4), "'t' stands under it");
}

TEST(AlignErrors, PartsOfAlignedLoops) {
    Tensor x = input("x", f32, {6, 7});
    Axis k = reduce_axis("k", 7);
    Tensor m = compute("m", {6}, [&](Expr i) { return reduce_max(x(i, k), k); });
    Tensor l = compute("l", {6}, [&](Expr i) { return sum(exp2(x(i, k) - m(0)), k); });
    Schedule s({l}, target("sm_90a"));
    auto [step, element] = s.split(s.align(s.reduce(l), x, 4), 4, Tail::Mask);
    EXPECT_ERROR(s.rfactor({m, l}, element), "'m', which has the same terms, is not read at that index alone");
    s.split(s.loops<1>(l)[0], 2);
    EXPECT_ERROR(s.rfactor(l, element), "a reduce loop is aligned along 'i', which was split or fused");
}

}  // namespace
}  // namespace tw
