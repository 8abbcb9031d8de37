// Products on tensor cores whose terms have signs, constants or scalar parameters as factors.
#include <random>

#include "dsl/scaled_product.h"
#include "ops/runner.h"
#include "schedules/choose.h"
#include "tests/ops/on_each_device.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

constexpr int64_t m = 64, n = 32, terms = 48;

/// Factors of elements p and q, and what a term is made of them.
struct Form {
    const char* name;
    Expr (*term)(const Expr& p, const Expr& q);
};
Expr alpha() {
    static const Expr parameter = scalar("alpha", f32);
    return parameter;
}
const std::vector<Form> forms = {
    {"negated", [](const Expr& p, const Expr& q) { return -(p * q); }},
    {"negated factor", [](const Expr& p, const Expr& q) { return -p * q; }},
    {"twice negated", [](const Expr& p, const Expr& q) { return -(p * -q); }},
    {"scaled factor", [](const Expr& p, const Expr& q) { return p * 0.5 * q; }},
    {"scaled behind", [](const Expr& p, const Expr& q) { return p * q * 0.125; }},
    {"divided", [](const Expr& p, const Expr& q) { return p / 3.0 * q; }},
    {"by a parameter", [](const Expr& p, const Expr& q) { return alpha() * p * (q * -2.0); }},
};

class ScaledProducts : public OnEachDevice {
protected:
    void expect_right(const Schedule& s, const Tensor& y) {
        Runner runner(s, device_);
        runner.set(random_bindings({y}, random_()));
        const CheckResult check = runner.check();
        EXPECT_TRUE(check.ok) << check.text << "\n" << s.to_string();
    }
    Tensor product(const Form& form, Type type = bf16) const {
        Tensor a = input("a", type, {m, terms}), b = input("b", type, {n, terms});
        Axis k = reduce_axis("k", terms);
        return compute("y", {m, n},
                       [&](Expr i, Expr j) { return sum(form.term(cast(f32, a(i, k)), cast(f32, b(j, k))), k) + 1.0; });
    }
    std::mt19937 random_{std::random_device()()};
};
TW_ON_EACH_DEVICE(ScaledProducts);

TEST_P(ScaledProducts, AreMultipliedByInstructions) {
    for (const Form& form : forms) {
        SCOPED_TRACE(form.name);
        const Tensor y = product(form);
        Schedule s({y}, device_target());
        auto [i, j] = s.loops<2>(y);
        auto [io, ii] = s.split(i, 16);
        auto [jo, ji] = s.split(j, 8);
        auto [ko, ki] = s.split(s.reduce(y), 16);
        s.order({io, jo, ko, ii, ji, ki});
        s.bind(io, grid.x);
        s.bind(jo, warp);
        s.mma(y, mma_sync, {ii, ji, ki});
        const bool scales = s.explain().find("not each of its terms") != std::string::npos;
        EXPECT_EQ(scales, std::string(form.name) != "twice negated") << s.explain();
        expect_right(s, y);
    }
}

TEST_P(ScaledProducts, AreFound) {
    for (const Form& form : forms) {
        SCOPED_TRACE(form.name);
        const Tensor y = product(form);
        const Schedule s = schedules::choose_schedule({y}, device_target());
        const std::string steps = s.trace_as_cpp();
        EXPECT_TRUE(steps.find("s.mma(") != std::string::npos) << steps;
        EXPECT_EQ(s.tree().nests.size(), 1u);
        expect_right(s, y);
    }
}

TEST_P(ScaledProducts, WholeNumbersToo) {
    Tensor a = input("a", i8, {m, 64}), b = input("b", i8, {n, 64});
    Axis k = reduce_axis("k", 64);
    Tensor y =
        compute("y", {m, n}, [&](Expr i, Expr j) { return sum(cast(i32, a(i, k)) * -3 * cast(i32, b(j, k)), k); });
    const Schedule s = schedules::choose_schedule({y}, device_target());
    EXPECT_TRUE(s.trace_as_cpp().find("s.mma(") != std::string::npos) << s.trace_as_cpp();
    expect_declared(s, random_bindings({y}, random_()));
}

/// A factor that differs from term to term is no factor of the sum.
TEST(ScaledProduct, TakesWhatAllTermsHave) {
    Tensor a = input("a", f32, {4, 4}), b = input("b", f32, {4, 4}), w = input("w", f32, {4});
    const Expr i = index_variable("i", 0, 3), k = index_variable("k", 0, 3), p = a(i, k), q = b(k, i);
    auto text = [](const Expr& term) {
        const auto found = scaled_product(term);
        if (!found) return std::string("none");
        return to_string(found->a) + " " + to_string(found->b) + " " +
               (found->scale.defined() ? to_string(found->scale) : "alone");
    };
    EXPECT_EQ(text(p * q), "a[i, k] b[k, i] alone");
    EXPECT_EQ(text(-p * q), "a[i, k] b[k, i] -1.0");
    EXPECT_EQ(text(p * 0.5 * (q / 4.0)), "a[i, k] b[k, i] 0.5 / 4.0");
    EXPECT_EQ(text(p * alpha() * -q), "a[i, k] b[k, i] -alpha");
    EXPECT_EQ(text(p * w(k) * q), "none");
    EXPECT_EQ(text(p * cast(f32, k) * q), "none");
    EXPECT_EQ(text(p / q), "none");
    EXPECT_EQ(text(p + q), "none");
    EXPECT_EQ(text((p + 1.0) * q), "a[i, k] + 1.0 b[k, i] alone");
}

}  // namespace
}  // namespace tw
