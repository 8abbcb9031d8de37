// Sums whose terms each count for one row: sorted, searched for, or added in memory, of any shape.
#include "schedules/scattered.h"

#include <algorithm>

#include <gmock/gmock.h>

#include "ops/check.h"
#include "schedules/array_operators.h"
#include "schedules/choices.h"
#include "schedules/choose.h"
#include "tests/ops/random_cases.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

using testing::HasSubstr;

/// As "compared", "searched", "sorted" or "atomic" says.
Schedule scheduled(const Declared& y, const Target& target, const std::string& way) {
    Schedule s(y.outputs, target);
    const Tensor& gradient = y.outputs[0];
    if (way == "atomic") {
        schedule_scattered_updates(s, gradient);
        return s;
    }
    const Choices choices(Picks{{gradient.name() + ".terms", way}});
    EXPECT_EQ(schedule_scattered(s, s[gradient]), way != "compared");
    EXPECT_TRUE(choices.unmet().empty());
    return s;
}

class ScatteredRowsOfAnyShape : public RandomCases {
protected:
    ScatteredRowsOfAnyShape() : RandomCases(83) {}

    /// Indices of rows, some of them outside, in any order or ascending as those of a batch that was sorted.
    HostArray some_ids(int64_t terms, int64_t rows) {
        HostArray ids = host_array(i32, {terms});
        fill_integers(ids, -1, rows, static_cast<uint64_t>(between(1, 1000)));
        int32_t* begin = reinterpret_cast<int32_t*>(ids.bytes.data());
        if (chance()) std::sort(begin, begin + terms);
        return ids;
    }

    /// The terms of a row are added in their order, to the same bits; atomically in any order, whole numbers.
    void check(int64_t terms, int64_t rows, int64_t width, Type type, const std::string& way) {
        const Declared y = embedding_gradient(terms, rows, width, type);
        Bindings launch = random_bindings(y.outputs, static_cast<uint64_t>(width));
        launch.inputs["ids"] = some_ids(terms, rows);
        if (way == "atomic") fill_integers(launch.inputs["y_gradient"], -9, 9, 5);
        const Schedule s = scheduled(y, device_target(), way);
        SCOPED_TRACE(fmt::format("{}x{}x{}_{}\n{}", terms, rows, width, name_of(type), s.trace_as_cpp()));
        EXPECT_EQ(s.deterministic(), way != "atomic");
        expect_declared(s, launch);
    }
};
TW_ON_EACH_DEVICE(ScatteredRowsOfAnyShape);

TEST_P(ScatteredRowsOfAnyShape, AddTheirTerms) {
    const Type types[] = {f32, bf16, f16};
    for (const char* way : {"searched", "sorted", "atomic"})
        for (int round = 0; round < 20; ++round) {
            const int most = std::array{3, 40, 400}[static_cast<size_t>(between(0, 2))];
            const int64_t width = chance() ? 8 * between(1, 100) : between(1, 700);
            check(between(1, most), between(1, 60), width, types[between(0, 2)], way);
        }
}

TEST_P(ScatteredRowsOfAnyShape, MayBeEmpty) {
    for (const char* way : {"searched", "sorted", "atomic"}) {
        check(0, 5, 9, f32, way);
        check(4, 5, 0, f32, way);
        check(4, 0, 9, f32, way);
    }
}

/// One kernel, whose rows without terms read nothing but indices.
TEST(ScatteredRows, OfFewTermsAreOneKernel) {
    const Declared y = embedding_gradient(60, 5000, 768, bf16);
    const Schedule s = choose_schedule(y.outputs, target("sm_90a"));
    const Program program = build(s);
    EXPECT_EQ(program.kernels().size(), 1u);
    EXPECT_THAT(program.cuda(), HasSubstr("tw::store<4>(&gradient["));
    EXPECT_THAT(s.explain(), HasSubstr("looks for its first and its last term"));
}

/// Neighbouring threads update neighbouring elements: sectors are whole.
TEST(ScatteredRows, UpdatesOfAWarpAreNeighbours) {
    const Declared y = embedding_gradient(100, 50, 1001, f16);
    const Schedule s = scheduled(y, target("sm_90a"), "atomic");
    EXPECT_THAT(build(s).cuda(), testing::ContainsRegex("atomic_add.*element \\* [0-9]+"));
}

TEST(ScatteredRows, FindTheirTermsByTheFewestInstructions) {
    EXPECT_EQ(scattered_way(608, 43008, 512), ScatteredWay::Sorted);
    EXPECT_EQ(scattered_way(120, 30976, 6080), ScatteredWay::Searched);
    EXPECT_EQ(scattered_way(1, 65536, 65536), ScatteredWay::Searched);
    EXPECT_EQ(scattered_way(50, 9, 64), ScatteredWay::Searched);
    EXPECT_EQ(scattered_way(152, 648, 8768), ScatteredWay::Sorted);
    EXPECT_EQ(scattered_way(901, 22, 20544), ScatteredWay::Sorted);
    EXPECT_EQ(scattered_way(701, 1 << 19, 64), ScatteredWay::Sorted);
    EXPECT_EQ(scattered_way(8192, 50257, 768), ScatteredWay::Sorted);
    EXPECT_EQ(scattered_way(2048, 500, 8192), ScatteredWay::Sorted);
    EXPECT_EQ(scattered_way(3, 5, 1), ScatteredWay::Compared);
}

TEST(ScatteredRows, HaveNoOtherReductions) {
    const Declared y = column_sum(input("x", f32, {40, 30}));
    Schedule s(y.outputs, target("sm_90a"));
    EXPECT_FALSE(schedule_scattered(s, s[y.outputs[0]]));
    const Declared sum = full_sum(input("x", f32, {40}));
    Schedule other(sum.outputs, target("sm_90a"));
    EXPECT_ERROR(schedule_scattered_updates(other, sum.outputs[0]), "scattered updates: 'y' has 0 dimensions");
}

}  // namespace
}  // namespace tw::schedules
