#include <array>
#include <cmath>
#include <functional>
#include <random>

#include <gmock/gmock.h>

#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "tests/codegen/run_threads.h"
#include "thread_kernels.h"

namespace tw::codegen {
namespace {

using testing::HasSubstr;

constexpr int num_elements = 8;
constexpr double reciprocal_sqrt2 = 0.70710678118654752440;

/// y[thread] of x[thread].
struct OneElement {
    ThreadKernel kernel = empty_kernel("one_element", num_elements);
    Buffer from = make_buffer("x", f32, Memory::Global, {num_elements}),
           to = make_buffer("y", f32, Memory::Global, {num_elements});
    Expr x = load(from, {kernel.thread});

    OneElement() {
        add_argument(kernel, from, false);
        add_argument(kernel, to, true);
    }
    ThreadKernel with(const Expr& value) {
        kernel.body = store(to, {kernel.thread}, value);
        verify_thread_ir(kernel);
        return kernel;
    }
    std::string after(const Expr& value) { return to_string(choose_functions(with(value)).body); }
};

TEST(ChooseFunctions, OnePlusErfIsTheNormalDistributions) {
    OneElement e;
    const Expr sum = 1 + erf(e.x * reciprocal_sqrt2);
    EXPECT_THAT(e.after(e.x * 0.5 * sum), HasSubstr("= x[thread] * normal_cdf(x[thread])"));
    EXPECT_THAT(e.after(e.x * (0.5 * sum)), HasSubstr("= x[thread] * normal_cdf(x[thread])"));
    EXPECT_THAT(e.after(sum * 0.5), HasSubstr("= normal_cdf(x[thread])"));
    EXPECT_THAT(e.after(sum * e.x * 0.5), HasSubstr("= normal_cdf(x[thread]) * x[thread]"));
    EXPECT_THAT(e.after(sum), HasSubstr("= 2.0 * normal_cdf(x[thread])"));
    EXPECT_THAT(e.after(erf(e.x) + 1), HasSubstr("normal_cdf(x[thread] * 1.41421"));
    EXPECT_THAT(e.after(2 + erf(e.x)), HasSubstr("2.0 + erf(x[thread])"));
}

/// Values of random expressions are those without the pass.
TEST(ChooseFunctions, ChangesNoResult) {
    std::mt19937 random(static_cast<unsigned>(std::random_device()()));
    auto between = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
    int found = 0;
    for (int round = 0; round < 300; ++round) {
        OneElement e;
        const std::function<Expr(int)> value = [&](int depth) -> Expr {
            if (depth == 0) return e.x;
            const double factor = std::array{0.5, 2.0, -0.25, reciprocal_sqrt2}[static_cast<size_t>(between(0, 3))];
            const int kind = between(0, 7);
            if (kind == 0) return e.x;
            if (kind == 1) return 1 + erf(value(depth - 1));
            if (kind == 2) return erf(value(depth - 1) * factor) + 1;
            if (kind == 3) return value(depth - 1) * factor;
            if (kind == 4) return factor * value(depth - 1);
            if (kind == 5) return sigmoid(value(depth - 1) * factor);
            return value(depth - 1) * value(depth - 1);
        };
        const ThreadKernel plain = e.with(value(4)), changed = choose_functions(plain);
        verify_thread_ir(changed);
        Machine before, after;
        for (int n = 0; n < num_elements; ++n)
            before.memory["x"].push_back(std::uniform_real_distribution<double>(-1, 1)(random));
        before.memory["y"].assign(num_elements, std::nan(""));
        after = before;
        run_threads(plain, before);
        run_threads(changed, after);
        for (int n = 0; n < num_elements; ++n) {
            const double expected = before.memory["y"][static_cast<size_t>(n)];
            ASSERT_NEAR(after.memory["y"][static_cast<size_t>(n)], expected, 3e-6)
                << to_string(plain.body) << to_string(changed.body);
        }
        found += to_string(changed.body).find("normal_cdf") != std::string::npos;
    }
    EXPECT_GT(found, 50);
}

}  // namespace
}  // namespace tw::codegen
