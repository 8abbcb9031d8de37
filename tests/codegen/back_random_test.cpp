// Random schedules through the back half: joined reads, hoisting and narrowing change no result, and the barriers are
// those that are needed, no more.
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "codegen/barriers/insert_barriers.h"
#include "codegen/lower.h"
#include "codegen/print/print_cuda.h"
#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "dsl/schedule.h"
#include "races.h"
#include "run_threads.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

class Dice {
public:
    explicit Dice(unsigned seed) : random_(seed) {}
    int64_t upto(int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random_); }
    template <class T>
    T pick(const std::vector<T>& list) {
        return list[upto(static_cast<int64_t>(list.size()) - 1)];
    }
    template <class T>
    void shuffle(std::vector<T>& list) {
        std::shuffle(list.begin(), list.end(), random_);
    }

private:
    std::mt19937 random_;
};

/// A refused step changes nothing.
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
    attempt([&] {
        auto loops = s.all_loops(s[result]);
        dice.shuffle(loops);
        s.order(loops);
    });
    const std::vector<Level> levels{grid.x, grid.y, tw::thread, tw::thread, tw::thread, tw::unrolled, tw::vector};
    for (Loop loop : s.all_loops(s[result]))
        if (dice.upto(3)) attempt([&] { s.bind(loop, dice.pick(levels)); });
    for (const Tensor& operand : operands)
        if (dice.upto(3)) attempt([&] { s.stage(result, operand, Memory::Shared, dice.pick(s.all_loops(s[result]))); });
}

std::vector<double> random_integers(int64_t count, Dice& dice) {
    std::vector<double> values(count);
    for (double& v : values) v = static_cast<double>(dice.upto(6) - 3);
    return values;
}

void run(const ThreadKernel& kernel, Machine& machine) {
    for (const Buffer& buffer : kernel.arguments) {
        int64_t count = 1;
        for (const Expr& extent : buffer->shape) count *= require_constant(extent);
        machine.memory.try_emplace(buffer->name, std::vector<double>(count, std::nan("")));
    }
    run_threads(kernel, machine);
}

/// Barriers, and those without which the first block has no race: masks may leave iterations without an access.
int barriers = 0, superfluous = 0;

void check_barriers(const ThreadKernel& kernel) {
    ASSERT_EQ(find_race(kernel), "") << to_string(kernel);
    for (int n = 0; n < count_barriers(kernel); ++n) {
        ++barriers;
        superfluous += find_race(without_barrier(kernel, n)).empty();
    }
}

void check(const Schedule& s, Machine machine) {
    Tree tree = s.tree();
    std::vector<std::string> notes;
    Machine passed = machine;
    for (const Nest& nest : tree.nests) {
        ThreadKernel kernel = lower_to_threads(tree, nest, s.target(), {}, notes);
        run(kernel, machine);
        verify_thread_ir(kernel);
        ThreadKernel hoisted = hoist_invariants(join_reads(kernel));
        verify_thread_ir(hoisted);
        ThreadKernel synchronised = insert_barriers(hoisted);
        verify_thread_ir(synchronised);
        check_barriers(synchronised);
        ThreadKernel narrow = narrow_indices(synchronised);
        verify_thread_ir(narrow);
        try {
            run(narrow, passed);
        } catch (const std::exception& e) {
            FAIL() << e.what() << "\n" << to_string(kernel) << to_string(narrow);
        }
        for (const auto& [name, values] : machine.memory) ASSERT_EQ(values, passed.memory[name]) << to_string(narrow);
        print_cuda(narrow);
    }
}

class RandomBackHalf : public testing::TestWithParam<unsigned> {};

TEST_P(RandomBackHalf, Product) {
    Dice dice(GetParam());
    int64_t m = dice.upto(20) + 1, n = dice.upto(20) + 1, k = dice.upto(12) + 1;
    Tensor a = input("a", f32, {m, k}), b = input("b", f32, {k, n});
    Axis l = reduce_axis("k", k);
    Tensor c = compute("c", {m, n}, [&](Expr i, Expr j) { return sum(a(i, l) * b(l, j), l); });
    Schedule s({c}, target("sm_90a"));
    random_steps(s, c, {a, b}, dice);
    Machine machine;
    machine.memory = {{"a", random_integers(m * k, dice)}, {"b", random_integers(k * n, dice)}};
    machine.memory["c"] = std::vector<double>(m * n, 0);
    check(s, machine);
}

TEST_P(RandomBackHalf, RowMaximum) {
    Dice dice(GetParam() + 2000);
    int64_t m = dice.upto(10) + 1, n = dice.upto(20) + 1;
    Tensor x = input("x", f32, {m, n});
    Axis t = reduce_axis("t", n);
    Tensor most = compute("most", {m}, [&](Expr i) { return reduce_max(x(i, t), t); });
    Tensor y = compute("y", {m, n}, [&](Expr i, Expr j) { return x(i, j) - most(i); });
    Schedule s({y}, target("sm_90a"));
    random_steps(s, y, {x}, dice);
    attempt([&] { s.at(most, dice.pick(s.all_loops(s[y]))); });
    random_steps(s, most, {x}, dice);
    Machine machine;
    machine.memory["x"] = random_integers(m * n, dice);
    check(s, machine);
}

TEST_P(RandomBackHalf, Stencil) {
    Dice dice(GetParam() + 1000);
    int64_t m = dice.upto(10) + 1, n = dice.upto(20) + 1;
    Tensor x = input("x", f32, {m, n}), w = input("w", f32, {3});
    Axis t = reduce_axis("t", 3);
    Tensor y =
        compute("y", {n, m}, [&](Expr i, Expr j) { return sum(padded(x, 0.0)(j, i + t - 1) * w(t), t) - x(j, i); });
    Schedule s({y}, target("sm_90a"));
    random_steps(s, y, {x, w}, dice);
    Machine machine;
    machine.memory = {{"x", random_integers(m * n, dice)}, {"w", random_integers(3, dice)}};
    check(s, machine);
}

struct Summary : testing::Environment {
    void TearDown() override { EXPECT_LE(superfluous * 10, barriers) << "superfluous barriers"; }
};
[[maybe_unused]] const auto* summary = testing::AddGlobalTestEnvironment(new Summary);

INSTANTIATE_TEST_SUITE_P(Seeds, RandomBackHalf, testing::Range(0u, 25u));

}  // namespace
}  // namespace tw::codegen
