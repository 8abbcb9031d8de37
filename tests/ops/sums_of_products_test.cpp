// Sums of several products as one accumulation on tensor cores: each adds to, or is subtracted from, the same sums.
#include <functional>
#include <random>
#include <string>

#include "dsl/scaled_product.h"
#include "ops/check.h"
#include "ops/runner.h"
#include "schedules/choose.h"
#include "tests/ops/on_each_device.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

/// A stage y[i, j] = sum_k (+- a0[i, k] * b0[k, j] +- a1[i, k] * b1[k, j] ...), with what is made of the sum.
struct Sum {
    std::vector<Tensor> rows, columns;
    std::vector<bool> negative;
    Tensor y;
};

Expr element(const Tensor& x, const Expr& i, const Expr& k) {
    if (x.type() == f32) return truncate_tf32(x(i, k));
    return cast(x.type() == i8 ? i32 : f32, x(i, k));
}

size_t times_in(const std::string& text, const std::string& part) {
    size_t times = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
    return times;
}

class SumsOfProducts : public OnEachDevice {
protected:
    int64_t between(int64_t least, int64_t most) { return std::uniform_int_distribution(least, most)(random_); }

    /// Rows lie along k; columns, too, or across where the type allows that. Two products may have the same rows.
    Sum random_sum(Type type, size_t products, int64_t m, int64_t n, int64_t k, bool may_share = false) {
        Sum sum;
        const Axis term = reduce_axis("k", k);
        std::vector<bool> along;
        for (size_t p = 0; p < products; ++p) {
            const std::string name = std::to_string(p);
            along.push_back(bytes_of(type) != 2 || between(0, 1));
            const bool shares = may_share && p > 0 && between(0, 1);
            sum.rows.push_back(shares ? sum.rows[0] : input("a" + name, type, {m, k}));
            sum.columns.push_back(along[p] ? input("b" + name, type, {n, k}) : input("b" + name, type, {k, n}));
            sum.negative.push_back(type != i8 && between(0, 1));
        }
        const Tensor bias = input("bias", type == i8 ? i32 : f32, {n});
        sum.y = compute("y", {m, n}, [&](Expr i, Expr j) {
            Expr all;
            for (size_t p = 0; p < products; ++p) {
                const Expr a = element(sum.rows[p], i, term),
                           b = along[p] ? element(sum.columns[p], j, term) : element(sum.columns[p], term, j);
                const Expr own = between(0, 1) ? a * b : b * a;
                if (!all.defined())
                    all = sum.negative[p] ? -own : own;
                else
                    all = sum.negative[p] ? all - own : all + own;
            }
            return tw::sum(all, term) * (type == i8 ? Expr(2) : Expr(0.5f)) + bias(j);
        });
        return sum;
    }

    void expect_right(const Schedule& s, const Tensor& y, bool few_bits = false) {
        ASSERT_EQ(s.tree().nests.size(), 1u) << s.to_string();
        Executable executable(build(s), device_);
        const Bindings bindings = random_bindings({y}, random_());
        const CheckResult check = check_output(y, bindings, run_on(executable, bindings)[0], {.few_bits = few_bits});
        EXPECT_TRUE(check.ok) << check.text << "\n" << s.to_string() << "\n" << build(s).cuda();
    }

    std::mt19937 random_{std::random_device()()};
};
TW_ON_EACH_DEVICE(SumsOfProducts);

TEST_P(SumsOfProducts, ByWarps) {
    const std::vector<Type> types = {f16, bf16, f32, i8, e4m3};
    for (const Type type : types) {
        SCOPED_TRACE(name_of(type));
        const int64_t m = between(17, 70), n = between(9, 40), k = 8 * between(5, 12);
        const Sum sum = random_sum(type, static_cast<size_t>(between(2, 3)), m, n, k);
        Schedule s({sum.y}, device_target());
        auto [i, j] = s.loops<2>(sum.y);
        auto [io, ii] = s.split(i, 32, Tail::Mask);
        auto [jo, ji] = s.split(j, 16, Tail::Mask);
        auto [ko, ki] = s.split(s.reduce(sum.y), 32, Tail::Mask);
        s.order({io, jo, ko, ii, ji, ki});
        s.bind(io, grid.x);
        s.bind(jo, warp);
        for (size_t p = 0; p < sum.rows.size(); ++p) {
            s.stage(sum.y, sum.rows[p], Memory::Shared, ko);
            s.stage(sum.y, sum.columns[p], Memory::Shared, ko);
        }
        s.mma(sum.y, mma_sync, {ii, ji, ki});
        if (between(0, 1)) s.pipeline(ko, {.stages = static_cast<int>(between(2, 3))});
        expect_right(s, sum.y);
    }
}

TEST_P(SumsOfProducts, ByWarpgroups) {
    if (!device_target().has_wgmma) GTEST_SKIP() << "no wgmma";
    for (const Type type : {bf16, f16, f32, e5m2}) {
        SCOPED_TRACE(name_of(type));
        const int64_t m = between(60, 200), n = 8 * between(2, 20), k = 16 * between(3, 14);
        const Sum sum = random_sum(type, static_cast<size_t>(between(2, 3)), m, n, k);
        Schedule s({sum.y}, device_target());
        auto [i, j] = s.loops<2>(sum.y);
        auto [io, ii] = s.split(i, 64 * between(1, 2), Tail::Mask);
        auto [jo, ji] = s.split(j, 16 * between(1, 2), Tail::Mask);
        auto [ko, ki] = s.split(s.reduce(sum.y), 128 / bytes_of(type), Tail::Mask);
        s.order({io, jo, ko, ii, ji, ki});
        s.bind(io, grid.y);
        s.bind(jo, grid.x);
        for (size_t p = 0; p < sum.rows.size(); ++p) {
            s.stage(sum.y, sum.rows[p], Memory::Shared, ko);
            s.stage(sum.y, sum.columns[p], Memory::Shared, ko);
        }
        s.mma(sum.y, wgmma, {ii, ji, ki});
        s.pipeline(ko, {.stages = static_cast<int>(between(2, 3))});
        expect_right(s, sum.y, type == e5m2);
        EXPECT_EQ(times_in(build(s).cuda(), "wgmma_commit();\n"), 1u);  // of all products of a step
    }
}

TEST_P(SumsOfProducts, AreFound) {
    for (const Type type : {bf16, f16, f32, i8}) {
        SCOPED_TRACE(name_of(type));
        const int64_t m = between(16, 150), n = 8 * between(2, 20), k = 16 * between(1, 14);
        const Sum sum = random_sum(type, static_cast<size_t>(between(2, 3)), m, n, k, true);
        const Schedule s = schedules::choose_schedule({sum.y}, device_target());
        EXPECT_EQ(times_in(s.trace_as_cpp(), "s.mma("), 1u) << s.trace_as_cpp();
        expect_right(s, sum.y);
    }
}

/// Both parts of a complex product read the same four matrices.
TEST_P(SumsOfProducts, OfComplexNumbers) {
    const int64_t m = between(40, 90), n = 8 * between(4, 9), k = 8 * between(5, 12);
    Tensor ar = input("ar", bf16, {m, k}), ai = input("ai", bf16, {m, k}), br = input("br", bf16, {k, n}),
           bi = input("bi", bf16, {k, n});
    Axis t = reduce_axis("t", k);
    auto product = [&](const Tensor& a, const Tensor& b, Expr i, Expr j) {
        return element(a, i, t) * element(b, t, j);
    };
    const Tensor real =
        compute("real", {m, n}, [&](Expr i, Expr j) { return sum(product(ar, br, i, j) - product(ai, bi, i, j), t); });
    const Tensor imaginary = compute(
        "imaginary", {m, n}, [&](Expr i, Expr j) { return sum(product(ar, bi, i, j) + product(ai, br, i, j), t); });
    const Schedule s = schedules::choose_schedule({real, imaginary}, device_target());
    EXPECT_EQ(s.tree().nests.size(), 2u) << s.to_string();
    Runner runner(s, device_);
    runner.set(random_bindings({real, imaginary}, random_()));
    const CheckResult check = runner.check();
    EXPECT_TRUE(check.ok) << check.text << "\n" << s.trace_as_cpp();
}

/// Over two axes of as many terms, as the gates of a recurrent cell are.
TEST_P(SumsOfProducts, OfTwoAxes) {
    const int64_t m = between(20, 90), n = 8 * between(4, 9), terms = 8 * between(3, 12);
    Tensor x = input("x", bf16, {m, terms}), w = input("w", bf16, {n, terms}), h = input("h", bf16, {m, terms}),
           r = input("r", bf16, {n, terms}), bias = input("bias", f32, {n});
    Axis k = reduce_axis("k", terms), l = reduce_axis("l", terms);
    const Tensor gates = compute("gates", {m, n}, [&](Expr i, Expr j) {
        return tanh(sum(element(x, i, k) * element(w, j, k), k) - sum(element(h, i, l) * element(r, j, l), l) +
                    bias(j));
    });
    const Schedule s = schedules::choose_schedule({gates}, device_target());
    EXPECT_EQ(times_in(s.trace_as_cpp(), "s.mma("), 1u) << s.explain();
    expect_right(s, gates);
}

/// Two products whose loops are ready for mma, of the types and by the term.
void attempt(Type x, Type y, const std::function<Expr(Expr, Expr, Expr, Expr)>& term) {
    Tensor a = input("a", x, {16, 32}), b = input("b", x, {8, 32}), d = input("d", y, {16, 32}),
           e = input("e", y, {8, 32});
    Axis k = reduce_axis("k", 32);
    Tensor c = compute("c", {16, 8}, [&](Expr i, Expr j) {
        return sum(term(element(a, i, k), element(b, j, k), element(d, i, k), element(e, j, k)), k);
    });
    Schedule s({c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(c);
    s.order({s.reduce(c), i, j});
    s.mma(c, mma_sync, {i, j, s.reduce(c)});
}

TEST(SumsOfProductsErrors, SayWhatDoesNotFit) {
    auto plus = [](Expr a, Expr b, Expr d, Expr e) { return a * b + d * e; };
    auto minus = [](Expr a, Expr b, Expr d, Expr e) { return a * b - d * e; };
    attempt(bf16, bf16, minus);
    attempt(i8, i8, plus);
    EXPECT_ERROR(attempt(bf16, f16, minus), "it sums products of bf16 and products of f16, which are instructions");
    EXPECT_ERROR(attempt(i8, i8, minus), "it subtracts products of i8, which no instruction does");
    EXPECT_ERROR(attempt(bf16, bf16, [](Expr a, Expr b, Expr d, Expr e) { return a * b * 2 + d * e; }),
                 "its terms are no products of two elements, and no sums of such");
    EXPECT_ERROR(attempt(bf16, bf16, [](Expr a, Expr b, Expr d, Expr) { return a * b + d; }),
                 "its terms are no products of two elements, and no sums of such");
    EXPECT_ERROR(attempt(bf16, bf16, [](Expr a, Expr b, Expr d, Expr) { return a * b + a * d; }),
                 "'a' should give the columns");
}

TEST(SumsOfProductsErrors, OfRowsInRegisters) {
    Tensor x = input("x", bf16, {128, 64}), b = input("b", bf16, {32, 64}), d = input("d", bf16, {128, 64}),
           e = input("e", bf16, {32, 64});
    Tensor rows = compute("rows", {128, 64}, [&](Expr i, Expr j) { return cast(bf16, cast(f32, x(i, j)) * 2.0); });
    Axis t = reduce_axis("t", 64);
    Tensor y = compute("y", {128, 32}, [&](Expr i, Expr j) {
        return sum(element(rows, i, t) * element(b, j, t) - element(d, i, t) * element(e, j, t), t);
    });
    Schedule s({y}, target("sm_90a"));
    auto [i, j] = s.loops<2>(y);
    auto [part, m] = s.split(i, 64);
    auto [step, k] = s.split(s.reduce(y), 32);
    s.order({part, step, m, j, k});
    s.bind(part, warpgroup);
    s.at(rows, step);
    s.set_memory(rows, Memory::Registers);
    for (const Tensor& operand : {b, d, e}) s.stage(y, operand, Memory::Shared, step);
    s.mma(y, wgmma, {.m = m, .n = j, .k = k});
    EXPECT_ERROR(build(s), "sums several products, of which one has its rows, 'rows', in registers");
}

/// What is taken apart is the same sum; a factor that not all of it has is none of it.
TEST(SumOfProducts, IsAllThatATermAdds) {
    Tensor a = input("a", f32, {4, 4}), b = input("b", f32, {4, 4});
    const Expr i = index_variable("i", 0, 3), k = index_variable("k", 0, 3), p = a(i, k) * b(k, i),
               q = a(k, i) * b(i, k), r = a(i, i) * b(k, k), alpha = scalar("alpha", f32);
    auto text = [](const Expr& term) {
        const auto found = sum_of_products(term);
        if (!found) return std::string("none");
        return to_string(found->term()) + (found->scale.defined() ? " times " + to_string(found->scale) : "");
    };
    EXPECT_EQ(text(p - q + r), to_string(p - q + r));
    EXPECT_EQ(text(p - (q - r)), to_string(p - q + r));
    EXPECT_EQ(text(-p + q - r), to_string(q - p - r));
    EXPECT_EQ(text(-(p + q)), to_string(p + q) + " times -1.0");
    EXPECT_EQ(text(fma(a(i, k), b(k, i), -q)), to_string(p - q));
    EXPECT_EQ(text(alpha * (p - q)), to_string(p - q) + " times alpha");
    EXPECT_EQ(text(p * alpha - q * alpha), to_string(p - q) + " times alpha");
    EXPECT_EQ(text(-alpha * p + q * -alpha), to_string(p + q) + " times -alpha");
    EXPECT_EQ(text(p * alpha - q), "none");
    EXPECT_EQ(text(p + a(i, k)), "none");
    EXPECT_EQ(text((p + q) * r), "none");
}

}  // namespace
}  // namespace tw
