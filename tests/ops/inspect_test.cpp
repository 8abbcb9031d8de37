#include "ops/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/program.h"
#include "schedules/catalog.h"
#include "tests/ops/plain_product.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// for (const auto& kernel : build(s).kernels()) reads what the loop keeps, not a Program that is gone.
static_assert(!std::is_reference_v<decltype(std::declval<Program>().kernels())>);
static_assert(!std::is_reference_v<decltype(std::declval<Program>().tree())>);
static_assert(std::is_reference_v<decltype(std::declval<const Program&>().kernels())>);

TEST(Inspect, TellsWhatAProductNeeds) {
    auto [a, b, c] = plain_product(64, 32, 48);
    Schedule s({c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(c);
    auto [bi, it] = s.split(i, 32);
    auto [ti, ri] = s.split(it, 4);
    auto [ko, ki] = s.split(s.reduce(c), 16);
    s.order({bi, ti, j, ko, ki, ri});
    s.bind(bi, grid.x);
    s.bind(ti, thread);
    s.bind(j, thread);
    s.stage(c, a, Memory::Shared, ko);

    Inspection got = inspect(s);
    EXPECT_EQ(got.formulas, to_string(*operations_of({c})[0]) + "\n" + to_string(*operations_of({c})[1]) + "\n" +
                                to_string(*operations_of({c})[2]) + "\n");
    EXPECT_EQ(got.nest, s.to_string());
    EXPECT_EQ(got.steps, s.trace_as_cpp());
    EXPECT_EQ(got.notes, build(s).notes());
    EXPECT_EQ(got.costs[0].cost.flops, 2.0 * 64 * 32 * 48);
    ASSERT_EQ(got.kernels.size(), 1u);
    const KernelInspection& kernel = got.kernels[0];
    EXPECT_EQ(kernel.name, build(s).kernels()[0].name);
    EXPECT_EQ(kernel.threads, 8 * 32);
    EXPECT_EQ(kernel.shared_bytes, build(s).kernels()[0].shared_bytes);
    EXPECT_GE(kernel.shared_bytes, 32 * 16 * 4);
    // Four sums; four elements of a on their way to shared memory, 16 bytes wide; two of them and one of b for fma.
    EXPECT_EQ(kernel.register_bytes, 4 * (4 + 4 + 2 + 1));
    EXPECT_THAT(kernel.shared_memory, HasSubstr("a_shared"));
    EXPECT_EQ(kernel.timeline, "");
    EXPECT_THAT(to_string(got), AllOf(HasSubstr(got.formulas), HasSubstr(got.nest), HasSubstr(kernel.shared_memory),
                                      HasSubstr(got.steps), HasSubstr(got.notes), HasSubstr("bytes in registers")));
}

TEST(Inspect, DrawsWhatRolesDo) {
    const auto* entry = schedules::find_kernel("gemm_bf16_512x512x512_tb_tile128x64x64g2s4rb");
    Inspection got = inspect(entry->make(target("sm_90a")));
    ASSERT_EQ(got.kernels.size(), 1u);
    EXPECT_THAT(got.kernels[0].timeline, AllOf(HasSubstr("math 1      |"), HasSubstr("load        |")));
    EXPECT_GT(got.kernels[0].timeline_cycles, 0);
    EXPECT_EQ(got.kernels[0].threads, 3 * 128);
    EXPECT_THAT(to_string(got), HasSubstr("Who waits for whom in " + got.kernels[0].name));
}

TEST(Inspect, RefusesWhatBuildRefuses) {
    Tensor a = input("a", bf16, {64, 64}), b = input("b", bf16, {64, 64});
    Axis k = reduce_axis("k", 64);
    Tensor c = compute("c", {64, 64}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, k)) * cast(f32, b(j, k)), k); });
    Schedule s({c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(c);
    auto [ko, ki] = s.split(s.reduce(c), 32);
    s.order({ko, i, j, ki});
    s.mma(c, wgmma, {.m = i, .n = j, .k = ki});
    EXPECT_ERROR(inspect(s), "shared memory");
}

}  // namespace
}  // namespace tw
