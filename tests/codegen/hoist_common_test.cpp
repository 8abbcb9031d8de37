#include <cmath>
#include <random>

#include <gmock/gmock.h>

#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "tests/codegen/run_threads.h"
#include "thread_kernels.h"

namespace tw::codegen {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr int copies = 4, warp = 8;

/// y[thread, d] of four sums of a thread, of x and z, one element a thread each, and of v, one a copy.
struct Copies {
    ThreadKernel kernel = empty_kernel("copies", warp);
    Buffer x = make_buffer("x", f32, Memory::Global, {warp}), z = make_buffer("z", f32, Memory::Global, {warp}),
           v = make_buffer("v", f32, Memory::Global, {copies}),
           y = make_buffer("y", f32, Memory::Global, {warp * copies});
    Buffer sum = make_buffer("sum", f32, Memory::Registers, {copies}),
           held = make_buffer("held", f32, Memory::Registers, {copies});
    Expr d = index_variable("d", 0, copies - 1);

    Copies() {
        for (const Buffer& read : {x, z, v}) add_argument(kernel, read, false);
        add_argument(kernel, y, true);
    }
    Expr own(const Buffer& buffer) const { return load(buffer, {kernel.thread}); }
    Expr of_copy(const Buffer& buffer) const { return load(buffer, {d}); }
    Expr distance() const { return (own(x) - own(z)) * (own(x) - own(z)); }

    ThreadKernel with(std::vector<ThreadStmt> body) {
        const Expr first = index_variable("first", 0, copies - 1), last = index_variable("last", 0, copies - 1);
        kernel.body =
            in_order({declare(sum), declare(held),
                      unrolled(first, copies,
                               {store(sum, {first}, constant(f32, 0.0)),
                                store(held, {first}, cast(f32, first + kernel.thread))}),
                      unrolled(d, copies, std::move(body)),
                      unrolled(last, copies, {store(y, {kernel.thread * copies + last}, load(sum, {last}))})});
        verify_thread_ir(kernel);
        return kernel;
    }
    /// The loop, and what stands in front of it, behind the pass.
    std::string after(std::vector<ThreadStmt> body) {
        const ThreadKernel changed = hoist_common(with(std::move(body)));
        verify_thread_ir(changed);
        std::string text = to_string(changed.body);
        const std::string begin = "held[first] = cast(f32, first + thread)\n";
        text = text.substr(text.find(begin) + begin.size());
        return text.substr(0, text.find("unroll last"));
    }
    std::string after(const Expr& value) { return after({store(sum, {d}, value)}); }
};

TEST(HoistCommon, PartsOfTerms) {
    Copies c;
    EXPECT_EQ(c.after(c.of_copy(c.sum) + exp(c.distance()) * c.of_copy(c.v)),
              "let common_1 = exp((x[thread] - z[thread]) * (x[thread] - z[thread]))\n"
              "unroll d < 4\n"
              "  sum[d] = sum[d] + common_1 * v[d]\n");
}

TEST(HoistCommon, NamesInTheirOrder) {
    Copies c;
    auto named = [](const char* name) { return make_expr(f32, Variable{.name = name, .min = {}, .max = {}}); };
    const Expr a = named("a"), b = named("b"), e = named("e");
    EXPECT_EQ(c.after({let(a, c.own(c.x) - c.own(c.z)), let(b, a * c.of_copy(c.v)), let(e, a * a),
                       store(c.sum, {c.d}, b * e)}),
              "let a = x[thread] - z[thread]\n"
              "let e = a * a\n"
              "unroll d < 4\n"
              "  let b = a * v[d]\n"
              "  sum[d] = b * e\n");
}

/// What varies, what changes, what a condition may keep from being evaluated, and what saves next to nothing.
TEST(HoistCommon, NothingElse) {
    Copies c;
    auto stays = [&](const Expr& value) { EXPECT_THAT(c.after(value), StartsWith("unroll d < 4\n")); };
    stays(exp(c.of_copy(c.v)));
    stays(exp(load(c.sum, {integer(0)})));
    stays(select(c.of_copy(c.v) > 0.0, exp(c.distance()), 0.0));
    stays(c.own(c.x) * c.of_copy(c.v));
    Copies written;
    written.kernel.written[0] = true;
    EXPECT_THAT(written.after(exp(written.distance())), StartsWith("unroll d < 4\n"));
}

TEST(HoistCommon, OfRegistersThatTheLoopDoesNotChange) {
    Copies c;
    EXPECT_THAT(c.after(exp(load(c.held, {integer(1)})) * c.of_copy(c.v)), HasSubstr("let common_1 = exp(held[1])\n"));
}

/// Values of random expressions are those without the pass.
TEST(HoistCommon, ChangesNoResult) {
    std::mt19937 random(7);
    auto between = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
    int found = 0;
    for (int round = 0; round < 200; ++round) {
        Copies c;
        const std::function<Expr(int)> value = [&](int depth) -> Expr {
            const int kind = depth == 0 ? between(0, 4) : between(0, 8);
            if (kind == 0) return c.own(c.x);
            if (kind == 1) return c.own(c.z);
            if (kind == 2) return c.of_copy(between(0, 1) ? c.v : c.sum);
            if (kind == 3) return load(c.held, {integer(between(0, copies - 1))});
            if (kind == 4) return load(c.sum, {integer(between(0, copies - 1))});
            if (kind == 5) return select(value(depth - 1) < value(depth - 1), value(depth - 1), value(depth - 1));
            if (kind == 6) return max(value(depth - 1), value(depth - 1));
            return kind == 7 ? value(depth - 1) + value(depth - 1) : value(depth - 1) * value(depth - 1);
        };
        const ThreadKernel plain = c.with({store(c.sum, {c.d}, value(4)), store(c.sum, {c.d}, value(3))});
        const ThreadKernel changed = hoist_common(plain);
        verify_thread_ir(changed);
        Machine before, after;
        for (const char* name : {"x", "z", "v"})
            for (int n = 0; n < (name[0] == 'v' ? copies : warp); ++n)
                before.memory[name].push_back(static_cast<double>(between(-3, 3)));
        before.memory["y"].assign(warp * copies, std::nan(""));
        after = before;
        run_threads(plain, before);
        run_threads(changed, after);
        ASSERT_EQ(before.memory["y"], after.memory["y"]) << to_string(plain) << to_string(changed);
        found += to_string(changed) != to_string(plain);
    }
    EXPECT_GT(found, 40);
}

}  // namespace
}  // namespace tw::codegen
