// Named sizes: one compiled kernel serves every value within the bounds.
#include <fmt/format.h>

#include "codegen/thread_passes/thread_passes.h"
#include "ops/check.h"
#include "tests/ops/on_each_device.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

constexpr int64_t Sizes[] = {8, 104, 4096};  // the least, one between (no multiple of the tile), the most

/// y[i, j] = 2 x[i, j] + bias[j] and the sums of its rows, of n columns.
struct Problem {
    Expr n = size("n", {.min = 8, .max = 4096, .multiple_of = 8});
    Tensor x = input("x", f32, {5, n}), bias = input("bias", f32, {n});
    Tensor y = compute("y", {5, n}, [&](Expr i, Expr j) { return x(i, j) * 2.0 + bias(j); });
    Axis k = reduce_axis("k", n);
    Tensor total = compute("total", {5}, [&](Expr i) { return sum(y(i, k), k); });

    Schedule schedule(const Target& target) const {
        Schedule s({y, total}, target);
        auto [i, j] = s.loops<2>(y);
        auto [block, inside] = s.split(j, 64, Tail::Mask);
        auto [lane_of, element] = s.split(inside, 4);
        s.order({i, block, lane_of, element});
        s.bind(i, grid.y);
        s.bind(block, grid.x);
        s.bind(lane_of, thread);
        s.bind(element, tw::vector);
        return s;
    }

    /// Integers, so that every order of the sums is exact.
    Bindings bindings(int64_t columns) const {
        Bindings given{
            {{"x", host_array(f32, {5, columns})}, {"bias", host_array(f32, {columns})}}, {{"n", columns}}, {}};
        fill_integers(given.inputs["x"], -9, 9, columns);
        fill_integers(given.inputs["bias"], -9, 9, columns + 1);
        return given;
    }
};

class NamedSizes : public OnEachDevice {};
TW_ON_EACH_DEVICE(NamedSizes);

TEST_P(NamedSizes, OneExecutableServesThreeValues) {
    Problem problem;
    Executable executable(build(problem.schedule(device_target())), device_);
    std::vector<Kernel> before = executable.kernels();
    for (int64_t columns : Sizes) {
        SCOPED_TRACE(columns);
        expect_declared(executable, {problem.y, problem.total}, problem.bindings(columns));
    }
    for (size_t k = 0; k < before.size(); ++k) EXPECT_EQ(executable.kernels()[k].state(), before[k].state());
}

TEST(NamedSizesCompiled, OneCubinServesThreeValues) {
    Problem problem;
    std::shared_ptr<Device> device = open_device("null");
    std::unique_ptr<Executable> executable;
    try {
        executable = std::make_unique<Executable>(build(problem.schedule(target("sm_90a"))), device);
    } catch (const NvrtcMissing& missing) {
        GTEST_SKIP() << missing.what();
    }
    ASSERT_EQ(executable->kernels().size(), 2u);
    const std::string* cubin = &executable->kernels()[0].compiled()->cubin;
    for (int64_t columns : Sizes) {
        Arguments arguments{.buffers = {{"x", device->allocate(5 * columns * 4)},
                                        {"bias", device->allocate(columns * 4)},
                                        {"y", device->allocate(5 * columns * 4)},
                                        {"total", device->allocate(5 * 4)}},
                            .sizes = {{"n", columns}},
                            .scalars = {}};
        executable->bind(arguments);
        EXPECT_EQ(executable->launches()[0].shape().grid, (Dim3{(columns + 63) / 64, 5, 1}));
        EXPECT_EQ(&executable->launches()[0].kernel().compiled()->cubin, cubin);
    }
}

TEST(NamedSizesErrors, ValuesOutOfTheirBounds) {
    Problem problem;
    Executable executable(build(problem.schedule(target("sm_90a"))), open_device("emulated"));
    EXPECT_ERROR(run_on(executable, problem.bindings(4104)), "size 'n' is 4104, but is at most 4096");
    EXPECT_ERROR(run_on(executable, problem.bindings(12)), "size 'n' is 12, but is a multiple of 8");
    Bindings without = problem.bindings(8);
    without.sizes.clear();
    EXPECT_ERROR(run_on(executable, without), "size 'n' has no value");
}

/// As large as a declaration allows, tensors may leave 64 bits: it knows how small sizes are, a launch how large.
TEST(NamedSizesErrors, BytesBeyondAddresses) {
    Expr n = size("n", {.min = 1, .max = int64_t{1} << 40});
    Tensor y = compute("y", {n, n}, [](Expr i, Expr j) { return cast(f32, i + j); });
    Tensor all = compute("all", {1}, [&](Expr i) { return padded(y, 0.0)(i, i); });
    auto run = [&](const Tensor& output, int64_t value) {
        Executable executable(build(Schedule({output}, target("sm_90a"))), open_device("emulated"));
        return run_on(executable, Bindings{{}, {{"n", value}}, {}});
    };
    EXPECT_EQ(run(y, 5)[0].at({2, 4}).real, 6);
    for (int bits : {31, 32, 33, 40}) {
        int64_t value = int64_t{1} << bits;
        EXPECT_ERROR(run(y, value), fmt::format("launch: 'y' of shape [{}, {}] takes", value, value));
        EXPECT_ERROR(run(all, value), "but addresses end at 2^63; bind smaller sizes");
    }
}

TEST(NamedSizesWidth, FollowsTheLargestValue) {
    auto parameter = [](int64_t max) {
        Expr n = size("n", {.min = 0, .max = max});
        Tensor x = input("x", f32, {n});
        Tensor y = compute("y", {n}, [&](Expr i) { return x(i) * 2.0; });
        Program program = build(Schedule({y}, target("sm_90a")));
        return codegen::argument_type(program.kernels().at(0).sizes.at(0));
    };
    EXPECT_EQ(parameter(1000), i32);
    EXPECT_EQ(parameter(int64_t{1} << 33), i64);
}

}  // namespace
}  // namespace tw
