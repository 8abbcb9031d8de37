// Long text that unrolled loops would make of functions of registers: loops that move these instead.
#include <random>

#include <gtest/gtest.h>

#include "ops/program.h"
#include "ops/runner.h"
#include "schedules/tensor_product.h"

namespace tw::schedules {
namespace {

/// Some 25 instructions a step.
Expr long_function(Expr x, int steps) {
    for (int step = 0; step < steps; ++step) x = erf(x * 0.7 + 0.1 * (step + 1));
    return x;
}

bool moves_registers(const Schedule& s) { return build(s).cuda().find("int moved") != std::string::npos; }

void expect_right(const Schedule& s, const std::vector<Tensor>& outputs) {
    Runner runner(s, open_device("emulated"));
    runner.set(random_bindings(outputs, std::random_device()()));
    const CheckResult check = runner.check();
    EXPECT_TRUE(check.ok) << check.text;
}

/// Each thread has 64 elements of a row in registers.
Schedule rows(const std::vector<Tensor>& outputs, const Tensor& x) {
    Schedule s(outputs, target("sm_90a"));
    auto [i, j] = s.loops<2>(outputs[0]);
    auto [t, element] = s.split(j, 64, {"t", "element"});
    s.bind(i, grid.x);
    s.bind(t, thread);
    s.bind(element, unrolled);
    s.stage(outputs[0], x, Memory::Registers, t);
    return s;
}

TEST(ShiftRegisters, OfRowsThatThreadsHold) {
    const Tensor x = input("x", f32, {3, 2048});
    for (const int steps : {1, 6}) {
        const Tensor y = compute("y", {3, 2048}, [&](Expr i, Expr j) { return long_function(x(i, j), steps); });
        const Schedule s = rows({y}, x);
        EXPECT_EQ(moves_registers(s), steps == 6) << build(s).cuda();
        expect_right(s, {y});
    }
}

TEST(ShiftRegisters, NotWhereAnIterationReadsWhatAnotherDoes) {
    const Tensor x = input("x", f32, {3, 2048});
    const Tensor y = compute(
        "y", {3, 2048}, [&](Expr i, Expr j) { return long_function(x(i, j) + x(i, j / 64 * 64 + 63 - j % 64), 6); });
    const Schedule s = rows({y}, x);
    EXPECT_FALSE(moves_registers(s));
    expect_right(s, {y});
}

TEST(ShiftRegisters, OfSumsThatATensorCoreMade) {
    const Axis k = reduce_axis("k", 64);
    const Tensor a = input("a", bf16, {200, 64}), b = input("b", bf16, {328, 64}), bias = input("bias", bf16, {328});
    for (const bool staged : {false, true}) {
        const Tensor c = compute("c", {200, 328}, [&](Expr i, Expr j) {
            const Expr product = sum(cast(f32, a(i, k)) * cast(f32, b(j, k)), k);
            return cast(bf16, long_function(product * 0.1 + cast(f32, bias(j)), 5));
        });
        Schedule s({c}, target("sm_90a"));
        WarpgroupTiles tiles{.block_m = 128, .block_n = 192, .stages = 2, .stage_result = staged};
        if (staged) tiles.epilogue_columns = 64, tiles.store_boxes = true;
        schedule_tensor_product(s, c, a, b, tiles);
        EXPECT_TRUE(moves_registers(s)) << build(s).cuda();
        expect_right(s, {c});
    }
}

}  // namespace
}  // namespace tw::schedules
