// Parts of a reduction that are combined with its result in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dsl/interpret.h"
#include "dsl/schedule.h"
#include "tests/dsl/declared_values.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

using testing::HasSubstr;

struct RowSums {
    Tensor x = input("x", f32, {30, 7});
    Axis k = reduce_axis("k", 30);
    Tensor y = compute("y", {7}, [&](Expr j) { return sum(x(k, j), k); });
    Tensor twice = compute("twice", {7}, [&](Expr j) { return sum(x(k, j), k) * 2.0; });
    Tensor z = compute("z", {7}, [&](Expr j) { return y(j) + 1.0; });
    Bindings bindings{.inputs = {{"x", integers(f32, {30, 7}, -9, 9, 5)}}, .sizes = {}, .scalars = {}};
};

TEST(AtomicParts, StandBetweenTheIdentityAndTheReaders) {
    RowSums p;
    Schedule s({p.z}, target("sm_90a"));
    auto [ko, ki] = s.split(s.reduce(p.y), 8, Tail::Mask);
    Stage parts = s.rfactor(p.y, ko, Combine::Atomic);
    EXPECT_EQ(s.name(parts), "y_partial");
    EXPECT_FALSE(s.deterministic());
    EXPECT_THAT(s.explain(), HasSubstr("in no fixed order: floats may differ by rounding, from run to run too"));
    EXPECT_THAT(s.explain(), HasSubstr("'y_partial' updates the elements of 'y', in global memory\n"));
    ASSERT_EQ(s.tree().nests.size(), 3u);
    EXPECT_EQ(s.tree().nests[0].name, "y");
    EXPECT_EQ(s.tree().nests[1].name, "y_partial");
    EXPECT_NE(s.to_string().find("atomic y[i] += y_partial_sum"), std::string::npos) << s.to_string();
    EXPECT_EQ(s.tree().workspaces.size(), 1u);
    s.order({ko, s.data_loops(parts)[1]});
    s.bind(ko, grid.x);
    s.split(ki, 3, Tail::Mask);
    expect_declared_values(s, p.bindings);
}

TEST(AtomicParts, OfAResultThatIsMoreThanTheSum) {
    RowSums p;
    Schedule s({p.twice}, target("sm_90a"));
    s.rfactor(p.twice, s.reduce(p.twice), Combine::Atomic);
    EXPECT_EQ(s.tree().nests.size(), 3u);
    EXPECT_EQ(s.tree().nests[0].name, "twice_sum");
    expect_declared_values(s, p.bindings);
}

TEST(AtomicParts, OfIntegersAreDeterministic) {
    Tensor x = input("x", i32, {5, 40});
    Axis k = reduce_axis("k", 40), l = reduce_axis("l", 40), m = reduce_axis("m", 40);
    Tensor low = compute("low", {5}, [&](Expr i) { return reduce_min(x(i, k), k); });
    Tensor high = compute("high", {5}, [&](Expr i) { return reduce_max(x(i, l), l); });
    Tensor total = compute("total", {5}, [&](Expr i) { return sum(cast(i64, x(i, m)), m); });
    Schedule s({low, high, total}, target("sm_90a"));
    for (const Tensor& t : {low, high, total}) s.rfactor(t, s.split(s.reduce(t), 16, Tail::Mask)[0], Combine::Atomic);
    EXPECT_TRUE(s.deterministic());
    for (const char* name : {"low", "high", "total"})
        EXPECT_THAT(s.explain(),
                    HasSubstr(fmt::format("the terms of '{}' are combined atomically, which gives the same "
                                          "in any order\n",
                                          name)));
    expect_declared_values(s, {.inputs = {{"x", integers(i32, {5, 40}, -1000, 1000, 3)}}, .sizes = {}, .scalars = {}});
}

/// Sums of 8 terms and of 30 both lose digits as e4m3: only the whole is to.
TEST(Parts, OfARoundedReductionKeepAllDigits) {
    RowSums p;
    p.bindings.inputs["x"] = integers(f32, {30, 7}, -40, 40, 5);
    Axis k = reduce_axis("k", 30);
    Tensor wanted = compute("wanted", {7}, [&](Expr j) { return round_to(e4m3, sum(p.x(k, j), k)) + 1.0; });
    for (bool rounded_first : {true, false}) {
        Schedule s({p.z}, target("sm_90a"));
        if (rounded_first) s.round_to(p.y, e4m3);
        s.rfactor(p.y, s.split(s.reduce(p.y), 8, Tail::Mask)[0]);
        if (!rounded_first) s.round_to(p.y, e4m3);
        EXPECT_EQ(s.roundings(), std::vector<Type>{e4m3});
        auto differs = difference("z", interpret_tree(s.tree(), p.bindings)[0],
                                  interpret_plain({wanted}, p.bindings)[0], equal_values);
        EXPECT_FALSE(differs) << *differs << "\n" << s.to_string();
    }
}

/// The sum has a buffer of its own, in full.
TEST(AtomicParts, OfARoundedResultThatIsMoreThanTheSum) {
    RowSums p;
    p.bindings.inputs["x"] = integers(f32, {30, 7}, -40, 40, 5);
    Axis k = reduce_axis("k", 30);
    Tensor after = compute("after", {7}, [&](Expr j) { return p.twice(j) + 1.0; });
    Tensor wanted = compute("wanted", {7}, [&](Expr j) { return round_to(e4m3, sum(p.x(k, j), k) * 2.0) + 1.0; });
    Schedule s({after}, target("sm_90a"));
    s.round_to(p.twice, e4m3);
    s.rfactor(p.twice, s.split(s.reduce(p.twice), 8, Tail::Mask)[0], Combine::Atomic);
    auto differs = difference("after", interpret_tree(s.tree(), p.bindings)[0],
                              interpret_plain({wanted}, p.bindings)[0], equal_values);
    EXPECT_FALSE(differs) << *differs << "\n" << s.to_string();
}

/// What fills the elements, the updates, and who reads them: in shared memory, in each iteration of a reader's loop.
TEST(AtomicParts, MayStandWhereTheirElementsLive) {
    RowSums p;
    Schedule s({p.z}, target("sm_90a"));
    auto [block, inside] = s.split(s.loops<1>(p.z)[0], 3, Tail::Mask);
    s.rfactor(p.y, s.split(s.reduce(p.y), 8, Tail::Mask)[0], Combine::Atomic);
    s.at(p.y, block);
    EXPECT_EQ(s.tree().nests.size(), 1u);
    EXPECT_NE(s.to_string().find("atomic y["), std::string::npos) << s.to_string();
    expect_declared_values(s, p.bindings);
}

/// Threads of a block share the updates that stand in it: under a loop of theirs each would make all.
TEST(AtomicPartsErrors, UnderLoopsOfThreads) {
    for (const Level level : {thread, lane, warp}) {
        RowSums p;
        Schedule s({p.z}, target("sm_90a"));
        auto [block, inside] = s.split(s.loops<1>(p.z)[0], 4, Tail::Mask);
        s.rfactor(p.y, s.split(s.reduce(p.y), 8, Tail::Mask)[0], Combine::Atomic);
        Schedule before = s;
        s.at(p.y, inside);
        EXPECT_ERROR(s.bind(inside, level), "'y' is updated atomically in shared memory under loop");
        before.bind(inside, level);
        EXPECT_ERROR(before.at(p.y, inside),
                     "each thread would make all updates; place it, by at(), under a loop outside");
    }
}

TEST(AtomicPartsErrors, OfRoundedElements) {
    RowSums p;
    Schedule s({p.z}, target("sm_90a"));
    Schedule rounded = s;
    rounded.round_to(p.y, bf16);
    EXPECT_ERROR(rounded.rfactor(p.y, rounded.reduce(p.y), Combine::Atomic),
                 "rfactor(y, k): the elements of 'y' are rounded to bf16, but atomics combine in f32; leave out the "
                 "round_to");
    Stage parts = s.rfactor(p.y, s.reduce(p.y), Combine::Atomic);
    EXPECT_ERROR(s.round_to(p.y, bf16), "round_to(y, bf16): 'y_partial' updates its elements atomically");
    EXPECT_ERROR(s.round_to(parts, bf16), "its elements are combined with those of 'y' atomically");
}

TEST(AtomicPartsErrors, NameWhatToDo) {
    RowSums p;
    Axis k = reduce_axis("k", 30);
    Tensor most = compute("most", {7}, [&](Expr j) { return reduce_max(cast(f64, p.x(k, j)), k); });
    Schedule s({p.z, most}, target("sm_90a"));
    EXPECT_ERROR(s.rfactor(most, s.reduce(most), Combine::Atomic),
                 "rfactor(most, k): no atomic operation combines by 'max' in f64; atomics add f32");
    auto [ko, ki] = s.split(s.reduce(p.y), 8, Tail::Mask);
    Stage parts = s.rfactor(p.y, ko, Combine::Atomic);
    EXPECT_ERROR(s.rfactor(parts, ki, Combine::Atomic), "'y_partial' already updates the elements of 'y' atomically");
    EXPECT_ERROR(s.inline_stage(p.y), "inline_stage(y): its elements are made by atomic updates");
    Schedule bound = s;
    bound.bind(bound.data_loops(parts)[0], thread);
    EXPECT_ERROR(bound.at(p.y, bound.loops<1>(p.z)[0]),
                 "'y' cannot stand under a loop or leave global memory: 'y_partial' updates");
    EXPECT_ERROR(s.at(parts, s.loops<1>(p.y)[0]), "'y_partial' cannot stand under a loop or leave global memory");
    EXPECT_ERROR(s.at(p.z, s.data_loops(parts)[0]),
                 "'z' reads 'y', whose elements are complete only behind the kernel");
    Schedule both({p.y, p.z}, target("sm_90a"));
    both.rfactor(p.y, both.reduce(p.y), Combine::Atomic);
    EXPECT_ERROR(both.at(p.z, both.loops<1>(p.y)[0]), "it cannot stand in the kernel 'y'");
    s.rfactor(parts, ki);  // in a workspace of their own
    expect_declared_values(s, p.bindings);
}

TEST(AtomicPartsErrors, SearchIsNoWayToCombineThem) {
    RowSums p;
    Schedule s({p.y}, target("sm_90a"));
    EXPECT_ERROR(s.rfactor(p.y, s.split(s.reduce(p.y), 8, Tail::Mask)[0], Combine::Search),
                 "Combine::Search is a way of scatter");
}

TEST(AtomicPartsErrors, ThatReduceAlongNoAxisAreNotScattered) {
    Tensor x = input("x", f32, {48, 11});
    Axis r = reduce_axis("r", 48);
    Tensor columns = compute("columns", {11}, [&](Expr i) { return sum(x(r, i), r); });
    Schedule s({columns}, target("sm_90a"));
    Stage parts = s.rfactor(columns, s.reduce(columns));
    EXPECT_ERROR(s.scatter(parts), "scatter(columns_partial): it reduces along no axis");
}

TEST(AtomicPartsErrors, AreNotScattered) {
    Tensor x = input("x", f32, {48, 11});
    Axis r = reduce_axis("r", 48);
    Tensor columns = compute("columns", {11}, [&](Expr i) { return sum(x(r, i), r) + 1.0; });
    Schedule s({columns}, target("sm_90a"));
    Stage parts = s.rfactor(columns, s.reduce(columns), Combine::Atomic);
    EXPECT_ERROR(s.scatter(parts), "it updates elements of another stage already, atomically");
}

}  // namespace
}  // namespace tw
