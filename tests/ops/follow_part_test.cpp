// A schedule of a part of a computation, taken as steps of one of the whole.
#include "dsl/follow_part.h"

#include <gmock/gmock.h>

#include "ops/check.h"
#include "tests/ops/random_cases.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

class FollowPart : public RandomCases {
protected:
    FollowPart() : RandomCases(314) {}
};
TW_ON_EACH_DEVICE(FollowPart);

Tensor product(const std::string& name, const Tensor& a, const Tensor& b) {
    const Axis k = reduce_axis("k", a.shape()[1]);
    return compute(name, {a.shape()[0], b.shape()[1]}, [&](Expr i, Expr j) { return sum(a(i, k) * b(k, j), k); });
}
Tensor row_sum(const Tensor& x) {
    const Axis k = reduce_axis("k", x.shape()[1]);
    return compute("total", {x.shape()[0]}, [&](Expr i) { return sum(x(i, k), k); });
}

/// Tiles of a product with copies, which make new stages and loops, and rows in parts behind it.
TEST_P(FollowPart, TakesStepsOfBothPartsOfAComputation) {
    for (unsigned round = 0; round < 4; ++round) {
        const int64_t m = between(5, 70), n = between(5, 70), l = between(3, 40);
        const Tensor a = input("a", f32, {m, l}), b = input("b", f32, {l, n}), c = product("c", a, b);
        const Tensor y = row_sum(c);

        Schedule tiles({c}, device_target());
        const auto [i, j] = tiles.loops<2>(c);
        const auto [io, ii] = tiles.split(i, 8, Tail::Mask);
        const auto [jo, ji] = tiles.split(j, 16, Tail::Mask);
        const auto [ko, ki] = tiles.split(tiles.reduce(c), 4, Tail::Mask);
        tiles.order({io, jo, ko, ii, ji, ki});
        tiles.bind(io, grid.x);
        tiles.bind(ji, thread);
        tiles.stage(c, a, Memory::Shared, ko);

        const Tensor given = input("given", f32, {m, n});
        Schedule rows({row_sum(given)}, device_target());
        const Tensor of_given = rows.outputs()[0];
        const Loop inside = rows.split(rows.reduce(of_given), 8, Tail::Mask)[1];
        rows.rfactor(of_given, inside);
        rows.bind(rows.loops<1>(of_given)[0], grid.x);

        Schedule whole({y}, device_target());
        follow_part(whole, rows, {y});
        follow_part(whole, tiles, {c});
        EXPECT_EQ(whole.trace().size(), tiles.trace().size() + rows.trace().size());
        expect_declared(whole, random_bindings({y}, round), near(64, 1e-5));
    }
}

TEST(FollowPartErrors, SayWhatDoesNotFit) {
    const Tensor a = input("a", f32, {8, 4}), b = input("b", f32, {4, 6}), c = product("c", a, b);
    const Target gpu = target("sm_90a");
    Schedule part({c}, gpu);
    part.bind(part.loops<2>(c)[0], grid.x);
    const Tensor y = row_sum(c);
    Schedule whole({y}, gpu);
    EXPECT_ERROR(follow_part(whole, part, {}), "follow_part: 0 results for a part that has 1; name one for each");
    EXPECT_ERROR(follow_part(whole, part, {Tensor()}), "follow_part: result 0 is an undefined tensor");
    EXPECT_ERROR(follow_part(whole, part, {y}), "follow_part: 'total' is not declared as 'c' of the part");
    EXPECT_ERROR(follow_part(whole, part, {product("d", a, b)}), "follow_part: 'd' is no stage of the schedule");
    whole.split(whole.loops<2>(c)[0], 2);
    EXPECT_ERROR(follow_part(whole, part, {c}), "follow_part: 'c' has been scheduled; take a part's steps before");
}

}  // namespace
}  // namespace tw
