// From schedules to the program of a thread, executed and compared with the plain computation.
#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "codegen/lower.h"
#include "codegen/thread_ir/thread_walk.h"
#include "dsl/schedule.h"
#include "run_threads.h"

namespace tw::codegen {
namespace {

std::vector<double> small_integers(size_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::uniform_int_distribution<int> value(-3, 3);
    std::vector<double> result(count);
    for (double& x : result) x = value(random);
    return result;
}

std::vector<double> not_computed(size_t count) { return std::vector<double>(count, std::nan("")); }

struct Outcome {
    std::string text;
    std::vector<std::string> notes;

    bool has_note(const std::string& part) const {
        return std::any_of(notes.begin(), notes.end(), [&](const std::string& n) { return n.find(part) != n.npos; });
    }
    int count(const std::string& part) const {
        int n = 0;
        for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
        return n;
    }
};

/// All kernels of the schedule in order.
Outcome execute(const Schedule& s, Machine& machine, const Target& target) {
    Outcome result;
    Tree tree = s.tree();
    for (const Nest& nest : tree.nests) {
        ThreadKernel kernel = lower_to_threads(tree, nest, target, {}, result.notes);
        verify_thread_ir(kernel);
        result.text += to_string(kernel);
        for (const Buffer& buffer : kernel.arguments) {
            size_t count = 1;
            for (const Expr& e : buffer->shape) count *= as_constant(e).value_or(1);
            machine.memory.try_emplace(buffer->name, not_computed(count));
        }
        run_threads(kernel, machine);
    }
    return result;
}

Outcome execute(const Schedule& s, Machine& machine) { return execute(s, machine, s.target()); }

struct Product {
    int64_t m, n, k;
    Tensor a, b, c;
    Axis axis;

    Product(int64_t m, int64_t n, int64_t k) : m(m), n(n), k(k), axis(reduce_axis("k", k)) {
        a = input("a", f32, {m, k});
        b = input("b", f32, {k, n});
        c = compute("c", {m, n}, [&](Expr i, Expr j) { return sum(a(i, axis) * b(axis, j), axis); });
    }

    Machine machine() const {
        Machine result;
        result.memory["a"] = small_integers(m * k, 1);
        result.memory["b"] = small_integers(k * n, 2);
        result.memory["c"] = not_computed(m * n);
        return result;
    }

    void check(const Machine& machine) const {
        const auto &a = machine.memory.at("a"), &b = machine.memory.at("b"), &c = machine.memory.at("c");
        for (int64_t i = 0; i < m; ++i)
            for (int64_t j = 0; j < n; ++j) {
                double expected = 0;
                for (int64_t l = 0; l < k; ++l) expected += a[i * k + l] * b[l * n + j];
                ASSERT_EQ(c[i * n + j], expected) << i << ", " << j;
            }
    }
};

struct Tiles {
    int64_t tile, part, step;
};

/// Tiles of the result on blocks, parts of them on threads, operands staged.
Schedule tiled(const Product& p, Tiles t) {
    Schedule s({p.c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(p.c);
    auto [bi, it] = s.split(i, t.tile, Tail::Mask);
    auto [bj, jt] = s.split(j, t.tile, Tail::Mask);
    auto [ti, ri] = s.split(it, t.part);
    auto [tj, rj] = s.split(jt, t.part);
    auto [ko, ki] = s.split(s.reduce(p.c), t.step, Tail::Mask);
    s.order({bi, bj, ti, tj, ko, ki, ri, rj});
    s.bind(bi, grid.y);
    s.bind(bj, grid.x);
    s.bind(ti, tw::thread);
    s.bind(tj, tw::thread);
    s.stage(p.c, p.a, Memory::Shared, ko);
    s.stage(p.c, p.b, Memory::Shared, ko);
    return s;
}

TEST(Front, TiledProduct) {
    Product p(256, 128, 32);
    Machine machine = p.machine();
    Outcome r = execute(tiled(p, {128, 8, 16}), machine);
    p.check(machine);
    EXPECT_EQ(r.count(" wide"), 5) << r.text;  // a and b from global, a and b from shared, c to global
    EXPECT_EQ(r.count("if "), 0) << r.text;
    EXPECT_TRUE(r.has_note("wavefronts of shared memory"));
}

TEST(Front, RaggedProduct) {
    for (auto [m, n, k] : {std::tuple{100, 52, 20}, {33, 31, 7}, {1, 1, 1}, {65, 64, 18}}) {
        Product p(m, n, k);
        Machine machine = p.machine();
        Outcome r = execute(tiled(p, {32, 4, 8}), machine);
        p.check(machine);
    }
}

TEST(Front, RaggedRowsOfFourKeepWideAccesses) {
    Product p(50, 52, 20);
    Machine machine = p.machine();
    Outcome r = execute(tiled(p, {32, 4, 8}), machine);
    p.check(machine);
    EXPECT_EQ(r.count(" wide"), 6) << r.text;
    EXPECT_TRUE(r.has_note("zeros where not")) << r.text;
}

// Columns 48 to 63 of the tile belong to whole threads: none of their four elements asks on its own.
TEST(Front, ConditionsThatNeighboursShareAreAskedOnce) {
    Product p(64, 48, 20);
    Machine machine = p.machine();
    Outcome r = execute(tiled(p, {64, 4, 8}), machine);
    p.check(machine);
    EXPECT_NE(r.text.find("j_inner_outer < 12"), r.text.npos) << r.text;
    EXPECT_EQ(r.text.find("j_inner_inner < 48"), r.text.npos) << r.text;
}

TEST(Front, OddRowsSayWhyTheyAreNarrow) {
    Product p(32, 33, 16);
    Machine machine = p.machine();
    Outcome r = execute(tiled(p, {32, 4, 8}), machine);
    p.check(machine);
    EXPECT_TRUE(r.has_note("which is only 4-byte aligned"));
}

TEST(Front, NothingScheduled) {
    Product p(20, 12, 9);
    Machine machine = p.machine();
    execute(Schedule({p.c}, target("sm_90a")), machine);
    p.check(machine);
}

struct Pointwise {
    int64_t m, n;
    Tensor x, y, z;
    Pointwise(int64_t m, int64_t n) : m(m), n(n) {
        x = input("x", f32, {m, n});
        y = input("y", f32, {n});
        z = compute("z", {m, n}, [&](Expr i, Expr j) { return relu(x(i, j) + y(j)); });
    }
    Machine machine() const {
        Machine result;
        result.memory["x"] = small_integers(m * n, 3);
        result.memory["y"] = small_integers(n, 4);
        return result;
    }
    void check(const Machine& machine) const {
        for (int64_t i = 0; i < m; ++i)
            for (int64_t j = 0; j < n; ++j)
                ASSERT_EQ(machine.memory.at("z")[i * n + j],
                          std::max(machine.memory.at("x")[i * n + j] + machine.memory.at("y")[j], 0.0));
    }
};

// Only the first of four threads has an element to copy; zeros from the others would hide it.
TEST(Front, ZerosDoNotHideElements) {
    for (bool threads : {true, false}) {
        Product p(12, 1, 32);
        Schedule s({p.c}, target("sm_90a"));
        auto [i, j] = s.loops<2>(p.c);
        s.stage(p.c, p.a, Memory::Shared, j);
        Stage b_shared = s.stage(p.c, p.b, Memory::Shared, s.reduce(p.c));
        s.split(i, 13, Tail::Mask);
        auto [outer, inner] = s.split(s.data_loops(b_shared)[1], 4, Tail::Mask);
        if (threads) s.bind(inner, tw::thread);
        Machine machine = p.machine();
        execute(s, machine);
        p.check(machine);
    }
}

// Neither do those of iterations that store nothing behind one that does, where the reader stands outside of the loop.
TEST(Front, ZerosDoNotHideWhatOtherIterationsStored) {
    Tensor x = input("x", f32, {5, 3}), w = input("w", f32, {1, 3});
    Axis c = reduce_axis("c", 3);
    Tensor y = compute("y", {1, 5, 1}, [&](Expr, Expr p, Expr q) { return sum(x(p, c) * w(q, c), c); });
    Schedule s({y}, target("sm_90a"));
    auto [h, p, q] = s.loops<3>(y);
    s.split(q, 8, Tail::Mask);
    s.rfactor(y, s.split(s.reduce(y), 3)[0]);
    s.bind(p, tw::thread);
    s.at(y, p);
    s.split(h, 16, Tail::Mask);
    Machine machine;
    machine.memory["x"] = small_integers(15, 1);
    machine.memory["w"] = small_integers(3, 2);
    machine.memory["y"] = not_computed(5);
    execute(s, machine);
    for (int64_t p = 0; p < 5; ++p) {
        double expected = 0;
        for (int64_t k = 0; k < 3; ++k) expected += machine.memory["x"][p * 3 + k] * machine.memory["w"][k];
        EXPECT_EQ(machine.memory["y"][p], expected) << p;
    }
}

TEST(Front, LoopsEndWhereMasksDo) {
    Pointwise p(5, 64);
    Schedule s({p.z}, target("sm_90a"));
    auto [i, j] = s.loops<2>(p.z);
    s.split(i, 8, Tail::Mask);
    s.bind(j, tw::thread);
    Machine machine = p.machine();
    Outcome r = execute(s, machine);
    p.check(machine);
    EXPECT_EQ(r.count("if "), 0) << r.text;
    EXPECT_EQ(r.count("< 8"), 0) << r.text;
}

TEST(Front, ReduceLoopOutsideThreadLoops) {
    Product p(32, 32, 16);
    Schedule s({p.c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(p.c);
    auto [ti, ri] = s.split(i, 4);
    auto [tj, rj] = s.split(j, 4);
    auto [ko, ki] = s.split(s.reduce(p.c), 8);
    s.order({ko, ti, tj, ki, ri, rj});
    s.bind(ti, tw::thread);
    s.bind(tj, tw::thread);
    s.stage(p.c, p.a, Memory::Shared, ko);
    Machine machine = p.machine();
    Outcome r = execute(s, machine);
    p.check(machine);
    EXPECT_NE(r.text.find("declare f32 c_sum[4][4]"), r.text.npos) << r.text;
}

/// Loops that one step binds have one order for all leaves: what begins a reduction has those that share its terms
/// outside, its updates have them where they stand.
TEST(Front, LoopsBoundTogetherAreOneRadix) {
    Product p(48, 1, 320);
    for (const bool terms_first : {true, false}) {
        Schedule s({p.c}, target("sm_90a"));
        auto [i, j] = s.loops<2>(p.c);
        auto [block, row] = s.split(i, 16);
        auto [step, share] = s.split(s.reduce(p.c), 32);
        s.order({block, step, row, share, j});
        s.bind(block, grid.x);
        s.bind(terms_first ? std::vector{share, row} : std::vector{row, share}, tw::thread);
        std::vector<std::string> notes;
        const ThreadKernel kernel = lower_to_threads(s.tree(), s.tree().nests[0], s.target(), {}, notes);
        verify_thread_ir(kernel);
        EXPECT_EQ(kernel.threads, 512) << to_string(kernel);
    }
}

TEST(Front, WarpsAndLanes) {
    Product p(16, 64, 8);
    Schedule s({p.c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(p.c);
    auto [wi, ri] = s.split(i, 4);
    auto [jo, jl] = s.split(j, 32);
    s.order({wi, jo, jl, ri, s.reduce(p.c)});
    s.bind(wi, tw::warp);
    s.bind(jl, tw::lane);
    Machine machine = p.machine();
    Outcome r = execute(s, machine);
    p.check(machine);
    EXPECT_NE(r.text.find("128 threads"), r.text.npos) << r.text;
}

TEST(Front, PointwiseUnscheduled) {
    for (auto [m, n] : {std::pair{30, 64}, {7, 13}, {1, 1}, {3, 2}}) {
        Pointwise p(m, n);
        Machine machine = p.machine();
        execute(Schedule({p.z}, target("sm_90a")), machine);
        p.check(machine);
    }
}

TEST(Front, PointwiseWithVectors) {
    Pointwise p(6, 1000);
    Schedule s({p.z}, target("sm_90a"));
    auto [i, j] = s.loops<2>(p.z);
    auto [jo, jv] = s.split(j, 4);
    auto [jb, jt] = s.split(jo, 64, Tail::Mask);
    s.bind(i, grid.y);
    s.bind(jb, grid.x);
    s.bind(jt, tw::thread);
    s.bind(jv, tw::vector);
    Machine machine = p.machine();
    Outcome r = execute(s, machine);
    p.check(machine);
    EXPECT_EQ(r.count("4 wide"), 3) << r.text;
}

TEST(Front, Transpose) {
    int64_t m = 40, n = 48;
    Tensor x = input("x", f32, {m, n});
    Tensor y = compute("y", {n, m}, [&](Expr i, Expr j) { return x(j, i); });
    Schedule s({y}, target("sm_90a"));
    auto [i, j] = s.loops<2>(y);
    auto [bi, ii] = s.split(i, 16);
    auto [bj, ji] = s.split(j, 16, Tail::Mask);
    s.order({bi, bj, ii, ji});
    s.bind(bi, grid.x);
    s.bind(bj, grid.x);
    s.stage(y, x, Memory::Shared, bj);
    Machine machine;
    machine.memory["x"] = small_integers(m * n, 5);
    Outcome r = execute(s, machine);
    for (int64_t a = 0; a < n; ++a)
        for (int64_t b = 0; b < m; ++b) ASSERT_EQ(machine.memory["y"][a * m + b], machine.memory["x"][b * n + a]);
}

TEST(Front, TransposedOperand) {
    int64_t m = 32, n = 32, k = 16;
    Tensor a = input("a", f32, {k, m}), b = input("b", f32, {n, k});
    Axis l = reduce_axis("k", k);
    Tensor c = compute("c", {m, n}, [&](Expr i, Expr j) { return sum(a(l, i) * b(j, l), l); });
    Schedule s({c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(c);
    auto [ti, ri] = s.split(i, 4);
    auto [tj, rj] = s.split(j, 4);
    auto [ko, ki] = s.split(s.reduce(c), 8);
    s.order({ti, tj, ko, ki, ri, rj});
    s.bind(ti, tw::thread);
    s.bind(tj, tw::thread);
    s.stage(c, a, Memory::Shared, ko);
    s.stage(c, b, Memory::Shared, ko);
    Machine machine;
    machine.memory["a"] = small_integers(m * k, 6);
    machine.memory["b"] = small_integers(n * k, 7);
    Outcome r = execute(s, machine);
    for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
            double expected = 0;
            for (int64_t q = 0; q < k; ++q) expected += machine.memory["a"][q * m + i] * machine.memory["b"][j * k + q];
            ASSERT_EQ(machine.memory["c"][i * n + j], expected);
        }
}

TEST(Front, HalfPrecisionOperands) {
    int64_t m = 32, n = 32, k = 24;
    Tensor a = input("a", bf16, {m, k}), b = input("b", bf16, {k, n});
    Axis l = reduce_axis("k", k);
    Tensor c = compute("c", {m, n},
                       [&](Expr i, Expr j) { return cast(bf16, sum(cast(f32, a(i, l)) * cast(f32, b(l, j)), l)); });
    Schedule s({c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(c);
    auto [ti, ri] = s.split(i, 4);
    auto [tj, rj] = s.split(j, 8);
    auto [ko, ki] = s.split(s.reduce(c), 16, Tail::Mask);
    s.order({ti, tj, ko, ki, ri, rj});
    s.bind(ti, tw::thread);
    s.bind(tj, tw::thread);
    s.stage(c, a, Memory::Shared, ko);
    s.stage(c, b, Memory::Shared, ko);
    Machine machine;
    machine.memory["a"] = small_integers(m * k, 6);
    machine.memory["b"] = small_integers(n * k, 7);
    Outcome r = execute(s, machine);
    for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
            double expected = 0;
            for (int64_t q = 0; q < k; ++q) expected += machine.memory["a"][i * k + q] * machine.memory["b"][q * n + j];
            ASSERT_EQ(machine.memory["c"][i * n + j], expected);
        }
    EXPECT_GE(r.count("8 wide"), 3) << r.text;
}

/// A maximum is not discharged by zeros: all elements are negative.
TEST(Front, MaximumKeepsItsMask) {
    int64_t m = 8, n = 50;
    Tensor x = input("x", f32, {m, n});
    Axis l = reduce_axis("l", n);
    Tensor y = compute("y", {m}, [&](Expr i) { return reduce_max(x(i, l), l); });
    Schedule s({y}, target("sm_90a"));
    auto [i] = s.loops<1>(y);
    auto [lo, li] = s.split(s.reduce(y), 16, Tail::Mask);
    s.bind(i, tw::thread);
    s.stage(y, x, Memory::Shared, lo);
    Machine machine;
    machine.memory["x"] = small_integers(m * n, 8);
    for (double& v : machine.memory["x"]) v -= 10;
    execute(s, machine);
    for (int64_t i = 0; i < m; ++i) {
        double expected = -INFINITY;
        for (int64_t q = 0; q < n; ++q) expected = std::max(expected, machine.memory["x"][i * n + q]);
        ASSERT_EQ(machine.memory["y"][i], expected);
    }
}

/// A zero of one operand does not make the product zero if the other is not staged: 0 * infinity.
TEST(Front, HalfStagedProductKeepsItsMask) {
    Product p(16, 16, 10);
    Schedule s({p.c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(p.c);
    auto [ko, ki] = s.split(s.reduce(p.c), 4, Tail::Mask);
    s.order({i, j, ko, ki});
    s.bind(i, tw::thread);
    s.bind(j, tw::thread);
    s.stage(p.c, p.a, Memory::Shared, ko);
    Machine machine = p.machine();
    Outcome r = execute(s, machine);
    p.check(machine);
    EXPECT_FALSE(r.has_note("zeros where not"));
}

TEST(Front, SeveralStagesInOneKernel) {
    int64_t m = 16, n = 24;
    Tensor x = input("x", f32, {m, n});
    Axis l = reduce_axis("l", n);
    Tensor total = compute("total", {m}, [&](Expr i) { return sum(x(i, l), l); });
    Tensor y = compute("y", {m, n}, [&](Expr i, Expr j) { return x(i, j) - total(i); });
    for (Memory memory : {Memory::Shared, Memory::Auto}) {
        Schedule s({y}, target("sm_90a"));
        auto [i, j] = s.loops<2>(y);
        auto [bi, ii] = s.split(i, 4);
        s.bind(bi, grid.x);
        s.bind(j, tw::thread);
        s.order({bi, ii, j});
        s.at(total, ii);
        if (memory != Memory::Auto) s.set_memory(total, memory);
        Machine machine;
        machine.memory["x"] = small_integers(m * n, 9);
        execute(s, machine);
        for (int64_t r = 0; r < m; ++r) {
            double sum = 0;
            for (int64_t q = 0; q < n; ++q) sum += machine.memory["x"][r * n + q];
            for (int64_t q = 0; q < n; ++q)
                ASSERT_EQ(machine.memory["y"][r * n + q], machine.memory["x"][r * n + q] - sum);
        }
    }
}

TEST(Front, NamedSizes) {
    Expr rows = size("rows", {1, 1000, 1}), columns = size("columns", {4, 4096, 4});
    Tensor x = input("x", f32, {rows, columns});
    Tensor y = compute("y", {rows, columns}, [&](Expr i, Expr j) { return x(i, j) * 2.0; });
    Schedule s({y}, target("sm_90a"));
    auto [i, j] = s.loops<2>(y);
    auto [jo, ji] = s.split(j, 128, Tail::Mask);
    auto [jt, jv] = s.split(ji, 4);
    s.bind(i, grid.y);
    s.bind(jo, grid.x);
    s.bind(jt, tw::thread);
    Machine machine;
    machine.parameters = {{"rows", 5}, {"columns", 300}};
    machine.memory["x"] = small_integers(1500, 10);
    machine.memory["y"] = not_computed(1500);
    Outcome r = execute(s, machine);
    for (int64_t q = 0; q < 1500; ++q) ASSERT_EQ(machine.memory["y"][q], 2 * machine.memory["x"][q]);
    EXPECT_GE(r.count("4 wide"), 2) << r.text;
}

TEST(Front, Argmax) {
    int64_t m = 10, n = 17;
    Tensor x = input("x", f32, {m, n});
    Axis l = reduce_axis("l", n);
    auto outputs = compute_tuple("best", {m}, [&](const std::vector<Expr>& i) { return argmax(x(i[0], l), l); });
    Schedule s(outputs, target("sm_90a"));
    Machine machine;
    machine.memory["x"] = small_integers(m * n, 11);
    Outcome r = execute(s, machine);
    for (int64_t i = 0; i < m; ++i) {
        int64_t best = 0;
        for (int64_t q = 0; q < n; ++q)
            if (machine.memory["x"][i * n + q] > machine.memory["x"][i * n + best]) best = q;
        ASSERT_EQ(machine.memory["best_1"][i], static_cast<double>(best)) << r.text;
    }
}

TEST(Front, Padded) {
    int64_t n = 30;
    Tensor x = input("x", f32, {n});
    Axis t = reduce_axis("t", 3);
    Tensor y = compute("y", {n}, [&](Expr i) { return sum(padded(x, 0.0)(i + t - 1), t); });
    for (bool staged : {false, true}) {
        Schedule s({y}, target("sm_90a"));
        auto [i] = s.loops<1>(y);
        auto [b, v] = s.split(i, 8, Tail::Mask);
        s.bind(b, grid.x);
        s.bind(v, tw::thread);
        if (staged) s.stage(y, x, Memory::Shared, b);
        Machine machine;
        machine.memory["x"] = small_integers(n, 12);
        execute(s, machine);
        for (int64_t q = 0; q < n; ++q) {
            double expected = 0;
            for (int64_t d = -1; d <= 1; ++d)
                if (q + d >= 0 && q + d < n) expected += machine.memory["x"][q + d];
            ASSERT_EQ(machine.memory["y"][q], expected) << q;
        }
    }
}

}  // namespace
}  // namespace tw::codegen
