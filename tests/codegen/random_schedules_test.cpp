// Random schedules of a product and of a small stencil against the plain computation: whatever the language accepts
// must lower to kernels that compute the same.
#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "codegen/barriers/insert_barriers.h"
#include "codegen/lower.h"
#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "dsl/schedule.h"
#include "run_threads.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

class Dice {
public:
    explicit Dice(unsigned seed) : random_(seed) {}
    int64_t upto(int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random_); }
    bool often() { return upto(3) != 0; }
    bool seldom() { return upto(3) == 0; }
    template <class T>
    T pick(std::vector<T> list) {
        return list[upto(static_cast<int64_t>(list.size()) - 1)];
    }
    template <class T>
    void shuffle(std::vector<T>& list) {
        std::shuffle(list.begin(), list.end(), random_);
    }

private:
    std::mt19937 random_;
};

/// Takes steps that may be refused; a refused step changes nothing.
template <class F>
void attempt(const F& step) {
    try {
        step();
    } catch (const Error&) {
    }
}

void random_steps(Schedule& s, const Tensor& result, const std::vector<Tensor>& operands, Dice& dice) {
    for (int n = 0; n < 4; ++n)
        attempt([&] { s.split(dice.pick(s.all_loops(s[result])), dice.pick<int64_t>({2, 3, 4, 8}), Tail::Mask); });
    if (dice.seldom())
        attempt([&] {
            auto loops = s.all_loops(s[result]);
            int64_t at = dice.upto(static_cast<int64_t>(loops.size()) - 2);
            s.fuse(loops[at], loops[at + 1]);
        });
    for (int n = 0; n < 3; ++n)
        attempt([&] {
            auto loops = s.all_loops(s[result]);
            dice.shuffle(loops);
            s.order(loops);
        });
    const std::vector<Level> levels{grid.x,     grid.y,     grid.x,       tw::thread,
                                    tw::thread, tw::thread, tw::unrolled, tw::vector};
    for (Loop loop : s.all_loops(s[result]))
        if (dice.often()) attempt([&] { s.bind(loop, dice.pick(levels)); });
    for (const Tensor& operand : operands)
        if (dice.often())
            attempt([&] {
                s.stage(result, operand, dice.pick<Memory>({Memory::Shared, Memory::Shared, Memory::Registers}),
                        dice.pick(s.all_loops(s[result])));
            });
}

std::vector<double> random_integers(size_t count, Dice& dice) {
    std::vector<double> values(count);
    for (double& v : values) v = static_cast<double>(dice.upto(6) - 3);
    return values;
}

/// Runs the schedule; returns the result, or says what went wrong.
std::vector<double> execute(const Schedule& s, Machine machine, const std::string& result) {
    Tree tree = s.tree();
    std::vector<std::string> notes;
    for (const Nest& nest : tree.nests) {
        ThreadKernel kernel = lower_to_threads(tree, nest, s.target(), {}, notes);
        verify_thread_ir(kernel);
        kernel = narrow_indices(insert_barriers(
            drop_aliases(hoist_invariants(name_values(hoist_values(split_casts(join_loops(drop_units(kernel)))))))));
        verify_thread_ir(kernel);
        for (const Buffer& buffer : kernel.arguments) {
            int64_t count = 1;
            for (const Expr& e : buffer->shape) count *= require_constant(e);
            machine.memory.try_emplace(buffer->name, std::vector<double>(count, std::nan("")));
        }
        try {
            run_threads(kernel, machine);
        } catch (const std::exception& e) {
            ADD_FAILURE() << e.what() << "\n" << s.to_string() << s.trace_as_cpp() << "\n" << to_string(kernel);
        }
    }
    return machine.memory.at(result);
}

class RandomSchedules : public testing::TestWithParam<unsigned> {};

TEST_P(RandomSchedules, Product) {
    Dice dice(GetParam());
    int64_t m = dice.upto(20) + 1, n = dice.upto(20) + 1, k = dice.upto(12) + 1;
    Tensor a = input("a", f32, {m, k}), b = input("b", f32, {k, n});
    Axis l = reduce_axis("k", k);
    Tensor c = compute("c", {m, n}, [&](Expr i, Expr j) { return sum(a(i, l) * b(l, j), l); });
    Schedule s({c}, target("sm_90a"));
    random_steps(s, c, {a, b}, dice);
    Machine machine;
    machine.memory["a"] = random_integers(m * k, dice);
    machine.memory["b"] = random_integers(k * n, dice);
    auto got = execute(s, machine, "c");
    const auto &x = machine.memory["a"], &y = machine.memory["b"];
    for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
            double expected = 0;
            for (int64_t q = 0; q < k; ++q) expected += x[i * k + q] * y[q * n + j];
            ASSERT_EQ(got[i * n + j], expected) << i << ", " << j << "\n" << s.to_string() << s.trace_as_cpp();
        }
}

/// Values used twice that read copies where conditions allow it: beside the copies is nothing.
TEST_P(RandomSchedules, ChosenElements) {
    Dice dice(GetParam() + 2000);
    int64_t n = dice.upto(30) + 1, k = dice.upto(6) + 1;
    Tensor x = input("x", f32, {n}), table = input("table", f32, {k}), ids = input("ids", i32, {n});
    Tensor y = compute("y", {n}, [&](Expr i) {
        Expr chosen = table(ids(i)) * 5.0 + 1.0, before = padded(x, 0.0)(i - 1) * 3.0 + 2.0;
        return select(ids(i) >= 0 && ids(i) < k, chosen * chosen * (chosen + 2.0) * chosen, 7.0) +
               select(i >= 1, before * before * (before + 1.0) * before, 9.0);
    });
    Schedule s({y}, target("sm_90a"));
    random_steps(s, y, {x, table}, dice);
    Machine machine;
    machine.memory["x"] = random_integers(n, dice);
    machine.memory["table"] = random_integers(k, dice);
    machine.unwritten_registers = true;
    machine.memory["ids"] = random_integers(n, dice);
    auto got = execute(s, machine, "y");
    for (int64_t i = 0; i < n; ++i) {
        auto id = static_cast<int64_t>(machine.memory["ids"][i]);
        double expected = 16;
        if (id >= 0 && id < k) {
            double chosen = machine.memory["table"][id] * 5 + 1;
            expected += chosen * chosen * (chosen + 2) * chosen - 7;
        }
        if (i >= 1) {
            double before = machine.memory["x"][i - 1] * 3 + 2;
            expected += before * before * (before + 1) * before - 9;
        }
        ASSERT_EQ(got[i], expected) << i << "\n" << s.to_string() << s.trace_as_cpp();
    }
}

TEST_P(RandomSchedules, Stencil) {
    Dice dice(GetParam() + 1000);
    int64_t m = dice.upto(10) + 1, n = dice.upto(20) + 1;
    Tensor x = input("x", f32, {m, n}), w = input("w", f32, {3});
    Axis t = reduce_axis("t", 3);
    Tensor y =
        compute("y", {n, m}, [&](Expr i, Expr j) { return sum(padded(x, 0.0)(j, i + t - 1) * w(t), t) - x(j, i); });
    Schedule s({y}, target("sm_90a"));
    random_steps(s, y, {x, w}, dice);
    Machine machine;
    machine.memory["x"] = random_integers(m * n, dice);
    machine.memory["w"] = random_integers(3, dice);
    auto got = execute(s, machine, "y");
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < m; ++j) {
            double expected = -machine.memory["x"][j * n + i];
            for (int64_t q = 0; q < 3; ++q)
                if (i + q - 1 >= 0 && i + q - 1 < n)
                    expected += machine.memory["x"][j * n + i + q - 1] * machine.memory["w"][q];
            ASSERT_EQ(got[i * m + j], expected) << i << ", " << j << "\n" << s.to_string() << s.trace_as_cpp();
        }
}

TEST_P(RandomSchedules, RowMaximum) {
    Dice dice(GetParam() + 2000);
    int64_t m = dice.upto(10) + 1, n = dice.upto(20) + 1;
    Tensor x = input("x", f32, {m, n});
    Axis t = reduce_axis("t", n);
    Tensor most = compute("most", {m}, [&](Expr i) { return reduce_max(x(i, t), t); });
    Tensor y = compute("y", {m, n}, [&](Expr i, Expr j) { return x(i, j) - most(i); });
    Schedule s({y}, target("sm_90a"));
    random_steps(s, y, {x}, dice);
    if (dice.often()) attempt([&] { s.at(most, dice.pick(s.all_loops(s[y]))); });
    random_steps(s, most, {x}, dice);
    Machine machine;
    machine.memory["x"] = random_integers(m * n, dice);
    for (double& v : machine.memory["x"]) v -= 9;
    auto got = execute(s, machine, "y");
    for (int64_t i = 0; i < m; ++i) {
        double expected = -INFINITY;
        for (int64_t q = 0; q < n; ++q) expected = std::max(expected, machine.memory["x"][i * n + q]);
        for (int64_t q = 0; q < n; ++q)
            ASSERT_EQ(got[i * n + q], machine.memory["x"][i * n + q] - expected) << i << ", " << q << "\n"
                                                                                 << s.to_string() << s.trace_as_cpp();
    }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomSchedules, testing::Range(0u, 60u));

}  // namespace
}  // namespace tw::codegen
