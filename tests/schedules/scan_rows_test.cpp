// Schedules of scans by rule: along rows, columns, of a single long one, of what a gradient makes.
#include <random>

#include <gtest/gtest.h>

#include "dsl/declare_scan.h"
#include "dsl/differentiate.h"
#include "schedules/choose.h"
#include "tests/ops/on_each_device.h"
#include "tests/ops/whole_numbers.h"

namespace tw {
namespace {

class ScanRows : public OnEachDevice {
protected:
    /// Chosen, it runs in so many kernels, and gives what is declared.
    void expect_runs(const std::vector<Tensor>& outputs, size_t kernels) const {
        const Schedule s = schedules::choose_schedule(outputs, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        EXPECT_NE(s.trace_as_cpp().find("s.running("), std::string::npos);
        EXPECT_EQ(s.tree().nests.size(), kernels);
        expect_declared(s, whole_numbers(outputs, 11));
    }

    static Tensor scanned(int64_t rows, int64_t columns, int axis, const ScanOptions& options = {}) {
        Tensor x = input("x", f32, {rows, columns});
        Axis j = reduce_axis("j", axis == 0 ? rows : columns);
        return compute("y", {rows, columns}, [&](Expr r, Expr c) {
            return axis == 0 ? scan(sum, x(j, c), j, r, options) : scan(sum, x(r, j), j, c, options);
        });
    }
};
TW_ON_EACH_DEVICE(ScanRows);

TEST_P(ScanRows, RowsOfAnyLength) {
    for (int64_t columns : {2, 5, 33, 100, 1000, 1025, 1501})
        expect_runs({scanned(7, columns, 1, {.exclusive = columns % 2 == 0, .reverse = columns % 3 == 0})}, 1);
}

TEST_P(ScanRows, ColumnsSideBySide) { expect_runs({scanned(50, 200, 0)}, 1); }

/// As declared, a long row would take the interpreter too long.
TEST_P(ScanRows, LongRowsAndColumnsInParts) {
    struct Case {
        int64_t rows, columns;
        int axis;
        ScanOptions options;
    };
    for (const Case& c : {Case{1, 40000, 1, {}}, Case{3, 33001, 1, {.exclusive = true, .reverse = true}},
                          Case{1100, 24, 0, {.exclusive = false, .reverse = true}}}) {
        const Tensor y = scanned(c.rows, c.columns, c.axis, c.options);
        const Schedule s = schedules::choose_schedule({y}, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        EXPECT_EQ(s.tree().nests.size(), 3u);
        const Bindings data = whole_numbers({y}, 11);
        Executable executable(build(s), device_);
        const HostArray got = run_on(executable, data)[0], &x = data.inputs.at("x");
        const auto *in = reinterpret_cast<const float*>(x.bytes.data()),
                   *out = reinterpret_cast<const float*>(got.bytes.data());
        const int64_t length = c.axis == 0 ? c.rows : c.columns, others = c.axis == 0 ? c.columns : c.rows;
        int64_t wrong = 0;
        for (int64_t other = 0; other < others; ++other) {
            float so_far = 0;
            for (int64_t u = 0; u < length; ++u) {
                const int64_t t = c.options.reverse ? length - 1 - u : u;
                const int64_t at = c.axis == 0 ? t * c.columns + other : other * c.columns + t;
                const float with = so_far + in[at];
                wrong += out[at] != (c.options.exclusive ? so_far : with);
                so_far = with;
            }
        }
        EXPECT_EQ(wrong, 0);
    }
}

/// A reducer whose order counts: parts of a long row are combined by threads that have neighbouring terms.
TEST_P(ScanRows, LongRecurrencesInParts) {
    constexpr int64_t rows = 2, length = 33001;
    const Reducer recurrence = make_reducer(
        "recurrence", {constant(f32, 1.0), constant(f32, 0.0)},
        [](auto& a, auto& b) {
            return std::vector<Expr>{a[0] * b[0], b[0] * a[1] + b[1]};
        },
        false);
    const Tensor a = input("a", f32, {rows, length}), b = input("b", f32, {rows, length});
    const Axis j = reduce_axis("j", length);
    const Tensor h = compute("h", {rows, length}, [&](Expr i, Expr t) {
        return scan(recurrence, {a(i, j), b(i, j)}, j, t)[1];
    });
    const Schedule s = schedules::choose_schedule({h}, device_target());
    SCOPED_TRACE(s.trace_as_cpp());
    EXPECT_EQ(s.tree().nests.size(), 3u);
    Bindings data = whole_numbers({h}, 12);
    auto floats_of = [](HostArray& array) { return reinterpret_cast<float*>(array.bytes.data()); };
    float *factor = floats_of(data.inputs.at("a")), *more = floats_of(data.inputs.at("b"));
    std::mt19937 random(12);
    for (int64_t t = 0; t < rows * length; ++t)
        factor[t] = std::uniform_int_distribution(-1, 1)(random);  // stays exact
    Executable executable(build(s), device_);
    HostArray got = run_on(executable, data)[0];
    const float* out = floats_of(got);
    int64_t wrong = 0;
    for (int64_t i = 0; i < rows; ++i) {
        float before = 0;
        for (int64_t t = i * length; t < (i + 1) * length; ++t) {
            before = factor[t] * before + more[t];
            wrong += out[t] != before;
        }
    }
    EXPECT_EQ(wrong, 0);
}

// What choose_schedule asks first: where a loop can run, terms vary, and where none vary, no loop is tried.
TEST(ScansOf, TermsThatVary) {
    const Tensor x = input("x", f32, {6, 40}), y = input("y", f32, {40, 40});
    const Axis j = reduce_axis("j", 40), k = reduce_axis("k", 40);
    auto made = [&](const std::function<Expr(Expr, Expr)>& element) { return compute("z", {6, 40}, element); };
    const std::vector<std::pair<Tensor, bool>> declared{
        {made([&](Expr r, Expr c) { return scan(sum, x(r, j), j, c); }), true},
        {made([&](Expr r, Expr c) { return scan(sum, x(r, j), j, c, {.exclusive = true, .reverse = true}); }), true},
        {made([&](Expr r, Expr c) { return sum(select(j <= c, x(r, j), 0.0), j); }), true},
        {made([&](Expr r, Expr c) { return sum(select(j >= c, x(r, j), 0.0), j); }), true},
        {made([&](Expr r, Expr c) { return sum(x(r, j) * y(j, c), j); }), false},
        {made([&](Expr r, Expr c) { return sum(select(j <= 7, x(r, j), 0.0) * y(j, c), j); }), false},
        {made([&](Expr r, Expr c) {
             return sum(x(r, j) * y(k, c), {j, k});
         }),
         false},
        {made([&](Expr r, Expr c) { return x(r, c) + y(r, c); }), false}};
    for (const auto& [z, vary] : declared) {
        const Schedule s({z}, target("sm_90a"));
        SCOPED_TRACE(to_string(*z.operation()));
        EXPECT_EQ(s.terms_vary(z), vary);
        bool runs = false;
        for (const Loop& loop : s.data_loops(z)) try {
                Schedule trial = s;
                trial.running(z, loop);
                runs = true;
            } catch (const Error&) {
            }
        EXPECT_EQ(runs, vary);
    }
}

TEST_P(ScanRows, AVector) {
    Tensor x = input("x", i32, {1000});
    Axis j = reduce_axis("j", 1000);
    expect_runs({compute("y", {1000}, [&](Expr t) { return scan(reduce_max, x(j), j, t); })}, 1);
}

TEST_P(ScanRows, GradientsOfScans) {
    Tensor x = input("x", f32, {3, 300}), dy = input("dy", f32, {3, 300});
    Axis j = reduce_axis("j", 300);
    Tensor y = compute("y", {3, 300}, [&](Expr i, Expr t) { return scan(sum, x(i, j), j, t); });
    expect_runs(gradients(y, dy, {x}), 1);
}

/// How many of the most likely tokens make up a share of all: sorted probabilities, added up until the threshold.
TEST_P(ScanRows, TopPThreshold) {
    const int64_t rows = 5, tokens = 700;
    Tensor p = input("p", f32, {rows, tokens});
    Axis j = reduce_axis("j", tokens), k = reduce_axis("k", tokens);
    Tensor total = compute("total", {rows, tokens}, [&](Expr i, Expr t) { return scan(sum, p(i, j), j, t); });
    Tensor kept = compute("kept", {rows}, [&](Expr i) { return sum(select(total(i, k) < 90.0, 1.0, 0.0), k); });
    expect_runs({kept}, 2);
}

}  // namespace
}  // namespace tw
