// Sums whose terms each count for one row: sorted, searched for, or added in memory, of any shape.
#include "schedules/scattered.h"

#include <algorithm>

#include <gmock/gmock.h>

#include "ops/check.h"
#include "schedules/array_operators.h"
#include "tests/ops/random_cases.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

using testing::HasSubstr;

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
    void check(int64_t terms, int64_t rows, int64_t width, Type type, Combine combine) {
        const Declared y = embedding_gradient(terms, rows, width, type);
        Bindings launch = random_bindings(y.outputs, static_cast<uint64_t>(width));
        launch.inputs["ids"] = some_ids(terms, rows);
        if (combine == Combine::Atomic) fill_integers(launch.inputs["y_gradient"], -9, 9, 5);
        Schedule s(y.outputs, device_target());
        schedule_scattered_rows(s, y.outputs[0], rows, width, combine);
        SCOPED_TRACE(fmt::format("{}x{}x{}_{}\n{}", terms, rows, width, name_of(type), s.trace_as_cpp()));
        EXPECT_EQ(s.deterministic(), combine != Combine::Atomic);
        expect_declared(s, launch);
    }
};
TW_ON_EACH_DEVICE(ScatteredRowsOfAnyShape);

TEST_P(ScatteredRowsOfAnyShape, AddTheirTerms) {
    const Type types[] = {f32, bf16, f16};
    for (Combine combine : {Combine::Search, Combine::Workspace, Combine::Atomic})
        for (int round = 0; round < 20; ++round) {
            const int most = std::array{3, 40, 400}[static_cast<size_t>(between(0, 2))];
            const int64_t width = chance() ? 8 * between(1, 100) : between(1, 700);
            check(between(1, most), between(1, 60), width, types[between(0, 2)], combine);
        }
}

TEST_P(ScatteredRowsOfAnyShape, MayBeEmpty) {
    for (Combine combine : {Combine::Search, Combine::Workspace, Combine::Atomic}) {
        check(0, 5, 9, f32, combine);
        check(4, 5, 0, f32, combine);
        check(4, 0, 9, f32, combine);
    }
}

/// One kernel, whose rows without terms read nothing but indices.
TEST(ScatteredRows, OfFewTermsAreOneKernel) {
    const Declared y = embedding_gradient(100, 5000, 768, bf16);
    Schedule s(y.outputs, target("sm_90a"));
    schedule_scattered_rows(s, y.outputs[0], 5000, 768, Combine::Search);
    const Program program = build(s);
    EXPECT_EQ(program.kernels().size(), 1u);
    EXPECT_THAT(program.cuda(), HasSubstr("tw::store<4>(&gradient["));
    EXPECT_THAT(s.explain(), HasSubstr("looks for its first and its last term"));
}

/// Neighbouring threads update neighbouring elements: sectors are whole.
TEST(ScatteredRows, UpdatesOfAWarpAreNeighbours) {
    const Declared y = embedding_gradient(100, 50, 1001, f16);
    Schedule s(y.outputs, target("sm_90a"));
    schedule_scattered_rows(s, y.outputs[0], 50, 1001, Combine::Atomic);
    EXPECT_THAT(build(s).cuda(), testing::ContainsRegex("atomic_add.*element \\* [0-9]+"));
}

TEST(ScatteredRows, AreSearchedWhereThatTakesLess) {
    EXPECT_TRUE(searches_terms(608, 43008, 512));
    EXPECT_TRUE(searches_terms(1, 65536, 65536));
    EXPECT_FALSE(searches_terms(8192, 50257, 768));
    EXPECT_FALSE(searches_terms(2048, 500, 8192));
}

}  // namespace
}  // namespace tw::schedules
