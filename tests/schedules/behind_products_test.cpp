// Products whose elements one tensor alone reads: one kernel.
#include "schedules/behind_products.h"

#include <random>
#include <utility>

#include <gmock/gmock.h>

#include "ops/runner.h"
#include "schedules/choose.h"

namespace tw::schedules {
namespace {

/// A product, of one matrix or a batch, and a chain of elements behind it: activations, biases, residuals, elements
/// that are made of two of those before.
class DrawnChain {
public:
    explicit DrawnChain(uint32_t seed) : random_(seed) {
        for (int64_t d = number(0, 1); d > 0; --d) shape_.push_back(number(1, 3));
        shape_.push_back(number(16, 70)), shape_.push_back(number(16, 70));
    }

    Tensor declare() {
        const Type type = number(0, 1) == 0 ? f32 : bf16;
        made_.push_back(product(type));
        for (int64_t n = number(1, 4); n > 0; --n) made_.push_back(elements());
        return made_.back();
    }

private:
    int64_t number(int64_t least, int64_t most) { return std::uniform_int_distribution(least, most)(random_); }
    std::string name(const char* of) { return of + std::to_string(++names_); }
    Shape shape() const { return {shape_.begin(), shape_.end()}; }

    Tensor product(Type type) {
        const int64_t k = 8 * number(2, 9);
        std::vector<int64_t> left = shape_, right = shape_;
        left[left.size() - 1] = k, right[right.size() - 2] = k;
        const Tensor a = input("a", type, Shape(left.begin(), left.end())),
                     b = input("b", type, Shape(right.begin(), right.end()));
        const Axis r = reduce_axis("r", k);
        return compute(name("z"), shape(), [&](const std::vector<Expr>& at) {
            std::vector<Operand> i(at.begin(), at.end()), j(at.begin(), at.end());
            i[at.size() - 1] = Operand(r), j[at.size() - 2] = Operand(r);
            const Expr total = sum(cast(f32, a.read(i)) * cast(f32, b.read(j)), r);
            return number(0, 1) == 0 ? total : cast(bf16, total);
        });
    }

    Tensor elements() {
        const Tensor x = made_.back(), other = made_[static_cast<size_t>(number(0, int64_t(made_.size()) - 1))];
        const Tensor bias = input(name("bias"), f32, {shape_.back()});
        return compute(name("h"), shape(), [&](const std::vector<Expr>& at) {
            const std::vector<Operand> own(at.begin(), at.end());
            const Expr value = cast(f32, x.read(own));
            switch (number(0, 3)) {
                case 0: return relu(value) + bias(at.back());
                case 1: return cast(bf16, value * 0.5);
                case 2:  // once, so that products are exact, too
                    if (!std::exchange(multiplied_, true)) return value * cast(f32, other.read(own));
                    [[fallthrough]];
                default: return value - bias(at.back());
            }
        });
    }

    std::mt19937 random_;
    std::vector<int64_t> shape_;
    std::vector<Tensor> made_;
    int names_ = 0;
    bool multiplied_ = false;
};

TEST(BehindProducts, WhatOneTensorAloneReadsIsNoTensor) {
    const uint32_t seed = std::random_device{}();
    for (uint32_t trial = 0; trial < 24; ++trial) {
        SCOPED_TRACE(fmt::format("trial {} of seed {}", trial, seed));
        const Tensor y = DrawnChain(seed + trial).declare();
        const Redeclared behind = behind_products({y}, target("sm_90a"));
        for (const auto& operation : operations_of(behind.outputs))
            EXPECT_TRUE(operation->is_input() || operation->name == y.name()) << operation->name;
        const Schedule s = choose_schedule({y}, target("sm_90a"));
        EXPECT_THAT(build(s).explain(), testing::HasSubstr("' is made with '" + y.name() + "', which alone reads it"));
        Runner runner(s, open_device("emulated"));
        Bindings data = random_bindings({y}, seed);  // whole: sums are exact, in any order
        for (auto& [name, array] : data.inputs) fill_integers(array, -2, 2, seed + trial);
        runner.set(data);
        const CheckResult check = runner.check();
        EXPECT_TRUE(check.ok) << check.text << "\n" << s.trace_as_cpp();
    }
}

/// Also where it only tells how long a sum is.
TEST(BehindProducts, LengthsReadWhatIsDeclaredAnew) {
    const int64_t n = 32;
    const Tensor a = input("a", bf16, {n, n}), b = input("b", bf16, {n, n}), x = input("x", f32, {n, n});
    const Axis r = reduce_axis("r", n);
    const Tensor z =
        compute("z", {n, n}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, r)) * cast(f32, b(r, j)), r); });
    const Tensor h = compute("h", {n, n}, [&](Expr i, Expr j) { return min(relu(z(i, j)), 9.0); });
    const Tensor lengths = compute("lengths", {n}, [&](Expr i) { return cast(i32, h(i, 0)); });
    const Tensor y = compute("y", {n}, [&](Expr i) {
        const Axis k = reduce_axis("k", lengths(i));
        return sum(x(i, k), k);
    });
    for (const auto& operation : operations_of(behind_products({y}, target("sm_90a")).outputs))
        EXPECT_NE(operation->name, "z");
    Runner runner(choose_schedule({y}, target("sm_90a")), open_device("emulated"));
    EXPECT_TRUE(runner.set(random_bindings({y}, 3)).check().ok);
}

/// Outputs, what others read too, and what is read elsewhere keep their memory.
TEST(BehindProducts, OthersStayTensors) {
    const int64_t n = 32;
    const Tensor a = input("a", bf16, {n, n}), b = input("b", bf16, {n, n});
    const Axis r = reduce_axis("r", n);
    const Tensor z =
        compute("z", {n, n}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, r)) * cast(f32, b(r, j)), r); });
    const Tensor h = compute("h", {n, n}, [&](Expr i, Expr j) { return relu(z(i, j)); });
    const Tensor turned = compute("turned", {n, n}, [&](Expr i, Expr j) { return relu(z(j, i)); });
    const Tensor rows = compute("rows", {n}, [&](Expr i) { return sum(z(i, r), r); });
    auto is_folded = [&](const std::vector<Tensor>& outputs) {
        return !behind_products(outputs, target("sm_90a")).notes.empty();
    };
    EXPECT_TRUE(is_folded({h}));
    EXPECT_FALSE(is_folded({z, h}));
    EXPECT_FALSE(is_folded({turned}));
    EXPECT_FALSE(is_folded({h, rows}));
}

}  // namespace
}  // namespace tw::schedules
