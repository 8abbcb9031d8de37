// Schedules that a search makes by changing steps: found from bad ones, equal for equal seeds, measured and kept as
// others are.
#include "tuning/search_schedules.h"

#include <gmock/gmock.h>

#include <tilewright/tune.h>

#include "schedules/generated_picks.h"
#include "schedules/plain_schedule.h"
#include "support/error.h"
#include "tests/support/cache_folder.h"
#include "tests/support/expect_error.h"
#include "tuning/mutate_schedule.h"

namespace tw::tuning {
namespace {

using testing::HasSubstr;
using testing::Not;

Tensor product_of_rows(int64_t m, int64_t n, int64_t terms) {
    const Tensor a = input("a", f32, {m, terms}), b = input("b", f32, {n, terms});
    const Axis k = reduce_axis("k", terms);
    return compute("c", {m, n}, [&](Expr i, Expr j) { return sum(a(i, k) * b(j, k), k); });
}

Tensor sums_of_rows(int64_t rows, int64_t columns) {
    const Tensor x = input("x", f32, {rows, columns});
    const Axis k = reduce_axis("k", columns);
    return compute("y", {rows}, [&](Expr i) { return sum(x(i, k), k); });
}

double predicted(const Schedule& s) { return codegen::predict_time(s.tree(), s.target()).seconds; }

/// A thread for each element is a bad start of both: neighbouring threads read what does not lie side by side, and of
/// products the same terms again and again.
TEST(SearchSchedules, FindsTilesFromABadStart) {
    for (const Tensor& y : {product_of_rows(512, 512, 256), sums_of_rows(512, 4096)}) {
        const Schedule naive = schedules::plain_schedule({y}, target("sm_90a"));
        const SearchResult found = search_schedules({naive}, {.candidates = 140, .seed = 2});
        ASSERT_FALSE(found.best.empty());
        EXPECT_LT(3 * found.best[0].time.seconds, predicted(naive)) << found.best[0].schedule.to_string();
        EXPECT_TRUE(std::ranges::is_sorted(found.best, {}, [](const auto& each) { return each.time.seconds; }));
        EXPECT_GT(found.refused.size(), 2u);
        size_t refused = 0;
        for (const auto& [why, times] : found.refused) refused += times;
        EXPECT_LE(found.legal + refused, found.tried);
    }
}

TEST(SearchSchedules, FindsTheSameForEqualSeeds) {
    const Schedule naive = schedules::plain_schedule({sums_of_rows(96, 160)}, target("sm_80"));
    auto texts = [&](uint64_t seed) {
        std::string all;
        for (const GeneratedSchedule& each : search_schedules({naive}, {.candidates = 25, .seed = seed}).best)
            all += each.changes + "\n" + each.schedule.save();
        return all;
    };
    EXPECT_EQ(texts(3), texts(3));
    EXPECT_NE(texts(3), texts(4));
}

/// Its steps are an ordinary trace, which gives it again.
TEST(SearchSchedules, MakesOrdinarySteps) {
    const Tensor c = product_of_rows(40, 24, 56);
    const Schedule naive = schedules::plain_schedule({c}, target("sm_90a"));
    const SearchResult found = search_schedules({naive}, {.candidates = 25, .kept = 2});
    ASSERT_EQ(found.best.size(), 2u);
    for (const GeneratedSchedule& each : found.best) {
        EXPECT_EQ(replay(each.schedule.save(), {c}, target("sm_90a")).to_string(), each.schedule.to_string());
        EXPECT_THAT(each.schedule.trace_as_cpp(), HasSubstr("  // [0] found by search\n"));
        EXPECT_THAT(each.schedule.trace_as_cpp(), Not(HasSubstr(".cpp:")));
        EXPECT_NEAR(predicted(each.schedule), each.time.seconds, 1e-12);
        Runner runner(each.schedule, open_device("emulated"));
        const CheckResult check = runner.set(random_bindings({c}, 1)).check();
        EXPECT_TRUE(check.ok) << check.text << each.schedule.trace_as_cpp();
    }
}

/// A generated one that is measured to be the fastest is kept, and taken from then on.
TEST(SearchSchedules, IsMeasuredAndKept) {
    const CacheFolder folder;
    const Target limits = target("sm_90a");
    const Tensor y = sums_of_rows(60, 300);
    const auto device = open_device("emulated");
    const auto clock = [](const std::string& picks) { return picks.find("generated=") == picks.npos ? 2e-3 : 1e-3; };
    TuneRequest request{
        .limit = 8, .generated = 20, .rule = schedules::plain_schedule, .rule_name = "plain_schedule", .clock = clock};
    const TunedDeclaration tuned = tune({y}, device, request);
    EXPECT_TRUE(schedules::are_generated(tuned.picks)) << tuned.text;
    EXPECT_THAT(tuned.text, HasSubstr(", 2.00 times as fast as the rule (2.0000 ms); 2 measured"));
    EXPECT_EQ(tuned.schedule.save(), tuned.result.record.schedule);
    auto again = [&](const Tensor& output) {
        return schedules::schedule_as_tuned({output}, limits, "plain_schedule", schedules::plain_schedule);
    };
    EXPECT_EQ(again(y).save(), tuned.schedule.save());
    for (const Schedule& s : {tuned.schedule, again(y)}) {
        EXPECT_THAT(s.trace_as_cpp(), HasSubstr("  // [0] found by search\n"));
        EXPECT_THAT(s.trace_as_cpp(), Not(HasSubstr(".cpp:")));
    }
    EXPECT_THAT(again(y).explain(), HasSubstr("as tuned on emulated"));
    // One of its bucket has the steps where they fit, and else the rule's.
    EXPECT_NO_THROW(build(again(sums_of_rows(61, 301))));

    EXPECT_ERROR(schedules::as_generated(tuned.picks, "tilewright trace 1\n", again(y)),
                 "these are not the steps of that schedule, whose number is");
    request.generated = 0, request.keep = false;
    EXPECT_TRUE(tune({y}, device, request).picks.empty());
}

}  // namespace
}  // namespace tw::tuning
