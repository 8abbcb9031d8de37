// Nests that are lowered once for several schedules, and trees that steps build together.
#include "codegen/cost/known_nests.h"

#include <gtest/gtest.h>

#include "codegen/cost/nest_key.h"
#include "dsl/edit.h"
#include "ops/program.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

const Target hopper = target("sm_90a");

Tensor twice(const std::string& name, const std::string& of, int64_t elements) {
    const Tensor x = input(of, f32, {elements});
    return compute(name, {elements}, [&](Expr i) { return 2 * x(i) + 1; });
}
Schedule spread(const std::vector<Tensor>& outputs) {
    Schedule s(outputs, hopper);
    for (const Tensor& output : outputs) {
        const auto [block, thread_loop] = s.split(s.data_loops(output)[0], 128, Tail::Mask);
        s.bind(block, grid.x), s.bind(thread_loop, thread);
    }
    return s;
}
std::string first_key(const Schedule& s) { return codegen::nest_key(s.tree(), s.tree().nests[0]); }

TEST(KnownNests, AreThoseOfOtherSchedulesWhateverTheirNames) {
    const Schedule alone = spread({twice("y", "x", 1000)});
    const Schedule beside = spread({twice("first", "a", 3000), twice("second", "b", 1000)});
    EXPECT_FALSE(codegen::is_known_to_lower(alone.tree(), alone.tree().nests[0], hopper));
    const auto counted = codegen::counted_kernels(beside.tree(), hopper);
    ASSERT_EQ(counted.size(), 2U);
    EXPECT_EQ(counted[1].name, "second");
    EXPECT_TRUE(codegen::is_known_to_lower(alone.tree(), alone.tree().nests[0], hopper));
    EXPECT_FALSE(codegen::is_known_to_lower(alone.tree(), alone.tree().nests[0], target("sm_80")));
    EXPECT_EQ(build(alone).predicted().kernels[0].name, "y");
    EXPECT_NE(build(alone).cuda().find("y["), std::string::npos) << build(alone).cuda();
}

/// An input, and what another kernel of the schedule has made, are read alike.
TEST(KnownNests, ReadWhoeverMakesIt) {
    const Tensor x = input("x", f32, {1000});
    const Tensor y = compute("y", {1000}, [&](Expr i) { return x(i) - 5; });
    const Tensor z = compute("z", {1000}, [&](Expr i) { return 2 * y(i) + 1; });
    const Schedule both = spread({y, z});
    ASSERT_EQ(both.tree().nests.size(), 2U);
    EXPECT_EQ(codegen::nest_key(both.tree(), both.tree().nests[1]), first_key(spread({twice("z", "x", 1000)})));
}

TEST(KnownNests, DifferInAllThatLoweringGoesBy) {
    const Tensor x = input("x", f32, {1000});
    const Tensor y = compute("y", {1000}, [&](Expr i) { return 2 * x(i) + 1; });
    const Schedule s = spread({y});
    Schedule in_place = s, unbound({y}, hopper);
    in_place.in_place(y, x);
    EXPECT_EQ(first_key(s), first_key(spread({twice("z", "a", 1000)})));
    EXPECT_NE(first_key(s), first_key(in_place));
    EXPECT_NE(first_key(s), first_key(unbound));
    EXPECT_NE(first_key(s), first_key(spread({twice("y", "x", 1001)})));
    EXPECT_NE(first_key(s), first_key(spread({compute("y", {1000}, [&](Expr i) { return 2 * x(i) + 2; })})));
    EXPECT_NE(first_key(s), first_key(spread({compute("y", {1000}, [&](Expr i) { return 2 * x(i) - 1; })})));
}

TEST(TreesLater, MakeTheSameSchedule) {
    const Tensor y = twice("y", "x", 1000);
    const Schedule eager = spread({y}), later = made_with_trees_later([&] { return spread({y}); });
    EXPECT_EQ(later.to_string(), eager.to_string());
    EXPECT_EQ(first_key(later), first_key(eager));
    EXPECT_EQ(later.trace().size(), eager.trace().size());
}

/// While one lives, a tree that is asked for is that of all steps so far.
TEST(TreesLater, AreBuiltWhenTheyAreAskedFor) {
    const TreesLater later;
    const Tensor y = twice("y", "x", 1000);
    Schedule s({y}, hopper);
    const std::string before = s.to_string();
    s.bind(s.split(s.data_loops(y)[0], 128, Tail::Mask)[0], grid.x);
    EXPECT_NE(s.to_string(), before);
}

/// What a step refuses it tells; where a tree is refused, all is made again, and the step tells that made it so.
TEST(TreesLater, LeaveErrorsToTheSteps) {
    const Tensor y = twice("y", "x", 1000);
    int calls = 0;
    const auto make = [&] {
        ++calls;
        Schedule s({y}, hopper);
        s.split(s.data_loops(y)[0], 48, {"outer", "inner"});
        return s;
    };
    EXPECT_ERROR(made_with_trees_later(make), "48 does not divide");
    EXPECT_EQ(calls, 1);
    const Tensor x = input("x", f32, {1000}), turned = compute("y", {1000}, [&](Expr i) { return x(999 - i); });
    const auto overwrite = [&] {
        ++calls;
        Schedule s({turned}, hopper);
        s.in_place(turned, x);
        s.split(s.data_loops(turned)[0], 8);
        return s;
    };
    EXPECT_ERROR(made_with_trees_later(overwrite), "in_place(y, x): ");
    EXPECT_EQ(calls, 3);
}

/// Regions of stages whose loops are split are found again with the tree: what changes them is told by its step.
TEST(TreesLater, LeaveRegionsThatChangeToTheSteps) {
    const Tensor x = input("x", f32, {1001}), pairs = compute("pairs", {1000}, [&](Expr i) { return x(i) + x(i + 1); }),
                 y = compute("y", {999}, [&](Expr i) { return pairs(i) * pairs(i + 1); });
    int calls = 0;
    const auto make = [&](bool changes) {
        ++calls;
        Schedule s({y}, hopper);
        const auto [outer, inner] = s.split(s.data_loops(y)[0], 27);
        s.bind(outer, grid.x);
        s.bind(inner, thread);
        s.at(pairs, inner);
        s.unroll(s.split(s.data_loops(pairs)[0], 2)[1]);
        if (changes) s.set_memory(pairs, Memory::Shared);
        return s;
    };
    EXPECT_EQ(made_with_trees_later([&] { return make(false); }).to_string(), make(false).to_string());
    calls = 0;
    EXPECT_ERROR(made_with_trees_later([&] { return make(true); }), "this step changes what 'pairs' computes");
    EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace tw
