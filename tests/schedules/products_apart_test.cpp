// Elements that are made of several products, and elements of others that are read often: each by a kernel of its own.
#include "schedules/products_apart.h"

#include <random>

#include <gtest/gtest.h>

#include "codegen/lower.h"
#include "ops/runner.h"
#include "schedules/choose.h"
#include "schedules/repeated_elements.h"

namespace tw::schedules {
namespace {

size_t times_in(const std::string& text, const std::string& part) {
    size_t times = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
    return times;
}

void expect_right(const Schedule& s, const std::vector<Tensor>& outputs, uint32_t seed) {
    Runner runner(s, open_device("emulated"));
    runner.set(random_bindings(outputs, seed));
    const CheckResult check = runner.check();
    EXPECT_TRUE(check.ok) << check.text << "\n" << s.trace_as_cpp();
}

/// Sums of products, differences of them within a sum, statistics of rows and additions, drawn.
class DrawnElement {
public:
    explicit DrawnElement(uint32_t seed) : random_(seed) {
        m_ = number(17, 70), n_ = 8 * number(3, 8);  // of 16 or fewer threads may take them
        for (int64_t d = number(0, 1); d > 0; --d) batch_.push_back(number(1, 2));
    }

    Tensor declare() {
        Shape shape = dimensions({m_, n_});
        return compute("c", shape, [&](const std::vector<Expr>& at) {
            Expr value = summed(at);
            for (int64_t more = number(1, 2); more > 0; --more) {
                const Expr other = number(0, 3) == 0 ? squares(at) : summed(at);
                value = number(0, 1) == 0 ? value + other : other - value * 0.5;
            }
            return number(0, 1) == 0 ? value : cast(bf16, value);
        });
    }

    int products = 0;  ///< of what was declared, those of one sum together

private:
    int64_t number(int64_t least, int64_t most) { return std::uniform_int_distribution(least, most)(random_); }
    std::string name(const char* of) { return of + std::to_string(++names_); }
    Shape dimensions(const std::vector<int64_t>& last) const {
        Shape shape;
        for (const auto* part : {&batch_, &last})
            for (int64_t extent : *part) shape.emplace_back(extent);
        return shape;
    }

    Expr element(const std::vector<Expr>& at, int64_t rows, int64_t columns, Expr i, Expr j) {
        if (number(0, 1) == 1) std::swap(rows, columns), std::swap(i, j);
        const Tensor x = input(name("x"), bf16, dimensions({rows, columns}));
        std::vector<Operand> indices(at.begin(), at.end() - 2);
        indices.emplace_back(i);
        indices.emplace_back(j);
        return cast(f32, x.read(indices));
    }
    Expr product(const std::vector<Expr>& at, const Axis& k, int64_t terms) {
        const Expr a = element(at, m_, terms, at[at.size() - 2], k), b = element(at, terms, n_, k, at.back());
        return number(0, 1) == 0 ? a * b : b * a;
    }
    Expr summed(const std::vector<Expr>& at) {
        const int64_t terms = 8 * (1 + ++products);  // as many as no other sum has: they would be one
        const Axis k = reduce_axis(name("k"), terms);
        Expr term = product(at, k, terms);
        for (int64_t more = number(0, 1); more > 0; --more)
            term = number(0, 1) == 0 ? term + product(at, k, terms) : term - product(at, k, terms);
        return sum(term, k);
    }
    Expr squares(const std::vector<Expr>& at) {
        const int64_t terms = number(1, 40);
        const Axis k = reduce_axis(name("k"), terms);
        const Expr x = element(at, m_, terms, at[at.size() - 2], k);
        return sum(x * x, k);
    }

    std::mt19937 random_;
    int64_t m_, n_;
    std::vector<int64_t> batch_;
    int names_ = 0;
};

TEST(ProductsApart, AreEachMadeByTensorCores) {
    for (uint32_t seed = 1; seed <= 12; ++seed) {
        DrawnElement drawn(seed);
        const Tensor c = drawn.declare();
        SCOPED_TRACE(to_string(*c.operation()));
        const Schedule s = choose_schedule({c}, target("sm_90a"));
        EXPECT_EQ(times_in(s.trace_as_cpp(), ".mma("), static_cast<size_t>(drawn.products)) << s.explain();
        expect_right(s, {c}, seed);
    }
}

TEST(ProductsApart, AreNoneOfWhatHasOneProductOrNone) {
    const Axis k = reduce_axis("k", 64), l = reduce_axis("l", 64);
    const Tensor a = input("a", bf16, {64, 64}), b = input("b", bf16, {64, 64}), x = input("x", f32, {64, 64});
    const Tensor one = compute(
        "one", {64, 64}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, k)) * cast(f32, b(k, j)), k) + x(i, j); });
    const Tensor none = compute("none", {64, 64}, [&](Expr i, Expr j) { return sum(x(i, k) * x(k, j) - x(j, k), k); });
    const Tensor nested = compute("nested", {64, 64}, [&](Expr i, Expr j) {
        return sum(cast(f32, a(i, k)) * cast(f32, b(k, j)), k) + sum(x(i, l) * sum(x(i, k), k), l);
    });
    for (const Tensor& each : {one, none, nested}) {
        const Redeclared apart = products_apart({each});
        EXPECT_TRUE(apart.outputs[0].same(each)) << to_string(*each.operation());
        EXPECT_TRUE(apart.notes.empty());
    }
}

/// Steps of a stencil of five points.
Tensor diffused(int64_t height, int64_t width, int steps) {
    Tensor u = input("u0", f32, {height, width});
    for (int step = 1; step <= steps; ++step) {
        const Padded around = padded(u, 0.0);
        u = compute("u" + std::to_string(step), {height, width}, [&](Expr i, Expr j) {
            return u(i, j) * 0.5 + around(i - 1, j) + around(i + 1, j) * 0.2 + around(i, j - 1) + around(i, j + 1);
        });
    }
    return u;
}

// Products that no tensor core takes are tiles of threads each: of f32, of two types, in one sum or in several.
TEST(ProductsApart, OfThreadsAreTilesEach) {
    std::mt19937 random(5);
    for (int form = 0; form < 4; ++form) {
        const int64_t m = std::uniform_int_distribution<int64_t>(64, 90)(random), n = m + 7, k = 70;
        const Tensor a = input("a", f32, {m, k}), b = input("b", form == 3 ? bf16 : f32, {k, n}),
                     c = input("c", f32, {m, k}), d = input("d", form == 3 ? bf16 : f32, {k, n});
        const Axis r = reduce_axis("r", k), q = reduce_axis("q", k);
        auto product = [](const Tensor& x, const Tensor& y, const Expr& i, const Expr& j, const Axis& of) {
            return x(i, of) * cast(f32, y(of, j));
        };
        const Tensor y = compute("y", {m, n}, [&](Expr i, Expr j) {
            if (form == 0) return sum(product(a, b, i, j, r) - product(c, d, i, j, r), r);
            const Expr first = sum(product(a, b, i, j, r), r), second = sum(product(c, d, i, j, q), q);
            return form == 1 ? first + second : tanh(first) * second;
        });
        SCOPED_TRACE(to_string(*y.operation()));
        const Schedule s = choose_schedule({y}, target("sm_90a"));
        EXPECT_EQ(times_in(s.trace_as_cpp(), "Memory::Shared"), 4u) << s.trace_as_cpp();
        expect_right(s, {y}, 7);
    }
}

// Few rows, of which threads make each product: a kernel each, the second with what is made of both.
TEST(ProductsApart, OfFewRows) {
    std::mt19937 random(4);
    for (int round = 0; round < 3; ++round) {
        const int64_t m = std::uniform_int_distribution<int64_t>(1, 15)(random), n = 40, k = 72;
        const Tensor x = input("x", bf16, {m, k}), g = input("g", bf16, {n, k}), u = input("u", bf16, {n, k});
        const Axis r = reduce_axis("r", k);
        auto product = [&](const Expr& i, const Tensor& of, const Expr& j) {
            return sum(cast(f32, x(i, r)) * cast(f32, of(j, r)), r);
        };
        const Tensor h =
            compute("h", {m, n}, [&](Expr i, Expr j) { return silu(product(i, g, j)) * product(i, u, j); });
        const Schedule s = choose_schedule({h}, target("sm_90a"));
        EXPECT_GT(times_in(s.trace_as_cpp(), "g_registers"), 0u);
        EXPECT_EQ(build(s).kernels().size(), 2u);
        expect_right(s, {h}, 7);
    }
}

TEST(RepeatedElements, AreStoredOnceTheirReadersWouldComputeThemOftenEnough) {
    const Tensor large = diffused(431, 401, 3), small = diffused(43, 40, 3), once = diffused(431, 401, 1);
    std::vector<std::string> names;
    for (const Tensor& t : repeated_elements({large})) names.push_back(t.name());
    EXPECT_EQ(names, (std::vector<std::string>{"u1", "u2"}));
    EXPECT_TRUE(repeated_elements({small}).empty());
    EXPECT_TRUE(repeated_elements({once}).empty());
    const Schedule s = choose_schedule({large}, target("sm_90a"));
    EXPECT_EQ(codegen::lower(s.tree(), target("sm_90a")).kernels.size(), 3u) << s.explain();
    expect_right(s, {large}, 5);
}

TEST(RepeatedElements, AreNoneOfWhatIsReadAtOnePlace) {
    const Tensor x = input("x", f32, {1 << 20, 32});
    Tensor y = x;
    for (int step = 1; step <= 30; ++step)
        y = compute("y" + std::to_string(step), {1 << 20, 32}, [&](Expr i, Expr j) { return y(i, j) * y(i, j) + 1; });
    EXPECT_TRUE(repeated_elements({y}).empty());
}

}  // namespace
}  // namespace tw::schedules
