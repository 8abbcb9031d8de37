// Views move elements and nothing else; what lies in memory as a view has it is told.
#include "schedules/views.h"

#include <algorithm>
#include <numeric>
#include <random>

#include <gmock/gmock.h>

#include "dsl/differentiate.h"
#include "dsl/interpret.h"
#include "ops/check.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

using Numbers = std::vector<int64_t>;

/// Element k has the value k.
Bindings counted(const Numbers& shape) {
    Bindings data;
    HostArray x = host_array(f32, shape);
    Numbers at(shape.size());
    double next = 0;
    do x.set(at, make_value(f32, next++));
    while (advance(at, shape));
    data.inputs["x"] = x;
    return data;
}

/// Divisors of what is left, and ones, in any order.
Numbers random_shape(int64_t count, std::mt19937_64& random) {
    Numbers shape;
    while (count > 1) {
        Numbers divisors;
        for (int64_t d = 2; d <= count; ++d)
            if (count % d == 0) divisors.push_back(d);
        shape.push_back(divisors[random() % divisors.size()]);
        count /= shape.back();
        if (random() % 4 == 0) shape.push_back(1);
    }
    std::ranges::shuffle(shape, random);
    return shape;
}

TEST(Views, ReshapesKeepTheOrderOfElementsAndAreKnown) {
    std::mt19937_64 random(1);
    for (int n = 0; n < 200; ++n) {
        const int64_t count = std::array<int64_t, 5>{1, 12, 36, 60, 128}[random() % 5];
        const Numbers from = random_shape(count, random), to = random_shape(count, random);
        SCOPED_TRACE(fmt::format("[{}] to [{}]", fmt::join(from, ", "), fmt::join(to, ", ")));
        const Tensor x = input("x", f32, {from.begin(), from.end()}), y = reshape("y", x, to);
        const HostArray got = interpret_plain({y}, counted(from))[0];
        ASSERT_EQ(got.shape, to);
        Numbers at(to.size());
        double next = 0;
        do ASSERT_EQ(got.at(at).real, next++);
        while (advance(at, to));
        const auto known = reshaped_from(*y.operation());
        ASSERT_TRUE(known.has_value());
        EXPECT_TRUE(known->same(x));
        EXPECT_TRUE(is_view(*y.operation()));
        const Tensor adjoint = input("g", f32, {to.begin(), to.end()}), back = gradients(y, adjoint, {x})[0];
        const auto of_back = reshaped_from(*back.operation());
        ASSERT_TRUE(of_back.has_value());
        EXPECT_TRUE(of_back->same(adjoint));
    }
}

TEST(Views, KnowReshapesHoweverTheyAreWritten) {
    const Tensor x = input("x", f32, {6, 20}), y = input("y", f32, {6, 4, 5});
    const Tensor parts = compute("parts", {6, 4, 5}, [&](Expr i, Expr h, Expr d) { return x(i, h * 5 + d); });
    const Tensor put = compute("put", {24, 5}, [&](Expr i, Expr d) { return y(i / 4, i % 4, d); });
    EXPECT_TRUE(reshaped_from(*parts.operation())->same(x));
    EXPECT_TRUE(reshaped_from(*put.operation())->same(y));
    const Tensor turned = compute("turned", {20, 6}, [&](Expr i, Expr j) { return x(j, i); });
    const Tensor other = compute("other", {4, 6, 5}, [&](Expr h, Expr i, Expr d) { return y(i, h, d); });
    const Tensor twice = compute("twice", {6, 20}, [&](Expr i, Expr j) { return x(i, j) * 2.0; });
    const Tensor gaps =
        compute("gaps", {6, 20}, [&, g = input("g", f32, {6, 20}, {32, 1})](Expr i, Expr j) { return g(i, j); });
    for (const Tensor& none : {turned, other, twice, gaps, slice("part", x, 1, 0, 10)})
        EXPECT_FALSE(reshaped_from(*none.operation())) << none.name();
}

TEST(Views, SlicesAndPermutationsHaveWhatTheySay) {
    const Numbers shape{4, 6, 5};
    const Tensor x = input("x", f32, {4, 6, 5});
    const std::vector<HostArray> got = interpret_plain(
        {slice("a", x, 1, 2, 5), slice("b", x, 2, -2, 5), slice("c", x, 0, 1, -1), permute("d", x, {2, 0, 1})},
        counted(shape));
    auto place = [](int64_t i, int64_t j, int64_t k) { return static_cast<double>((i * 6 + j) * 5 + k); };
    Numbers at(3);
    ASSERT_EQ(got[0].shape, (Numbers{4, 3, 5}));
    ASSERT_EQ(got[1].shape, (Numbers{4, 6, 2}));
    ASSERT_EQ(got[2].shape, (Numbers{2, 6, 5}));
    ASSERT_EQ(got[3].shape, (Numbers{5, 4, 6}));
    do EXPECT_EQ(got[0].at(at).real, place(at[0], at[1] + 2, at[2]));
    while (advance(at, got[0].shape));
    do EXPECT_EQ(got[1].at(at).real, place(at[0], at[1], at[2] + 3));
    while (advance(at, got[1].shape));
    do EXPECT_EQ(got[2].at(at).real, place(at[0] + 1, at[1], at[2]));
    while (advance(at, got[2].shape));
    do EXPECT_EQ(got[3].at(at).real, place(at[1], at[2], at[0]));
    while (advance(at, got[3].shape));
}

TEST(Views, CountNegativeDimensionsFromTheLast) {
    const Tensor x = input("x", f32, {4, 6, 5});
    EXPECT_EQ(to_string(*slice("y", x, -1, 1, 3).operation()), to_string(*slice("y", x, 2, 1, 3).operation()));
    EXPECT_EQ(to_string(*permute("y", x, {-1, 0, -2}).operation()), to_string(*permute("y", x, {2, 0, 1}).operation()));
    EXPECT_ERROR(slice("y", x, -4, 0, 1), "there is no dimension -4");
}

TEST(Views, RefuseWhatDoesNotFit) {
    const Tensor x = input("x", f32, {4, 6});
    EXPECT_ERROR(reshape("y", x, {5, 5}), "reshape of 'x' [4, 6] to [5, 5]: there are 24 elements, not 25");
    EXPECT_ERROR(reshape("y", x, {5, -1}), "there are 24 elements, not a multiple of 5");
    EXPECT_ERROR(reshape("y", x, {-1, -1}), "extents are positive, but for one that may be -1");
    EXPECT_ERROR(reshape("y", x, {0, 24}), "extents are positive, but for one that may be -1");
    EXPECT_ERROR(reshape("y", input("n", f32, {size("n", {}), 2}), {2, -1}),
                 "reshape of 'n': it has the shape [n, 2]; only numbers can be put together anew");
    EXPECT_ERROR(slice("y", x, 2, 0, 1), "slice of 'x' [4, 6]: there is no dimension 2");
    EXPECT_ERROR(slice("y", x, 0, 3, 3),
                 "slice of 'x' [4, 6]: from 3 to 3 along dimension 0; write 0 <= begin < end <= 4");
    EXPECT_ERROR(slice("y", x, 1, 0, 7), "slice of 'x' [4, 6]: from 0 to 7 along dimension 1");
    EXPECT_ERROR(slice("y", input("n", f32, {size("n", {}), 2}), 0, 0, 1),
                 "dimension 0 is a named size; slice one that is");
    EXPECT_ERROR(permute("y", x, {0, 0}),
                 "permute of 'x' [4, 6] by [0, 0]: name each of its dimensions, from 0 on, once");
    EXPECT_ERROR(permute("y", x, {0}), "permute of 'x' [4, 6] by [0]");
}

}  // namespace
}  // namespace tw::schedules
