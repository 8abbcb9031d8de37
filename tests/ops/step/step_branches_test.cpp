// Kernels of a step beside each other: which may, and that results are those of one behind the other.
#include "ops/step/step_branches.h"

#include <algorithm>
#include <random>

#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include "ops/check.h"
#include "ops/step/planned_step.h"
#include "tests/ops/step/small_steps.h"
#include "tests/support/expect_error.h"
#include "tests/support/on_device.h"

namespace tw {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Edges = std::vector<std::vector<size_t>>;

constexpr int64_t Multiprocessors = 132;

/// Of a group that reads some bytes of 100 and writes others, each a place.
StepBranchGroup group_of(int64_t blocks, const std::vector<int64_t>& reads, const std::vector<int64_t>& writes) {
    StepBranchGroup group{.accesses = {}, .most_blocks = blocks};
    for (int64_t at : reads) group.accesses.push_back({0, at, at + 1, false});
    for (int64_t at : writes) group.accesses.push_back({0, at, at + 1, true});
    return group;
}

/// Whether each comes behind each: [later][earlier].
std::vector<std::vector<bool>> paths_of(const Edges& after) {
    std::vector<std::vector<bool>> paths(after.size(), std::vector<bool>(after.size()));
    for (size_t g = 0; g < after.size(); ++g)
        for (size_t before : after[g]) {
            paths[g][before] = true;
            for (size_t b = 0; b < before; ++b) paths[g][b] = paths[g][b] || paths[before][b];
        }
    return paths;
}

TEST(StepBranches, LargeGroupsAreAChain) {
    const std::vector<StepBranchGroup> groups{group_of(132, {}, {1}), group_of(500, {}, {2}), group_of(132, {}, {3})};
    EXPECT_THAT(branches_of(groups, Multiprocessors), ElementsAre(IsEmpty(), ElementsAre(0), ElementsAre(1)));
    EXPECT_THAT(branches_of({}, Multiprocessors), IsEmpty());
}

TEST(StepBranches, SmallOnesStandBesideWhatIsInFront) {
    // 1 reads nothing of 0, 2 comes behind 0 in the chain, 3 reads what 1 and 2 have made
    const std::vector<StepBranchGroup> groups{group_of(500, {}, {1}), group_of(131, {}, {2}), group_of(500, {}, {3}),
                                              group_of(500, {2, 3}, {4})};
    EXPECT_THAT(branches_of(groups, Multiprocessors),
                ElementsAre(IsEmpty(), IsEmpty(), ElementsAre(0), ElementsAre(2, 1)));
}

TEST(StepBranches, AndBesideWhatIsBehind) {
    // 1 and 2 are made of 0, one behind the other; 3 is made of 0 alone; 4 of 2 and 3
    const std::vector<StepBranchGroup> groups{group_of(500, {}, {1}), group_of(1, {1}, {2}), group_of(1, {2}, {3}),
                                              group_of(500, {1}, {4}), group_of(500, {3, 4}, {5})};
    EXPECT_THAT(branches_of(groups, Multiprocessors),
                ElementsAre(IsEmpty(), ElementsAre(0), ElementsAre(1), ElementsAre(0), ElementsAre(3, 2)));
}

TEST(StepBranches, WaitForThoseWhoReadWhatTheyOverwrite) {
    const std::vector<StepBranchGroup> groups{group_of(1, {7}, {1}), group_of(1, {7}, {2}), group_of(1, {}, {7})};
    EXPECT_THAT(branches_of(groups, Multiprocessors), ElementsAre(IsEmpty(), IsEmpty(), ElementsAre(1, 0)));
}

/// Whatever conflicts is in order, large ones are in theirs, and no edge follows from the others.
TEST(StepBranches, OrderWhatConflicts) {
    const unsigned seed = std::random_device{}();
    std::mt19937 random(seed);
    size_t beside = 0;
    for (int trial = 0; trial < 300; ++trial) {
        SCOPED_TRACE(fmt::format("trial {} of seed {}", trial, seed));
        std::vector<StepBranchGroup> groups;
        for (size_t n = 5 + random() % 20; n-- > 0;)
            groups.push_back(group_of(random() % 3 == 0 ? 500 : 2, {int64_t(random() % 12), int64_t(random() % 12)},
                                      {int64_t(random() % 12)}));
        const Edges after = branches_of(groups, Multiprocessors);
        ASSERT_EQ(after.size(), groups.size());
        const auto paths = paths_of(after);
        size_t last_large = groups.size();
        for (size_t g = 0; g < groups.size(); ++g) {
            for (size_t b = 0; b < g; ++b)
                if (conflict(groups[b].accesses, groups[g].accesses)) {
                    ASSERT_TRUE(paths[g][b]) << b << " and " << g << " of " << fmt::format("{}", after);
                }
            for (size_t one : after[g])
                for (size_t other : after[g]) ASSERT_FALSE(paths[one][other]) << fmt::format("{}", after);
            beside += g > 0 && !paths[g][g - 1];
            if (groups[g].most_blocks < Multiprocessors) continue;
            if (last_large < g) {
                ASSERT_TRUE(paths[g][last_large]);
            }
            last_large = g;
        }
    }
    EXPECT_GT(beside, 300u);
}

// Steps.

StepPlan with_branches(const schedules::Declared& declared) {
    StepPlan plan = plan_step(declared, target("sm_90a"), {}, {.branches = true});
    EXPECT_TRUE(plan.branches);
    return plan;
}

void set_all(const PlannedStep& step, const Bindings& data) {
    for (const auto& [name, array] : data.inputs) step.set(name, array);
}

/// What a step makes of the data in some runs.
std::vector<HostArray> results_of(const PlannedStep& step, const schedules::Declared& declared, const Bindings& data) {
    set_all(step, data);
    for (int run = 0; run < 3; ++run) step.run();
    std::vector<HostArray> results;
    for (const Tensor& result : declared.outputs) results.push_back(step.get(result.name()));
    return results;
}

bool are_equal(const std::vector<HostArray>& one, const std::vector<HostArray>& other) {
    return std::ranges::equal(one, other, {}, &HostArray::bytes, &HostArray::bytes);
}

class StepsWithBranches : public OnDevice {};
TW_ON_EACH_DEVICE(StepsWithBranches);

TEST_P(StepsWithBranches, HaveTheBitsOfOneBehindTheOther) {
    for (const schedules::Declared& declared :
         {step_of_layers(3, 24, 32), step_of_classifier(20, {24, 16, 16, 7}), step_of_blocks(2, 16, 8)}) {
        const Bindings data = random_bindings(declared.outputs, std::random_device{}());
        const PlannedStep chain(plan_step(declared, target("sm_90a"), {}, {.branches = false}), device_),
            step(with_branches(declared), device_);
        for (size_t n = 0; n < chain.after().size(); ++n)
            EXPECT_EQ(chain.after()[n], n == 0 ? std::vector<size_t>() : std::vector{n - 1});
        const auto paths = paths_of(step.after());
        size_t beside = 0;
        for (size_t n = 1; n < paths.size(); ++n) beside += !paths[n][n - 1];
        EXPECT_GT(beside, 0u) << fmt::format("{}", step.after());
        const StepPlan& plan = step.plan();
        for (size_t g = 0; g < plan.groups.size(); ++g)
            for (size_t b = 0; b < g; ++b)
                if (conflict(accesses_of(plan, plan.groups[b]), accesses_of(plan, plan.groups[g]))) {
                    const auto last = size_t(&step.launches_of(b).back() - step.launches().data());
                    const auto first = size_t(&step.launches_of(g).front() - step.launches().data());
                    EXPECT_TRUE(paths[first][last]) << "groups " << b << " and " << g;
                }
        const std::vector<HostArray> expected = results_of(chain, declared, data);
        for (int repeat = 0; repeat < 3; ++repeat) EXPECT_TRUE(are_equal(results_of(step, declared, data), expected));
    }
}

/// Each edge of a step in turn: without it, an order comes that shows.
TEST_P(StepsWithBranches, MissAnEdgeThatWasDropped) {
    if (device_->kind() == DeviceKind::Cuda) GTEST_SKIP() << "a GPU may be lucky";
    const schedules::Declared declared = step_of_classifier(12, {8, 8, 8, 5});
    const Bindings data = random_bindings(declared.outputs, std::random_device{}());
    const PlannedStep step(with_branches(declared), device_);
    const std::vector<HostArray> expected = results_of(step, declared, data);
    int dropped = 0, noticed = 0;
    for (size_t n = 0; n < step.after().size(); ++n)
        for (size_t edge = 0; edge < step.after()[n].size(); ++edge) {
            Edges after = step.after();
            after[n].erase(after[n].begin() + std::ptrdiff_t(edge));
            const Graph graph = device_->graph(step.launches(), after);
            const auto shows = [&] {
                set_all(step, data);
                try {
                    for (int run = 0; run < 3; ++run) graph.run();
                } catch (const EmulatorReport&) {
                    return true;
                }
                std::vector<HostArray> results;
                for (const Tensor& result : declared.outputs) results.push_back(step.get(result.name()));
                return !are_equal(results, expected);
            };
            bool is_noticed = false;
            for (int repeat = 0; repeat < 20 && !is_noticed; ++repeat) is_noticed = shows();
            ++dropped;
            noticed += is_noticed;
            if (!is_noticed) fmt::print("not noticed: {} without {}\n", n, step.after()[n][edge]);
        }
    fmt::print("{} of {} dropped edges noticed\n", noticed, dropped);
    EXPECT_GT(dropped, 10);
    EXPECT_GE(noticed, dropped * 9 / 10);
}

/// Two names of one memory: the one who overwrites it waits for the one who reads it by the other name.
TEST_P(StepsWithBranches, KnowMemoryThatHasTwoNames) {
    const Tensor w = input("w", f32, {40}), other = input("other", f32, {40}), x = input("x", f32, {40});
    const Tensor read = compute("read", {40}, [&](Expr i) { return exp(other(i)); });
    const Tensor next = compute("next", {40}, [&](Expr i) { return w(i) + x(i); });
    const schedules::Declared declared{{read, next}, {{next, w}}};
    StepPlan plan = with_branches(declared);
    const Buffer memory = device_->allocate(160, "memory");
    const PlannedStep apart(plan, device_), shared(plan, device_, {{"w", memory}, {"other", memory}});
    if (plan.groups.size() == 2) {
        EXPECT_THAT(apart.after(), ElementsAre(IsEmpty(), IsEmpty()));
        EXPECT_THAT(shared.after(), ElementsAre(IsEmpty(), ElementsAre(0)));
    } else {
        ADD_FAILURE() << plan.text();
    }
}

}  // namespace
}  // namespace tw
