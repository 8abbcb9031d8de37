// Running on host data: in place, empty extents, strides, scalars of every type.
#include "ops/check.h"
#include "tests/ops/on_each_device.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

/// Integers: exact in every order, and with or without fused multiply-adds.
HostArray random_array(Type type, const std::vector<int64_t>& shape, const std::vector<int64_t>& strides = {}) {
    HostArray array = host_array(type, shape, strides);
    fill_poison(array);  // also the gaps, which nobody may read
    fill_integers(array, -9, 9, 7);
    return array;
}

/// Spreads the flattened elements of `y` over blocks of 32 threads.
Schedule spread_over_threads(const std::vector<Tensor>& outputs, const Tensor& y, const Target& target) {
    Schedule s(outputs, target);
    auto [block, lane_of] = s.split(s.fuse(s.data_loops(y)), 32, Tail::Mask);
    s.bind(block, grid.x);
    s.bind(lane_of, thread);
    return s;
}

class RunOn : public OnEachDevice {};
TW_ON_EACH_DEVICE(RunOn);

TEST_P(RunOn, AnOutputOverwritesItsInput) {
    Tensor x = input("x", f32, {6, 13}), w = input("w", f32, {13});
    Tensor y = compute("y", {6, 13}, [&](Expr i, Expr j) { return x(i, j) * 3.0 + w(j); });
    Schedule s = spread_over_threads({y}, y, device_target());
    s.in_place(y, x);
    expect_declared(s, {{{"x", random_array(f32, {6, 13})}, {"w", random_array(f32, {13})}}, {}, {}});
}

TEST_P(RunOn, OverwritingTwiceAppliesItTwice) {
    Tensor x = input("x", f32, {40});
    Tensor y = compute("y", {40}, [&](Expr i) { return x(i) * 2.0; });
    Schedule s = spread_over_threads({y}, y, device_target());
    s.in_place(y, x);
    Executable executable(build(s), device_);
    Buffer memory = device_->allocate(40 * 4, "memory");
    memory.write(std::vector<float>(40, 1.25f));
    executable.bind({.buffers = {{"x", memory}}, .sizes = {}, .scalars = {}});
    executable.run();
    executable.run();
    device_->synchronize();
    EXPECT_EQ(memory.read<float>(), std::vector<float>(40, 5.0f));
}

// What stands left of && and || decides whether the right side is read at all: beside the tensor, and in tiles that
// stand out of it.
TEST_P(RunOn, FlagsBehindConditions) {
    for (int64_t columns : {8, 40, 64}) {
        Tensor flag = input("flag", boolean, {33, columns}), x = input("x", i32, {33, columns});
        Tensor y = compute("y", {33, columns}, [&](Expr i, Expr j) {
            return (padded(flag, false)(i - 4, j) && x(i, j) > 0) || padded(flag, true)(i, j + 4);
        });
        Tensor count = compute("count", {33}, [&](Expr i) {
            Axis r = reduce_axis("r", columns);
            return sum(select(flag(i, r), x(i, r), i - r), r);
        });
        Bindings bindings = random_bindings({y, count}, 3);
        expect_declared(Schedule({y}, device_target()), bindings);
        expect_declared(spread_over_threads({y}, y, device_target()), bindings);
        Schedule s({count}, device_target());
        auto [block, row] = s.split(s.data_loops(count)[0], 4, Tail::Mask);
        s.stage(count, flag, Memory::Shared, block);
        expect_declared(s, bindings);
    }
}

TEST_P(RunOn, EmptyExtents) {
    Tensor x = input("x", f32, {5, 0});
    Axis k = reduce_axis("k", 0);
    Tensor total = compute("total", {5}, [&](Expr i) { return sum(x(i, k), k) + 2.0; });
    Tensor largest = compute("largest", {5}, [&](Expr i) { return reduce_max(x(i, k), k); });
    Tensor nothing = compute("nothing", {5, 0}, [&](Expr i, Expr j) { return x(i, j) * 2.0; });
    Schedule s({total, largest, nothing}, device_target());
    expect_declared(s, {{{"x", random_array(f32, {5, 0})}}, {}, {}});
}

TEST_P(RunOn, AnEmptyNamedSizeLaunchesNothing) {
    Expr n = size("n", {.min = 0, .max = 100});
    Tensor x = input("x", f32, {n});
    Tensor y = compute("y", {n}, [&](Expr i) { return x(i) + 1.0; });
    Executable executable(build(spread_over_threads({y}, y, device_target())), device_);
    for (int64_t count : {0, 1, 100}) {
        Bindings given{{{"x", random_array(f32, {count})}}, {{"n", count}}, {}};
        expect_declared(executable, {y}, given);
        EXPECT_EQ(executable.launches()[0].empty(), count == 0);
    }
}

TEST_P(RunOn, StridedInputs) {
    Expr n = size("n", {.min = 1, .max = 64}), stride = size("stride", {.min = 1, .max = 200});
    Tensor columns = input("columns", f32, {9, 7}, {1, 11});  // column-major, gaps between the columns
    Tensor rows = input("rows", f32, {n, 7}, {stride, 1});
    Tensor repeated = input("repeated", f32, {n, 7}, {0, 1});  // one row for all
    Axis k = reduce_axis("k", 7);
    Tensor y =
        compute("y", {n, 9}, [&](Expr i, Expr j) { return sum(rows(i, k) * columns(j, k) + repeated(i, k), k); });
    Schedule s({y}, device_target());
    auto [i, j] = s.loops<2>(y);
    auto [block, row] = s.split(i, 4, Tail::Mask);
    s.order({block, row, j});
    s.bind(block, grid.x);
    s.bind(row, thread);
    s.bind(j, thread);
    Bindings given{{{"columns", random_array(f32, {9, 7}, {1, 11})},
                    {"rows", random_array(f32, {10, 7}, {19, 1})},
                    {"repeated", random_array(f32, {10, 7}, {0, 1})}},
                   {{"n", 10}, {"stride", 19}},
                   {}};
    expect_declared(s, given);
}

TEST_P(RunOn, ScalarsOfEveryType) {
    Expr a = scalar("a", f32), b = scalar("b", f64), c = scalar("c", i32), d = scalar("d", u32), e = scalar("e", i64),
         flag = scalar("flag", boolean);
    Tensor x = input("x", f64, {33});
    Tensor y = compute("y", {33}, [&](Expr i) {
        Expr sum_of_all = x(i) + b + cast(f64, a) + cast(f64, c) + cast(f64, d) + cast(f64, e);
        return select(flag, sum_of_all, -sum_of_all);
    });
    Executable executable(build(spread_over_threads({y}, y, device_target())), device_);
    for (int64_t sign : {0, 1}) {
        // Each at a value that a detour over another type would change.
        Bindings given{{{"x", random_array(f64, {33})}}, {}, {}};
        given.scalars = {{"a", make_value(f32, 0.1)},
                         {"b", make_value(f64, 0.1)},
                         {"c", make_value(i32, int64_t{-2147483647})},
                         {"d", make_value(u32, int64_t{4294967295})},
                         {"e", make_value(i64, (int64_t{1} << 53) + 1)},
                         {"flag", make_value(boolean, sign)}};
        expect_declared(executable, {y}, given);
    }
}

/// A kernel between two others writes a workspace that no caller sees.
TEST_P(RunOn, WorkspacesBetweenKernels) {
    Tensor x = input("x", f32, {30});
    Tensor y = compute("y", {30}, [&](Expr i) { return x(i) * 2.0; });
    Tensor z = compute("z", {30}, [&](Expr i) { return y(29 - i) + y(i); });
    Executable executable(build(Schedule({z}, device_target())), device_);
    ASSERT_EQ(executable.kernels().size(), 2u);
    Bindings given{{{"x", random_array(f32, {30})}}, {}, {}};
    expect_declared(executable, {z}, given);
    expect_declared(executable, {z}, given);
}

TEST(RunOnErrors, InputsMustBeAsDeclared) {
    Tensor x = input("x", f32, {4, 3});
    Tensor y = compute("y", {4, 3}, [&](Expr i, Expr j) { return x(i, j) + 1.0; });
    Executable executable(build(Schedule({y}, target("sm_90a"))), open_device("emulated"));
    auto run = [&](std::map<std::string, HostArray> inputs) { run_on(executable, {std::move(inputs), {}, {}}); };
    EXPECT_ERROR(run({}), "input 'x' has no array");
    EXPECT_ERROR(run({{"x", host_array(f64, {4, 3})}}), "input 'x' is f64, but is declared as f32");
    EXPECT_ERROR(run({{"x", host_array(f32, {3, 4})}}), "input 'x' has shape [3, 4], but is declared as [4, 3]");
    EXPECT_ERROR(run({{"x", host_array(f32, {4, 3}, {1, 4})}}), "has strides [1, 4], but is declared with [3, 1]");
}

}  // namespace
}  // namespace tw
