// Elements of declared computations by themselves: the same bits as of the whole, whatever guards the reads between.
#include "ops/sample_elements.h"

#include <random>

#include <gtest/gtest.h>

#include "ops/check.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

std::mt19937_64 random_numbers(7);
int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_numbers() % uint64_t(high - low + 1));
}
bool chance() { return random_numbers() % 2; }

std::vector<std::vector<int64_t>> random_points(const std::vector<int64_t>& shape, int64_t count) {
    std::vector<std::vector<int64_t>> points(static_cast<size_t>(count));
    for (auto& point : points)
        for (int64_t extent : shape) point.push_back(between(0, extent - 1));
    return points;
}

/// The points' elements are those of the whole, and nothing is wrong until one element is.
void expect_same_as_whole(const Tensor& y) {
    SCOPED_TRACE(to_string(*y.operation()));
    Bindings bindings = random_bindings({y}, random_numbers());
    for (Precision precision : {Precision::Declared, Precision::Float64}) {
        HostArray whole = interpret_plain({y}, bindings, precision)[0];
        auto points = random_points(whole.shape, 50);
        auto elements = sample_elements(y, points, bindings, {.precision = precision});
        for (size_t p = 0; p < points.size(); ++p)
            EXPECT_TRUE(matches(elements[p].value, whole.at(points[p]), bitwise))
                << indices_text(points[p]) << ": " << to_string(elements[p].value) << ", not "
                << to_string(whole.at(points[p]));
    }
    HostArray got = interpret_plain({y}, bindings)[0];
    CheckResult right = check_output(y, bindings, got, {.samples = 64});
    EXPECT_TRUE(right.ok) << right.text;
    for (int64_t i = 0; i < got.num_elements(); ++i) {
        std::byte* element = got.bytes.data() + i * bytes_of(got.type);
        store_element(make_value(got.type, load_element(got.type, element).real + 0.5), element);
    }
    EXPECT_FALSE(check_output(y, bindings, got, {.samples = 64}).ok);
}

/// The element at a shifted place, which may lie outside; sometimes of a row read backwards or every other one.
Expr shifted(const Tensor& x, const std::vector<Expr>& axes) {
    std::vector<Operand> indices;
    for (size_t d = 0; d < axes.size(); ++d) {
        Expr index = axes[d] + between(-2, 2);
        if (between(0, 5) == 0) index = x.shape()[d] - 1 - index;
        if (between(0, 7) == 0) index = index * 2;
        indices.push_back(index);
    }
    return padded(x, chance() ? 0.0 : 1.5).read(indices);
}

TEST(SampleElements, ChainsOfPaddedStages) {
    for (int round = 0; round < 40; ++round) {
        int depth = static_cast<int>(between(1, 5));
        Shape shape{between(1, 80)};
        if (chance()) shape.insert(shape.begin(), between(1, 70));
        Tensor x = input("x", f32, shape);
        for (int stage = 0; stage < depth; ++stage)
            x = compute(fmt::format("v{}", stage), shape, [&](const std::vector<Expr>& axes) {
                Expr value = shifted(x, axes) + 0.5 * shifted(x, axes);
                if (!chance()) return value;
                Axis r = reduce_axis("r", between(1, 3));
                std::vector<Expr> along = axes;
                along.back() = along.back() + r - 1;
                return value + sum(padded(x, 0).read({along.begin(), along.end()}), r);
            });
        expect_same_as_whole(x);
    }
}

TEST(SampleElements, ReductionsTuplesAndChoices) {
    Tensor a = input("a", f32, {30, 20}), ids = input("ids", i32, {30});
    Axis c = reduce_axis("c", 20), t = reduce_axis("t", 8);
    Tensor top = compute("top", {30}, [&](Expr i) { return reduce_max(a(i, c), c); });
    Tensor parts = compute("parts", {30}, [&](Expr i) {
        Axis upto = reduce_axis("upto", i % 4);
        return sum(exp(a(i, c) - top(i)), c) + sum(top(upto), upto);
    });
    expect_same_as_whole(compute("y", {30, 20}, [&](Expr i, Expr j) {
        return select(a(i, j) < 0 && ids(i) > 2, rsqrt(parts(i)), a(i, j) / parts(ids(i)) + cast(f32, ids(i) % 3));
    }));
    std::vector<Tensor> best =
        compute_tuple("best", {30}, [&](const std::vector<Expr>& i) { return argmax(a(i[0], c), c); });
    expect_same_as_whole(compute("z", {30}, [&](Expr i) { return best[0](i) * a(i, best[1](i)) + sum(top(t), t); }));
}

TEST(SampleElements, SharedExpressions) {
    Tensor x = input("x", f32, {64});
    expect_same_as_whole(compute("y", {64}, [&](Expr i) {
        Expr a = x(i) * x(i) + 1.0, e = 1.0 - 0.1 * a;
        for (int step = 0; step < 6; ++step) e = e * (2.0 - a * e);
        Axis r = reduce_axis("r", i + 1);
        return e + sum(e * x(r), r) * 0.01;
    }));
}

/// A schedule that takes every n-th term first passes through sums that the declared order never has: what tensor cores
/// may do is as much as in a declaration of that order.
TEST(SampleElements, UnitsMayAddEveryOtherTermFirst) {
    constexpr int64_t K = 4800;
    Tensor a = input("a", f16, {K}), b = input("b", f16, {K});
    Axis k = reduce_axis("k", K);
    auto unit_error = [&](const Bindings& bindings, auto term_at) {
        Tensor y = compute("y", {}, [&] { return sum(cast(f32, a(term_at(k))) * cast(f32, b(term_at(k))), k); });
        return sample_elements(y, {{}}, bindings, {.precision = Precision::Float64})[0].unit_error;
    };
    auto as_declared = [](const Axis& k) { return Expr(k); };
    Bindings bindings =
        random_bindings({compute("both", {K}, [&](Expr i) { return cast(f32, a(i)) + cast(f32, b(i)); })}, 1);
    double of_random_data = unit_error(bindings, as_declared);
    for (int64_t n : {2, 3, 4, 6, 8, 12, 16, 32, 64}) {
        for (int64_t i = 0; i < K; ++i) {
            double magnitude = 1 + static_cast<double>(between(0, 255)) / 256;
            bindings.inputs.at("a").set({i}, make_value(f16, i % n < n / 2 ? magnitude : -magnitude));
            bindings.inputs.at("b").set({i}, make_value(f16, 1.0));
        }
        double every_nth = unit_error(bindings, [&](const Axis& k) { return k % (K / n) * n + k / (K / n); });
        EXPECT_GE(unit_error(bindings, as_declared), 0.9 * every_nth) << n;
        EXPECT_GE(every_nth, of_random_data) << n;
    }
}

TEST(SampleElements, WhatDataGetWrong) {
    Tensor x = input("x", f32, {8}), ids = input("ids", i32, {8});
    Bindings bindings = random_bindings({compute("both", {8}, [&](Expr i) { return x(i) + cast(f32, ids(i)); })}, 1);
    bindings.inputs.at("ids").set({3}, make_value(i32, int64_t{8}));
    bindings.inputs.at("ids").set({4}, make_value(i32, int64_t{0}));
    auto element = [&](const Tensor& y, int64_t i) { return sample_elements(y, {{i}}, bindings, {})[0].value; };
    Tensor gathered = compute("gathered", {8}, [&](Expr i) { return x(ids(i)); });
    EXPECT_EQ(element(gathered, 4).real, bindings.inputs.at("x").at({0}).real);
    EXPECT_ERROR(element(gathered, 3), "check 'x': element [8] is read, but its shape is [8]");
    Tensor divided = compute("divided", {8}, [&](Expr i) { return 12 / ids(i); });
    EXPECT_EQ(element(divided, 3).integer, 1);
    EXPECT_ERROR(element(divided, 4), "check: division by zero in 12 / ids[");
}

}  // namespace
}  // namespace tw
