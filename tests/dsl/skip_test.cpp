// Iterations that count nothing are left out: the same results in fewer iterations, and what is refused.
#include <random>

#include <gmock/gmock.h>

#include "dsl/interpret.h"
#include "dsl/schedule.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

int64_t count_lines(const std::string& text, const std::string& part) {
    int64_t count = 0;
    for (size_t at = 0; (at = text.find(part, at)) != text.npos; ++at) ++count;
    return count;
}

/// Sums and maxima of a band of a matrix, which is any part of the diagonals.
struct Band {
    int64_t rows, columns, from, to;
    Tensor x = input("x", f32, {rows, columns}), v = input("v", f32, {columns, 3});
    Axis j = reduce_axis("j", columns);
    Tensor inside = compute("inside", {rows, columns},
                            [&](Expr i, Expr j) { return select(i + from <= j && j < i + to, x(i, j), -infinity); });
    Tensor y = compute("y", {rows, 3}, [&](Expr i, Expr e) { return sum(exp2(inside(i, j)) * v(j, e), j); });
    Tensor z = compute("z", {rows}, [&](Expr i) { return reduce_max(inside(i, j), j); });
    Tensor u = compute("u", {rows}, [&](Expr i) { return sum(sigmoid(inside(i, j)), j); });
    Tensor w = compute("w", {rows}, [&](Expr i) {
        return sum(select(j < i + to, select(i + from <= j, x(i, j), 0.0), 0.0) * 2.0, j);
    });
};

TEST(Skip, BandsGiveTheSameInFewerIterations) {
    std::mt19937 random(3);
    auto between = [&](int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(random); };
    int shorter = 0;
    for (int round = 0; round < 120; ++round) {
        const int64_t from = between(-30, 20);
        Band b{between(1, 30), between(1, 40), from, from + between(0, 30)};
        const Tensor result = std::vector{b.y, b.z, b.u, b.w}[static_cast<size_t>(between(0, 3))];
        Schedule s({result}, target("sm_90a"));
        std::vector<Loop> data = s.data_loops(result);
        auto [block, row] = s.split(data[0], between(1, 8), Tail::Mask);
        auto [tile, term] = s.split(s.reduce(result), between(1, 8), Tail::Mask);
        std::vector<Loop> order{block, tile, row, term};
        if (data.size() > 1) order.insert(order.begin() + between(2, 4), data[1]);
        s.order(order);
        s.bind(block, grid.x);
        const bool own = result.same(b.w);
        if (!own) s.at(b.inside, tile);
        const Schedule whole = s;
        try {
            s.skip(tile, own ? b.w : b.inside);
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find("nothing to leave out"), std::string::npos) << error.what();
            continue;
        }
        if (between(0, 1) == 1) {
            try {
                s.cut(tile, where_partial(own ? b.w : b.inside));
            } catch (const Error&) {  // nothing to cut
            }
        }
        SCOPED_TRACE(s.trace_as_cpp());
        Bindings launch;
        launch.inputs = {{"x", host_array(f32, {b.rows, b.columns})}, {"v", host_array(f32, {b.columns, 3})}};
        for (auto& [name, array] : launch.inputs) fill_integers(array, -3, 3, static_cast<uint64_t>(round));
        if (own) launch.inputs.erase("v");
        if (result.same(b.z)) launch.inputs.erase("v");
        auto differs = difference("result", interpret_tree(s.tree(), launch)[0], interpret_plain({result}, launch)[0],
                                  equal_values);
        EXPECT_FALSE(differs) << *differs << "\n" << s.to_string();
        EXPECT_EQ(replay(s.save(), s.outputs(), s.target()).to_string(), s.to_string());
        shorter += s.to_string() != whole.to_string();
        s.cut(tile, {});
        EXPECT_EQ(s.to_string(), whole.to_string());
    }
    EXPECT_GE(shorter, 60);
}

/// A program for many sizes need not ask.
TEST(Skip, LeavesNothingOutWhereEachIterationHasATerm) {
    Tensor x = input("x", f32, {16, 16});
    Axis j = reduce_axis("j", 16);
    Tensor sums = compute("sums", {16}, [&](Expr i) { return sum(select(j <= i, x(i, j), 0.0), j); });
    Schedule all_count({sums}, target("sm_90a"));
    auto [high, low] = all_count.split(all_count.loops<1>(sums)[0], 16);
    auto [wide, narrow] = all_count.split(all_count.reduce(sums), 16);
    all_count.order({high, wide, low, narrow});
    all_count.skip(wide, sums);
    EXPECT_THAT(all_count.explain(), testing::HasSubstr("the conditions of 'sums' hold somewhere in each iteration of "
                                                        "'j_outer': none is left out"));
    EXPECT_NO_THROW(all_count.split(wide, 1));  // the loop is whole
    EXPECT_EQ(replay(all_count.save(), all_count.outputs(), all_count.target()).to_string(), all_count.to_string());
}

TEST(Skip, RefusesWhatCounts) {
    Tensor x = input("x", f32, {16, 16});
    Axis j = reduce_axis("j", 16);
    auto refused = [&](const std::function<Expr(const Expr&)>& body, const std::string& text) {
        Tensor y = compute("y", {16}, [&](Expr i) { return body(i); });
        Schedule s({y}, target("sm_90a"));
        auto [i] = s.loops<1>(y);
        auto [block, row] = s.split(i, 4);
        auto [tile, term] = s.split(s.reduce(y), 4);
        s.order({block, tile, row, term});
        EXPECT_ERROR(s.skip(tile, y), text);
    };
    refused([&](const Expr& i) { return sum(select(j <= i, x(i, j), 1.0), j); },
            "the terms of 'y' are not shown to count nothing");
    refused([&](const Expr& i) { return sum(select(j <= i, x(i, j), 0.0) + 1.0, j); }, "not shown to count nothing");
    refused([&](const Expr& i) { return prod(select(j <= i, x(i, j), 1.0), j); }, "not shown to count nothing");
    refused([&](const Expr& i) { return reduce_max(select(j <= i, x(i, j), 0.0), j); }, "not shown to count nothing");
    refused([&](const Expr& i) { return sum(x(i, j), j); }, "there is nothing to leave out");
    refused([&](const Expr& i) { return sum(select(j % 2 == 0, x(i, j), 0.0), j); }, "there is nothing to leave out");

    // What the stage masks, its reader replaces: 1 is a term.
    Tensor part = compute("part", {16, 16}, [&](Expr i, Expr k) { return x(i, k) * 2.0; });
    Axis far = reduce_axis("far", 32);
    Tensor ones = compute("ones", {16}, [&](Expr i) { return sum(padded(part, 1.0)(i, far), far); });
    Schedule beyond({ones}, target("sm_90a"));
    Loop steps = beyond.split(beyond.reduce(ones), 4)[0];
    beyond.at(part, steps);
    EXPECT_ERROR(beyond.skip(steps, part), "there is nothing to leave out");

    // Of a sum that stands under the loop, some terms are 0, but not the element.
    Axis d = reduce_axis("d", 3);
    Tensor scores = compute("scores", {16, 16}, [&](Expr i, Expr k) { return sum(select(k <= i, x(i, d), 0.0), d); });
    Tensor weights = compute("weights", {16}, [&](Expr i) { return sum(exp2(scores(i, j)), j); });
    Schedule inner({weights}, target("sm_90a"));
    Loop tiles = inner.split(inner.reduce(weights), 4)[0];
    inner.at(scores, tiles);
    EXPECT_ERROR(inner.skip(tiles, scores), "there is nothing to leave out");

    Tensor y = compute("y", {16}, [&](Expr i) { return sum(select(j <= i, x(i, j), 0.0), j); });
    Tensor z = compute("z", {16}, [&](Expr i) { return y(i) + 1.0; });
    Schedule s({z}, target("sm_90a"));
    auto [i] = s.loops<1>(y);
    EXPECT_ERROR(s.skip(i, y), "'i' is no reduce loop");
    EXPECT_ERROR(s.skip(s.reduce(y), z), "'z' does not stand under the loop");
    auto [tile, term] = s.split(s.reduce(y), 4);
    s.bind(tile, thread);
    EXPECT_ERROR(s.skip(tile, y), "the loop is bound to thread");
    s.bind(tile, serial);
    s.skip(tile, y);
    EXPECT_ERROR(s.split(tile, 2), "or skips some");
    EXPECT_ERROR(s.rfactor(y, tile), "whose parts would have no value");
    Axis k = reduce_axis("k", 16);
    Tensor all = compute("all", {16}, [&](Expr i) { return sum(x(i, k), k); });
    Schedule both({y, all}, target("sm_90a"));
    auto [block, row] = both.split(both.loops<1>(y)[0], 4);
    Loop shared = both.split(both.reduce(y), 4)[0];
    both.skip(shared, y);
    EXPECT_ERROR(both.stream({all, y}, shared), "leaves out iterations that count nothing for 'y' alone");
    EXPECT_EQ(count_lines(s.to_string(), "in 0..i / 4 + 1"), 1) << s.to_string();
}

}  // namespace
}  // namespace tw
