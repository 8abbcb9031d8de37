// Whether two sums over windows are one.
#include "schedules/window_sums.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace tw::schedules {
namespace {

/// sum of x[2 p_d + a_d + 1] w[2 a_d + offset_d], over axes a_d in an order of their own, none of which is an index.
WindowSum sum_of(const std::vector<int64_t>& extents, const std::vector<size_t>& order,
                 const std::vector<int64_t>& offsets) {
    static const Tensor x = input("x", bf16, {32, 32, 32}), w = input("w", bf16, {32, 32, 32});
    std::vector<Axis> axes, ordered;
    for (const int64_t extent : extents) axes.push_back(reduce_axis("a", extent));
    for (const size_t d : order) ordered.push_back(axes[d]);
    const Tensor y = compute("y", {5, 6, 7}, [&](const std::vector<Expr>& at) {
        std::vector<Operand> of_x, of_w;
        for (size_t d = 0; d < axes.size(); ++d) {
            of_x.emplace_back(at[d] * 2 + axes[d] + 1);
            of_w.emplace_back(axes[d] * 2 + offsets[d]);
        }
        return sum(cast(f32, x.read(of_x)) * cast(f32, w.read(of_w)), ordered);
    });
    return *window_sum(y, {y});
}

TEST(WindowSums, AreOneInAnyOrderOfTheirAxes) {
    for (const std::vector<int64_t>& extents : {std::vector<int64_t>{2, 3, 4}, {3, 3, 3}, {2, 2, 5}}) {
        const WindowSum sum = sum_of(extents, {0, 1, 2}, {0, 1, 0});
        std::vector<size_t> order{0, 1, 2};
        do {
            EXPECT_TRUE(is_same_sum(sum, sum_of(extents, order, {0, 1, 0})));
            EXPECT_TRUE(is_same_sum(sum_of(extents, order, {0, 1, 0}), sum));
            EXPECT_FALSE(is_same_sum(sum, sum_of(extents, order, {1, 0, 0})));
        } while (std::ranges::next_permutation(order).found);
        EXPECT_FALSE(is_same_sum(sum, sum_of({extents[0], extents[1], extents[2] + 1}, {0, 1, 2}, {0, 1, 0})));
    }
}

}  // namespace
}  // namespace tw::schedules
