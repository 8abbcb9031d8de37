// Sums whose terms depend on where an element stands in a period.
#include "schedules/sums_by_phase.h"

#include <random>

#include <gmock/gmock.h>

#include "dsl/interpret.h"
#include "dsl/simplify.h"
#include "ops/check.h"
#include "schedules/choose.h"
#include "schedules/declared_as.h"
#include "schedules/strided_terms.h"
#include "schedules/unit_product.h"
#include "verify/random.h"

namespace tw::schedules {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

/// What the gradient of a strided window sums: dx of images [2, rows, columns, 9], as one writes it.
Tensor strided_gradient(int64_t step, int64_t taps, int64_t offset, int64_t rows, int64_t columns, int64_t filters) {
    const Tensor dy = input("dy", f32, {2, rows, columns, filters}), w = input("w", f32, {filters, taps, taps, 9});
    const Axis o = reduce_axis("o", filters), r = reduce_axis("r", taps), s = reduce_axis("s", taps);
    return compute("dx", {2, rows * step, columns * step, 9}, [&](Expr n, Expr i, Expr j, Expr c) {
        const Expr p = i + offset - r, q = j + offset - s;
        const Expr term = padded(dy, 0.0)(n, p / step, q / step, o) * w(o, r, s, c);
        return 2.0 * sum(select(p % step == 0 && q % step == 0, term, 0.0), {o, r, s});
    });
}

// Any step, taps, fewer than steps, too, and place.
TEST(SumsByPhase, SayTheSame) {
    fuzz::Random random(std::random_device{}());
    for (int n = 0; n < 12; ++n) {
        const int64_t step = 2, taps = random.between(2, 7), offset = random.between(-2, 4),
                      rows = random.between(2, 5), columns = random.between(2, 5), filters = random.between(1, 6);
        SCOPED_TRACE(fmt::format("{} taps, offset {}, {} x {}, {} filters", taps, offset, rows, columns, filters));
        const Tensor dx = strided_gradient(step, taps, offset, rows, columns, filters);
        const Redeclared found = sums_by_phase(strided_terms({dx}).outputs, 1);
        ASSERT_EQ(found.notes.size(), 1U);
        EXPECT_THAT(found.notes[0], HasSubstr("'dx' is made of 4 sums"));
        const Bindings data = random_bindings({dx}, uint64_t(n) + 1);
        const CheckResult result = check_output(dx, data, interpret_plain(found.outputs, data)[0]);
        EXPECT_TRUE(result.ok) << result.text << to_string(body_of(found.outputs[0]));
    }
}

/// Elements between taps are zeros, and no tensors.
TEST(SumsByPhase, MayHaveNoTerms) {
    const Tensor dx = strided_gradient(2, 1, 0, 4, 4, 8);
    const Redeclared found = sums_by_phase(strided_terms({dx}).outputs, 1);
    ASSERT_EQ(found.notes.size(), 1U);
    EXPECT_EQ(operations_of(found.outputs).size(), 4U);  // two inputs, one phase, the result
    const Bindings data = random_bindings({dx}, 1);
    const CheckResult result = check_output(dx, data, interpret_plain(found.outputs, data)[0]);
    EXPECT_TRUE(result.ok) << result.text;
}

TEST(SumsByPhase, AreNoOthers) {
    const Tensor x = input("x", f32, {60}), w = input("w", f32, {8, 8});
    const Axis r = reduce_axis("r", 8);
    const Redeclared of_odd = sums_by_phase(
        {compute("y", {41, 8}, [&](Expr i, Expr j) { return sum(x(i + r) * w(r, i % 2), r) + cast(f32, j); })}, 1);
    EXPECT_THAT(of_odd.notes, IsEmpty());
    const Redeclared of_many = sums_by_phase(
        {compute("y", {45, 8}, [&](Expr i, Expr j) { return sum(x(i + r) * w(r, i % 9 % 8), r) + cast(f32, j); })}, 1);
    EXPECT_THAT(of_many.notes, IsEmpty());
    const Tensor small = strided_gradient(2, 3, 1, 4, 4, 8);
    EXPECT_THAT(sums_by_phase(strided_terms({small}).outputs).notes, IsEmpty());
}

/// The gradient of a layer, by threads: products of copies, where an element a thread would take longer.
TEST(SumsByPhase, OfGradientsAreProducts) {
    const Tensor dy = input("dy", f32, {32, 28, 28, 128}), w = input("w", f32, {128, 3, 3, 64});
    const Axis o = reduce_axis("o", 128), r = reduce_axis("r", 3), s = reduce_axis("s", 3);
    const Tensor dx = compute("dx", {32, 56, 56, 64}, [&](Expr n, Expr i, Expr j, Expr c) {
        const Expr p = i + 1 - r, q = j + 1 - s;
        const Expr term = padded(dy, 0.0)(n, p / 2, q / 2, o) * w(o, r, s, c);
        return sum(select(p % 2 == 0 && q % 2 == 0, term, 0.0), {o, r, s});
    });
    const std::string text = choose_schedule({dx}, target("sm_90a")).explain();
    EXPECT_THAT(text, HasSubstr("'dx' is made of 4 sums"));
    EXPECT_THAT(text, HasSubstr("'dx_phase' is a product of matrices, 25088 x 64 of 128 terms"));
    EXPECT_THAT(text, HasSubstr("'dx_phase_4' is a product of matrices, 25088 x 64 of 512 terms"));
}

}  // namespace
}  // namespace tw::schedules
