#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "tests/codegen/run_threads.h"
#include "thread_kernels.h"

namespace tw::codegen {
namespace {

constexpr int outer = 4, inner = 2, threads = 8, elements = outer * inner;

/// Elements of two loops in registers, and numbers of the outer and of the inner one.
struct Nest {
    ThreadKernel kernel = empty_kernel("nest", threads);
    Buffer x = make_buffer("x", f32, Memory::Global, {threads * elements}),
           y = make_buffer("y", f32, Memory::Global, {threads * elements});
    Buffer sum = make_buffer("sum", f32, Memory::Registers, {elements}),
           rows = make_buffer("rows", f32, Memory::Registers, {outer}),
           halves = make_buffer("halves", f32, Memory::Registers, {inner});
    Expr i = index_variable("i", 0, outer - 1), j = index_variable("j", 0, inner - 1);

    Nest() {
        add_argument(kernel, x, false);
        add_argument(kernel, y, true);
    }

    Expr element() const { return i * inner + j; }
    Expr at(const Buffer& array, const Expr& index) const { return load(array, {index}); }

    /// The nest alone, behind the pass.
    std::string after(std::vector<ThreadStmt> body, ThreadKernel (*pass)(const ThreadKernel&)) {
        std::vector<ThreadStmt> all{declare(sum), declare(rows), declare(halves)};
        all.push_back(unrolled(i, outer, {unrolled(j, inner, std::move(body))}));
        kernel.body = in_order(std::move(all));
        verify_thread_ir(kernel);
        const ThreadKernel changed = pass(kernel);
        verify_thread_ir(changed);
        const std::string text = to_string(changed.body);
        return text.substr(text.find("halves[2]\n") + 10);
    }
    std::string hoisted(const Expr& value) { return after({store(sum, {element()}, value)}, hoist_values); }
};

TEST(HoistValues, ThatAConditionGuards) {
    Nest n;
    const Expr seen = n.at(n.rows, n.i) > 0.0;
    EXPECT_EQ(n.hoisted(select(seen, n.at(n.sum, n.element()) * (1.0 / n.at(n.halves, n.j)), 0.0)),
              "declare f32 halves_reciprocal[2]\n"
              "unroll j < 2\n  halves_reciprocal[j] = 1.0 / halves[j]\n"
              "unroll i < 4\n  unroll j < 2\n"
              "    sum[i * 2 + j] = select(0.0 < rows[i], sum[i * 2 + j] * halves_reciprocal[j], 0.0)\n");
}

TEST(HoistValues, OfFunctionsAnyhow) {
    Nest n;
    EXPECT_EQ(n.hoisted(n.at(n.sum, n.element()) * rsqrt(n.at(n.halves, n.j))),
              "declare f32 halves_function[2]\n"
              "unroll j < 2\n  halves_function[j] = rsqrt(halves[j])\n"
              "unroll i < 4\n  unroll j < 2\n    sum[i * 2 + j] = sum[i * 2 + j] * halves_function[j]\n");
}

/// What stays where it is.
TEST(HoistValues, NotWhatChangesOrIsNeededOnce) {
    Nest n;
    auto stays = [&](const Expr& value) {
        const std::string text = n.hoisted(value);
        return text.starts_with("unroll i < 4\n  unroll j < 2\n    sum");
    };
    const Expr sum = n.at(n.sum, n.element());
    EXPECT_TRUE(stays(select(sum > 0.0, 1.0 / sum, 0.0)));                    // of each element
    EXPECT_TRUE(stays(select(sum > 0.0, 1.0 / n.at(n.sum, n.j), 0.0)));       // of what the loops store
    EXPECT_TRUE(stays(select(sum > 0.0, 1.0 / n.at(n.x, n.j), 0.0)));         // of memory
    EXPECT_TRUE(stays(select(sum > 0.0, 1.0 / n.at(n.rows, n.i), 0.0)));      // twice
    EXPECT_TRUE(stays(select(n.j < 1, 1.0 / n.at(n.halves, n.j + 1), 0.0)));  // outside of the array
    EXPECT_TRUE(stays(sum * (1.0 / n.at(n.halves, n.j))));                    // compilers see it
}

TEST(SplitCasts, WhatUnrolledLoopsAdd) {
    Nest n;
    auto split = [&](const Expr& number) {
        const std::string text = n.after({store(n.sum, {n.element()}, cast(f32, number))}, split_casts);
        return text.substr(text.find("= ") + 2);
    };
    const Expr thread = n.kernel.thread;
    EXPECT_EQ(split(n.i * 8 + thread * 2 + n.j - 3), "cast(f32, thread * 2) + cast(f32, i * 8 + j - 3)\n");
    EXPECT_EQ(split(thread * 2 + 5), "cast(f32, thread * 2 + 5)\n");
    EXPECT_EQ(split(n.i * 2 + n.j), "cast(f32, i * 2 + j)\n");
    // 7 * 2396745 is above 2^24.
    EXPECT_EQ(split(n.i + thread * 2396745), "cast(f32, i + thread * 2396745)\n");
}

class RandomValues {
public:
    RandomValues(const Nest& nest, uint64_t seed) : n_(nest), random_(seed) {}

    Expr value(int depth) {
        if (depth == 0) return leaf();
        switch (pick(7)) {
            case 0: return value(depth - 1) + value(depth - 1);
            case 1: return value(depth - 1) * leaf();
            case 2: return select(leaf() > 0.0, value(depth - 1), value(depth - 1));
            case 3: return select(leaf() > leaf(), leaf() / leaf(), leaf());
            case 4: return sqrt(abs(leaf()) + 1.0);
            case 5: return select(leaf() > 0.0, 1.0 / value(depth - 1), leaf());
            default: return tanh(leaf());
        }
    }

    std::vector<ThreadStmt> body() {
        std::vector<ThreadStmt> all;
        for (int count = 1 + pick(2); count > 0; --count) switch (pick(4)) {
                case 0: all.push_back(store(n_.halves, {n_.j}, value(2))); break;
                case 1: all.push_back(store(n_.rows, {n_.i}, value(2))); break;
                default: all.push_back(store(n_.sum, {n_.element()}, value(3)));
            }
        return all;
    }

    int pick(int count) { return static_cast<int>(random_() % static_cast<uint64_t>(count)); }

private:
    Expr leaf() {
        switch (pick(6)) {
            case 0: return n_.at(n_.rows, n_.i);
            case 1: return n_.at(n_.halves, n_.j);
            case 2: return n_.at(n_.halves, 1 - n_.j);
            case 3: return cast(f32, n_.i * 8 + n_.j + n_.kernel.thread * 3 - 7);
            case 4: return constant(f32, 0.5 + pick(3));
            default: return n_.at(n_.sum, n_.element());
        }
    }

    const Nest& n_;
    std::mt19937_64 random_;
};

/// Whatever stands in the loops, the passes change no bit.
TEST(HoistValues, ChangesNoResult) {
    int hoisted = 0, split = 0;
    for (uint64_t seed = 0; seed < 300; ++seed) {
        Nest n;
        RandomValues random(n, seed);
        const Expr place = n.kernel.thread * elements;
        std::vector<ThreadStmt> all{declare(n.sum), declare(n.rows), declare(n.halves)};
        auto copied = [&](const Buffer& array, const Expr& index) {
            return store(array, {index}, load(n.x, {place + index}));
        };
        all.push_back(unrolled(n.i, outer, {unrolled(n.j, inner, {copied(n.sum, n.element())})}));
        all.push_back(unrolled(n.i, outer, {copied(n.rows, n.i)}));
        all.push_back(unrolled(n.j, inner, {copied(n.halves, n.j)}));
        all.push_back(unrolled(n.i, outer, {unrolled(n.j, inner, random.body())}));
        all.push_back(
            unrolled(n.i, outer,
                     {unrolled(n.j, inner,
                               {store(n.y, {place + n.element()},
                                      n.at(n.sum, n.element()) + n.at(n.rows, n.i) + n.at(n.halves, n.j))})}));
        n.kernel.body = in_order(std::move(all));
        const ThreadKernel apart = split_casts(n.kernel), changed = hoist_values(apart);
        verify_thread_ir(changed);
        split += to_string(apart) != to_string(n.kernel);
        hoisted += to_string(changed) != to_string(apart);
        Machine before, after;
        for (int k = 0; k < threads * elements; ++k)
            before.memory["x"].push_back(static_cast<double>(random.pick(4096) - 2048) / 256);
        before.memory["y"].assign(threads * elements, std::nan(""));
        after = before;
        run_threads(n.kernel, before);
        run_threads(changed, after);
        for (int k = 0; k < threads * elements; ++k) {
            const double expected = before.memory["y"][k], made = after.memory["y"][k];
            ASSERT_TRUE(expected == made || (std::isnan(expected) && std::isnan(made)))
                << "seed " << seed << "\n"
                << to_string(n.kernel) << to_string(changed);
        }
    }
    EXPECT_GT(hoisted, 30);
    EXPECT_GT(split, 100);
}

}  // namespace
}  // namespace tw::codegen
