// What lies in a plan's arena when: as text and as a picture.
#include "ops/step/memory_map.h"

#include <algorithm>

#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include "tests/ops/step/small_steps.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

using testing::HasSubstr;

TEST(MemoryMap, IsThatOfThePlan) {
    const StepPlan plan = plan_step(step_of_layers(3, 24, 32), target("sm_90a"));
    const std::vector<ArenaUse> uses = arena_uses(plan);
    int64_t most = 0, end = 0;
    for (int g = 0; g < static_cast<int>(plan.groups.size()); ++g) {
        int64_t bytes = 0;
        for (const ArenaUse& use : uses)
            if (use.first <= g && g <= use.last) bytes += use.bytes;
        most = std::max(most, bytes);
        EXPECT_THAT(memory_map(plan),
                    HasSubstr(fmt::format("group {} ({}): {} B of {} in use", g,
                                          fmt::join(plan.groups[static_cast<size_t>(g)].operations, ", "), bytes,
                                          plan.arena_bytes)));
    }
    for (const ArenaUse& a : uses) {
        end = std::max(end, a.offset + a.bytes);
        for (const ArenaUse& b : uses) {
            const bool at_once = a.first <= b.last && b.first <= a.last;
            const bool overlap = a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
            EXPECT_FALSE(&a != &b && at_once && overlap) << a.name << " and " << b.name;
        }
        // Named with the operations of its group: those that make it, or whose workspace it is.
        const std::vector<std::string>& made_by = plan.groups[static_cast<size_t>(a.first)].operations;
        EXPECT_EQ(a.operations, made_by) << a.name;
        const std::string by = made_by == std::vector{a.name} ? "" : fmt::format(", by {}", fmt::join(made_by, ", "));
        EXPECT_THAT(memory_picture(plan), HasSubstr(fmt::format("<title>{}{}: {} B at {}, groups {} to {}</title>",
                                                                a.name, by, a.bytes, a.offset, a.first, a.last)));
        EXPECT_THAT(memory_map(plan), HasSubstr(fmt::format("{:>12} B  {}{}\n", a.bytes, a.name, by)));
    }
    EXPECT_LE(most, plan.most_alive);
    EXPECT_GT(most, plan.most_alive * 9 / 10);
    EXPECT_LE(end, plan.arena_bytes);
    EXPECT_ERROR(write_memory_picture("no/such/folder/step.svg", plan), "cannot write 'no/such/folder/step.svg'");
}

}  // namespace
}  // namespace tw
