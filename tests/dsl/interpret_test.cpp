// Both interpreters, on declarations and trees made by hand.
#include "dsl/interpret.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dsl/schedule.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

Expr index_of(const std::string& name, int64_t extent) { return index_variable(name, 0, extent - 1); }

BufferRef buffer(const std::string& name, std::vector<Expr> shape, BufferNode::Role role, Type type = f32) {
    Memory memory = role == BufferNode::Role::Local ? Memory::Shared : Memory::Global;
    return std::make_shared<const BufferNode>(BufferNode{
        .name = name, .type = type, .memory = memory, .shape = std::move(shape), .strides = {}, .role = role});
}
Expr load(const BufferRef& from, std::vector<Expr> indices) {
    return make_expr(from->type, Load{from, std::move(indices)});
}
Stmt loop(const Expr& variable, const Expr& extent, Stmt body) {
    return make_stmt(For{variable, extent, Level::Serial, -1, -1, false, std::move(body)});
}
Stmt leaf(const BufferRef& to, std::vector<Expr> indices, const Expr& value, const Expr& mask = Expr(true)) {
    return make_stmt(Leaf{Leaf::Kind::Finish, 0, "stage_of_" + to->name, -1, {{to, std::move(indices), value}}, mask});
}
HostArray integers(Type type, const std::vector<int64_t>& shape, uint64_t seed = 1) {
    HostArray array = host_array(type, shape);
    fill_integers(array, -4, 4, seed);
    return array;
}
double at(const HostArray& array, const std::vector<int64_t>& indices) {
    Value value = array.at(indices);
    return is_float(value.type) ? value.real : static_cast<double>(value.integer);
}

// What a declaration means.

TEST(HostArrays, HaveNoOtherElements) {
    const HostArray array = host_array(f32, {2, 3});
    EXPECT_ERROR(array.at({1}),
                 "an array of shape [2, 3] has no element [1]; give an index from 0 on for each dimension");
    EXPECT_ERROR(array.at({1, 3}), "has no element [1, 3]");
    EXPECT_ERROR(array.at({-1, 0}), "has no element [-1, 0]");
}

TEST(InterpretPlain, MatrixProduct) {
    Tensor a = input("a", f32, {3, 5}), b = input("b", f32, {5, 2});
    Axis k = reduce_axis("k", 5);
    Expr alpha = scalar("alpha", f32);
    Tensor c = compute("c", {3, 2}, [&](Expr i, Expr j) { return alpha * sum(a(i, k) * b(k, j), k); });
    Bindings given{
        {{"a", integers(f32, {3, 5}, 1)}, {"b", integers(f32, {5, 2}, 2)}}, {}, {{"alpha", make_value(f32, 3.0)}}};
    HostArray result = interpret_plain({c}, given)[0];
    for (int64_t i = 0; i < 3; ++i)
        for (int64_t j = 0; j < 2; ++j) {
            double expected = 0;
            for (int64_t l = 0; l < 5; ++l) expected += at(given.inputs["a"], {i, l}) * at(given.inputs["b"], {l, j});
            EXPECT_EQ(at(result, {i, j}), 3 * expected);
        }
}

TEST(InterpretPlain, ReductionsNestAnywhere) {
    Tensor x = input("x", f32, {4, 6});
    Axis k = reduce_axis("k", 6), l = reduce_axis("l", 6);
    Tensor y = compute("y", {4}, [&](Expr i) {
        return sum(x(i, k) - reduce_max(x(i, l), l), k) + select(i < 2, reduce_min(x(i, l), l), 100.0);
    });
    Bindings given{{{"x", integers(f32, {4, 6})}}, {}, {}};
    HostArray result = interpret_plain({y}, given)[0];
    for (int64_t i = 0; i < 4; ++i) {
        double sum = 0, largest = -100, smallest = 100;
        for (int64_t j = 0; j < 6; ++j) {
            sum += at(given.inputs["x"], {i, j});
            largest = std::max(largest, at(given.inputs["x"], {i, j}));
            smallest = std::min(smallest, at(given.inputs["x"], {i, j}));
        }
        EXPECT_EQ(at(result, {i}), sum - 6 * largest + (i < 2 ? smallest : 100));
    }
}

TEST(InterpretPlain, TuplesAndEmptyReductions) {
    Tensor x = input("x", f32, {3, 4});
    Axis k = reduce_axis("k", 4), none = reduce_axis("none", 0);
    auto best = compute_tuple("best", {3}, [&](const std::vector<Expr>& i) { return argmax(x(i[0], k), k); });
    Tensor empty = compute("empty", {2}, [&](Expr) { return sum(select(none < 0, 1.0f, 2.0f), none) + 7.0f; });
    Tensor nothing = compute("nothing", {0}, [&](Expr) { return constant(f32, 1.0); });
    Bindings given{{{"x", host_array(f32, {3, 4})}}, {}, {}};
    given.inputs["x"].set({1, 2}, make_value(f32, 5.0));
    given.inputs["x"].set({1, 3}, make_value(f32, 5.0));
    auto results = interpret_plain({best[0], best[1], empty, nothing}, given);
    EXPECT_EQ(at(results[0], {1}), 5);
    EXPECT_EQ(at(results[1], {1}), 2);
    EXPECT_EQ(at(results[1], {0}), 0);
    EXPECT_EQ(at(results[2], {1}), 7);
    EXPECT_EQ(results[3].num_elements(), 0);
}

// A schedule may share the terms of a row among any number of partial results, each from the identity.
TEST(Interpret, NanIsNeverTheLargestInAnyOrder) {
    Tensor x = input("x", f32, {4, 64});
    Axis k = reduce_axis("k", 64);
    auto best = compute_tuple("best", {4}, [&](const std::vector<Expr>& i) { return argmax(x(i[0], k), k); });
    HostArray rows = host_array(f32, {4, 64});
    fill_uniform(rows, -1, 1, 31);
    for (int64_t j = 0; j < 64; ++j) rows.set({3, j}, make_value(f32, std::nan("")));
    for (auto [i, j, value] : {std::tuple(0, 5, 7.0),
                               {0, 20, std::nan("")},
                               {1, 5, std::nan("")},
                               {1, 20, 7.0},
                               {2, 63, 7.0},
                               {2, 62, std::nan("")},
                               {2, 0, std::nan("")}})
        rows.set({i, j}, make_value(f32, value));
    Bindings given{{{"x", rows}}, {}, {}};
    auto expected = interpret_plain(best, given);
    for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(at(expected[0], {i}), 7);
    EXPECT_EQ(at(expected[1], {0}), 5);
    EXPECT_EQ(at(expected[1], {1}), 20);
    EXPECT_EQ(at(expected[1], {2}), 63);
    EXPECT_EQ(at(expected[0], {3}), -std::numeric_limits<double>::infinity());
    for (int parts : {2, 8, 32, 64})
        for (bool is_outer : {false, true}) {
            Schedule s(best, target("sm_90a"));
            auto [outer, inner] = s.split(s.reduce(best[0]), is_outer ? 64 / parts : parts);
            Loop shared = is_outer ? outer : inner;
            s.order({shared, is_outer ? inner : outer});
            s.bind(shared, thread);
            auto got = interpret_tree(s.tree(), given);
            for (int o : {0, 1}) EXPECT_EQ(difference("best", got[o], expected[o]), std::nullopt) << parts;
        }
}

// What reads the results of other components reads them as they were before.
TEST(Interpret, TuplesArePrintedAsOneAssignment) {
    Tensor x = input("x", f32, {4, 64});
    Axis k = reduce_axis("k", 64), l = reduce_axis("l", 64);
    auto best = compute_tuple("best", {4}, [&](const std::vector<Expr>& i) { return argmax(x(i[0], k), k); });
    Schedule s(best, target("sm_90a"));
    EXPECT_THAT(s.to_string(), testing::HasSubstr("(best_argmax_0[], best_argmax_1[]) = (select("));
    s.bind(s.reduce(best[0]), thread);
    EXPECT_THAT(s.to_string(), testing::HasSubstr("combine (best_argmax_0[k], best_argmax_1[k]) over k in 0..64"));
}

TEST(InterpretPlain, Float64KeepsWhatRoundingLoses) {
    Tensor x = input("x", bf16, {2});
    Axis k = reduce_axis("k", 2);
    Tensor y = compute("y", {}, [&](const std::vector<Expr>&) { return cast(bf16, sum(cast(f32, x(k)), k)); });
    Bindings given{{{"x", host_array(bf16, {2})}}, {}, {}};
    given.inputs["x"].set({0}, make_value(bf16, 256.0));
    given.inputs["x"].set({1}, make_value(bf16, 0.25));
    EXPECT_EQ(at(interpret_plain({y}, given)[0], {}), 256);
    HostArray reference = interpret_plain({y}, given, Precision::Float64)[0];
    EXPECT_EQ(reference.type, f64);
    EXPECT_EQ(at(reference, {}), 256.25);
}

TEST(InterpretPlain, SizesAndStrides) {
    Expr n = size("n", {.min = 1, .max = 100, .multiple_of = 2});
    Tensor x = input("x", i32, {n, 3}, {1, n});  // columns side by side
    Tensor y = compute("y", {n, 3}, [&](Expr i, Expr j) { return x(i, j) / 3 + x(i, j) % 3; });
    Bindings given{{{"x", host_array(i32, {4, 3}, {1, 4})}}, {{"n", 4}}, {}};
    fill_integers(given.inputs["x"], -9, 9, 3);
    HostArray result = interpret_plain({y}, given)[0];
    for (int64_t i = 0; i < 4; ++i)
        for (int64_t j = 0; j < 3; ++j) {
            double value = at(given.inputs["x"], {i, j}), quotient = std::floor(value / 3);
            EXPECT_EQ(at(result, {i, j}), quotient + (value - 3 * quotient));
        }
}

TEST(InterpretErrors, Bindings) {
    Expr n = size("n", {.min = 2, .max = 10, .multiple_of = 2}), alpha = scalar("alpha", f32);
    Tensor x = input("x", f32, {n}, {n});
    Tensor y = compute("y", {n}, [&](Expr i) { return x(i) * alpha; });
    Bindings good{{{"x", host_array(f32, {4}, {4})}}, {{"n", 4}}, {{"alpha", make_value(f32, 1.0)}}};
    EXPECT_EQ(at(interpret_plain({y}, good)[0], {3}), 0);
    auto with = [&](auto change) {
        Bindings changed = good;
        change(changed);
        return interpret_plain({y}, changed);
    };
    EXPECT_ERROR(with([](Bindings& b) { b.inputs.clear(); }), "input 'x' has no array");
    EXPECT_ERROR(with([](Bindings& b) { b.sizes.clear(); }), "size 'n' has no value");
    EXPECT_ERROR(with([](Bindings& b) { b.scalars.clear(); }), "scalar 'alpha' has no value");
    EXPECT_ERROR(with([](Bindings& b) { b.sizes["n"] = 0; }), "size 'n' is 0, but is at least 2");
    EXPECT_ERROR(with([](Bindings& b) { b.sizes["n"] = 12; }), "size 'n' is 12, but is at most 10");
    EXPECT_ERROR(with([](Bindings& b) { b.sizes["n"] = 5; }), "size 'n' is 5, but is a multiple of 2");
    EXPECT_ERROR(with([](Bindings& b) { b.scalars["alpha"] = make_value(f64, 1.0); }),
                 "'alpha' is f64, but is declared as f32");
    EXPECT_ERROR(with([](Bindings& b) { b.inputs["x"] = host_array(bf16, {4}, {4}); }),
                 "'x' is bf16, but is declared as f32");
    EXPECT_ERROR(with([](Bindings& b) { b.inputs["x"] = host_array(f32, {6}, {4}); }),
                 "has shape [6], but is declared as [4]");
    EXPECT_ERROR(with([](Bindings& b) { b.inputs["x"] = host_array(f32, {4}, {1}); }),
                 "has strides [1], but is declared with [4]");
}

TEST(InterpretErrors, PlainAccesses) {
    Tensor x = input("x", i32, {3}), at_index = input("at", i32, {2});
    Tensor gathered = compute("gathered", {2}, [&](Expr i) { return x(at_index(i)); });
    Tensor divided = compute("divided", {2}, [&](Expr i) { return 1 / at_index(i); });
    Bindings given{{{"x", host_array(i32, {3})}, {"at", host_array(i32, {2})}}, {}, {}};
    EXPECT_ERROR(interpret_plain({divided}, given), "interpret 'divided': division by zero in");
    given.inputs["at"].set({1}, make_value(i32, int64_t{3}));
    EXPECT_ERROR(interpret_plain({gathered}, given), "x[3], which has shape [3]");
}

// What a tree does.

/// y[i] = x[i] + 1 through a tile of two elements.
struct Tiled {
    BufferRef x = buffer("x", {integer(6)}, BufferNode::Role::Input),
              y = buffer("y", {integer(6)}, BufferNode::Role::Output);
    BufferRef tile = buffer("tile", {integer(2)}, BufferNode::Role::Local);
    Expr o = index_of("o", 3), i = index_of("i", 2), j = index_of("j", 2);
    Bindings given{{{"x", integers(f32, {6})}}, {}, {}};

    Stmt fill(const Expr& extent) { return loop(i, extent, leaf(tile, {i}, load(x, {o * 2 + i}))); }
    Stmt use(const Expr& index) { return loop(j, integer(2), leaf(y, {index}, load(tile, {j}) + 1.0)); }
    Tree tree(Stmt body) {
        Tree made;
        made.nests = {{"y", std::move(body)}};
        made.inputs = {x};
        made.outputs = {y};
        return made;
    }
    Tree tree(Stmt fill, Stmt use) {
        return tree(loop(o, integer(3), make_stmt(Allocate{tile, sequence({std::move(fill), std::move(use)})})));
    }
};

TEST(InterpretTree, RunsLoopsTilesAndLeaves) {
    Tiled t;
    TreeInterpreter interpreter(t.tree(t.fill(integer(2)), t.use(t.o * 2 + t.j)));
    for (int run = 0; run < 2; ++run) {
        HostArray y = interpreter.run(t.given)[0];
        for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(at(y, {i}), at(t.given.inputs["x"], {i}) + 1);
    }
}

TEST(InterpretTree, NamesWhatIsWrong) {
    Tiled t;
    EXPECT_ERROR(interpret_tree(t.tree(t.fill(integer(1)), t.use(t.o * 2 + t.j)), t.given),
                 "stage 'stage_of_y' (finish, o = 0, j = 1): tile[1] (shape [2]) is read before anything wrote it");
    EXPECT_ERROR(interpret_tree(t.tree(t.fill(integer(3)), t.use(t.o * 2 + t.j)), t.given),
                 "stage 'stage_of_tile' (finish, o = 0, i = 2): tile[2] is outside of its shape [2]");
    EXPECT_ERROR(interpret_tree(t.tree(t.fill(integer(2)), t.use(t.o * 2)), t.given),
                 "element 1 of the output 'y' (shape [6]) was never written");
    EXPECT_ERROR(interpret_tree(t.tree(t.fill(integer(2)), t.use(t.o * 3 + t.j)), t.given),
                 "y[6] is outside of its shape [6]");
}

TEST(InterpretTree, ATileIsForgottenBetweenIterations) {
    Tiled t;  // filled in the first iteration only
    Stmt once = make_stmt(Leaf{Leaf::Kind::Copy, 0, "first", -1, {{t.tile, {t.i}, load(t.x, {t.i})}}, t.o == 0});
    EXPECT_ERROR(interpret_tree(t.tree(loop(t.i, integer(2), once), t.use(t.o * 2 + t.j)), t.given),
                 "(finish, o = 1, j = 0): tile[0] (shape [2]) is read before");
}

TEST(InterpretTree, AllValuesBeforeAllStores) {
    BufferRef a = buffer("a", {}, BufferNode::Role::Output), b = buffer("b", {}, BufferNode::Role::Output);
    Stmt set =
        make_stmt(Leaf{Leaf::Kind::Init, 0, "s", -1, {{a, {}, constant(f32, 1.0)}, {b, {}, constant(f32, 2.0)}}, true});
    Stmt swap = make_stmt(Leaf{Leaf::Kind::Update, 0, "s", -1, {{a, {}, load(b, {})}, {b, {}, load(a, {})}}, true});
    Tree tree;
    tree.nests = {{"s", sequence({set, swap})}};
    tree.outputs = {a, b};
    auto results = interpret_tree(tree, {});
    EXPECT_EQ(at(results[0], {}), 2);
    EXPECT_EQ(at(results[1], {}), 1);
}

TEST(InterpretTree, SizesScalarsAndInPlace) {
    Expr n = size("n", {.min = 0, .max = 9}), shift = scalar("shift", i32), i = index_variable("i");
    BufferRef x = buffer("x", {n}, BufferNode::Role::Input, i32), y = buffer("y", {n}, BufferNode::Role::Output, i32);
    Tree tree;
    tree.nests = {{"y", loop(i, n, leaf(y, {i}, load(x, {i}) + shift))}};
    tree.inputs = {x};
    tree.outputs = {y};
    tree.sizes = {n};
    tree.scalars = {shift};
    tree.in_place = {{y, x}};
    TreeInterpreter interpreter(tree);
    for (int64_t extent : {5, 0, 9}) {
        Bindings given{{{"x", integers(i32, {extent})}}, {{"n", extent}}, {{"shift", make_value(i32, int64_t{7})}}};
        HostArray result = interpreter.run(given)[0];
        ASSERT_EQ(result.shape, std::vector<int64_t>{extent});
        for (int64_t e = 0; e < extent; ++e) EXPECT_EQ(at(result, {e}), at(given.inputs["x"], {e}) + 7);
    }
    // Reading a neighbour that was overwritten: the memory is one.
    tree.nests = {{"y", loop(i, n, leaf(y, {i}, load(x, {max(i - 1, 0)}) + shift))}};
    Bindings given{{{"x", host_array(i32, {3})}}, {{"n", 3}}, {{"shift", make_value(i32, int64_t{1})}}};
    EXPECT_EQ(at(interpret_tree(tree, given)[0], {2}), 3);
}

// Arrays.

TEST(HostArray, FillsRepeatAndStayInBounds) {
    for (Type type : {boolean, i8, i32, i64, f16, bf16, e4m3, f32, f64}) {
        HostArray a = host_array(type, {7, 5}), b = a, c = a;
        fill_integers(a, 0, 1, 11);
        fill_integers(b, 0, 1, 11);
        fill_integers(c, 0, 1, 12);
        EXPECT_EQ(difference("a", a, b), std::nullopt);
        EXPECT_NE(difference("a", a, c), std::nullopt);
        for (int64_t i = 0; i < 7; ++i) EXPECT_TRUE(at(a, {i, 0}) == 0 || at(a, {i, 0}) == 1);
    }
    HostArray reals = host_array(f32, {1000});
    fill_uniform(reals, -2, 3, 5);
    double lowest = 9, highest = -9, sum = 0;
    for (int64_t i = 0; i < 1000; ++i) {
        lowest = std::min(lowest, at(reals, {i}));
        highest = std::max(highest, at(reals, {i}));
        sum += at(reals, {i});
    }
    EXPECT_GE(lowest, -2);
    EXPECT_LT(highest, 3);
    EXPECT_NEAR(sum / 1000, 0.5, 0.2);
}

TEST(HostArray, ReportsTheFirstDifference) {
    HostArray a = host_array(f32, {2, 3}), b = a;
    b.set({1, 1}, make_value(f32, -0.0));
    EXPECT_EQ(difference("c", a, b, equal_values), std::nullopt);
    EXPECT_NE(difference("c", a, b), std::nullopt);
    b.set({1, 1}, make_value(f32, 0.5));
    b.set({1, 2}, make_value(f32, 2.0));
    EXPECT_EQ(difference("c", a, b, equal_values)->substr(0, 70),
              "c[1, 1] is 0, expected 0.5 (2 of 6 elements differ, most at [1, 2]: by");
    EXPECT_EQ(difference("c", a, host_array(f32, {3, 2})), "c has shape [2, 3], expected [3, 2]");
    fill_poison(a);
    EXPECT_TRUE(std::isnan(at(a, {0, 0})));
    EXPECT_NE(difference("c", a, b)->find("NaN against a number"), std::string::npos);
    EXPECT_EQ(difference("c", a, a), std::nullopt);
}

TEST(HostArray, CountsUlps) {
    auto value = [](Type type, double real) { return make_value(type, real); };
    EXPECT_EQ(ulps_between(value(f32, 1.0), value(f32, std::nextafter(1.0f, 2.0f))), 1);
    EXPECT_EQ(ulps_between(value(f32, 0.0), value(f32, -0.0)), 0);
    EXPECT_EQ(ulps_between(value(bf16, 1.0), value(bf16, 1.0078125)), 1);
    EXPECT_EQ(ulps_between(value(bf16, -1.0), value(bf16, 1.0)), 2 * 0x3f80);
    EXPECT_EQ(ulps_between(value(f32, 1.0), value(f32, std::nan(""))), std::numeric_limits<int64_t>::max());
    EXPECT_TRUE(matches(value(f32, 1.0), value(f32, 1.25), near(0, 0.25)));
    EXPECT_FALSE(matches(value(f32, 1.0), value(f32, 1.25), near(1)));
    EXPECT_EQ(to_string(make_value(f32, 0.1)), "0.1");
    EXPECT_EQ(to_string(make_value(boolean, int64_t{1})), "true");
}

TEST(HostArray, StridedElements) {
    HostArray a = host_array(i32, {2, 3}, {1, 4});
    EXPECT_EQ(a.bytes.size(), 10u * 4);
    a.set({1, 2}, make_value(i32, int64_t{42}));
    int32_t stored;
    std::copy_n(reinterpret_cast<unsigned char*>(&a.bytes[9 * 4]), 4, reinterpret_cast<unsigned char*>(&stored));
    EXPECT_EQ(stored, 42);
    EXPECT_EQ(host_array(f32, {4, 0, 3}).bytes.size(), 0u);
}

}  // namespace
}  // namespace tw
