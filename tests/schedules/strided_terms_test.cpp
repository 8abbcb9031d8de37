// Sums of which only every so many a term counts.
#include "schedules/strided_terms.h"

#include <random>

#include <gmock/gmock.h>

#include "dsl/interpret.h"
#include "dsl/simplify.h"
#include "ops/check.h"
#include "schedules/choose.h"
#include "schedules/convolve.h"
#include "schedules/declared_as.h"
#include "schedules/find_convolution.h"
#include "verify/random.h"

namespace tw::schedules {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

/// The most that an element sums.
int64_t terms_of(const Tensor& tensor) {
    int64_t terms = 1;
    visit(body_of(tensor), [&](const Expr& e) {
        if (const Reduce* sum = e.as<Reduce>())
            for (const Expr& axis : sum->axes) terms *= *bounds_of(axis.as<Variable>()->extent).max;
    });
    return terms;
}

// Signals with zeros between their elements, filtered: any step, places in front or behind, with more conditions.
TEST(StridedTerms, AreSummedAlone) {
    fuzz::Random random(std::random_device{}());
    for (int n = 0; n < 60; ++n) {
        const int64_t step = random.between(2, 5), taps = random.between(2, 11), offset = random.between(-7, 7),
                      length = random.between(5, 20), results = random.between(4, 60);
        const bool backwards = random.chance(0.5), masked = random.chance(0.3), scaled = random.chance(0.4);
        SCOPED_TRACE(fmt::format("step {}, {} taps, offset {}, {} of {}, backwards {}, masked {}, scaled {}", step,
                                 taps, offset, results, length, backwards, masked, scaled));
        const Tensor x = input("x", f32, {length}), w = input("w", f32, {taps}), g = input("g", f32, {results});
        const Axis r = reduce_axis("r", taps);
        const Tensor y = compute("y", {results}, [&](Expr i) {
            const Expr place = backwards ? i + offset - r : i + offset + r;
            Expr counts = place % step == 0;
            if (masked) counts = counts && r + i < results;
            Expr term = padded(x, 0.0)(place / step) * w(r);
            if (scaled) term = term * g(i);
            return sum(select(counts, term, 0.0), r);
        });
        const Redeclared found = strided_terms({y});
        EXPECT_EQ(found.notes.size(), 1U);
        EXPECT_EQ(terms_of(found.outputs[0]), (taps + step - 1) / step);
        const Bindings data = random_bindings({y}, uint64_t(n) + 1);
        const CheckResult result = check_output(y, data, interpret_plain(found.outputs, data)[0]);
        EXPECT_TRUE(result.ok) << result.text << to_string(body_of(found.outputs[0]));
    }
}

/// By the parity of taps, as one writes it: the convolution that gradients derive, which has a kernel.
TEST(StridedTerms, OfTransposedConvolutionsAreFound) {
    for (const int64_t taps : {3, 4}) {
        const Tensor x = input("x", bf16, {2, 8, 9, 32}), w = input("w", bf16, {32, taps, taps, 16});
        const Axis c = reduce_axis("c", 32), r = reduce_axis("r", taps), s = reduce_axis("s", taps);
        const Tensor y = compute("y", {2, 12 + taps, 14 + taps, 16}, [&](Expr n, Expr i, Expr j, Expr o) {
            Expr p = i + 1 - r, q = j + 1 - s;
            Expr term = cast(f32, padded(x, 0.0)(n, p / 2, q / 2, c)) * cast(f32, w(c, r, s, o));
            return cast(bf16, sum(select(p % 2 == 0 && q % 2 == 0, term, 0.0), {c, r, s}));
        });
        EXPECT_FALSE(find_convolution(y, {y}));
        const Tensor found = strided_terms({y}).outputs[0];
        EXPECT_TRUE(find_convolution(found, {found})) << to_string(body_of(found));
        EXPECT_THAT(choose_schedule({y}, target("sm_90a")).explain(), HasSubstr("those terms alone that count"));
    }
}

TEST(StridedTerms, AreNoOthers) {
    const Tensor x = input("x", f32, {40}), steps = input("steps", i32, {40});
    const Axis r = reduce_axis("r", 40), q = reduce_axis("q", 8);
    const Expr zero = constant(f32, 0.0);
    for (const Tensor& y :
         {compute("y", {40}, [&](Expr i) { return sum(select((i - r) % 3 != 0, x(r), zero), r); }),
          compute("y", {40}, [&](Expr i) { return sum(select((i - 2 * r) % 4 == 0, x(r), zero), r); }),
          compute("y", {40}, [&](Expr i) { return sum(select((i - r) % 3 == 0, x(r), zero + 1.0), r); }),
          compute("y", {40}, [&](Expr i) { return reduce_max(select((i - r) % 3 == 0, x(r), zero), r); })})
        EXPECT_THAT(strided_terms({y}).notes, IsEmpty()) << to_string(body_of(y));
}

}  // namespace
}  // namespace tw::schedules
