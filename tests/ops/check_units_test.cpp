// Checking sums that tensor cores make: what truncation does passes, what an instruction less or one wrong element does
// is called wrong.
#include <cmath>
#include <functional>
#include <random>

#include <gtest/gtest.h>

#include "dsl/schedule.h"
#include "ops/check.h"
#include "ops/executable.h"
#include "ops/program.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

constexpr int64_t M = 64, N = 8;
using Epilogue = std::function<Expr(const Expr&)>;

Expr factor(Type type, const Expr& x) { return type == f32 ? truncate_tf32(x) : cast(f32, x); }

/// One tile of a product whose terms the unit sums in pieces of 32 bytes.
struct UnitProduct {
    Tensor a, b, c;
    mutable Executable executable;
    int64_t k, piece;

    UnitProduct(Type type, MatrixUnit unit, int64_t terms, const Epilogue& epilogue = {})
        : a(input("a", type, {M, terms})),
          b(input("b", type, {N, terms})),
          executable(scheduled(type, unit, terms, epilogue), open_device("emulated")),
          k(terms),
          piece(32 / bytes_of(type)) {}

    Program scheduled(Type type, MatrixUnit unit, int64_t terms, const Epilogue& epilogue) {
        Axis r = reduce_axis("r", terms);
        c = compute("c", {M, N}, [&](Expr i, Expr j) {
            Expr product = sum(factor(type, a(i, r)) * factor(type, b(j, r)), r);
            return epilogue ? epilogue(product) : product;
        });
        Schedule s({c}, target("sm_90a"));
        auto [i, j] = s.loops<2>(c);
        auto [bi, it] = s.split(i, 64);
        auto [ko, ki] = s.split(s.reduce(c), 32 / bytes_of(type));
        s.order({bi, ko, it, j, ki});
        s.bind(bi, grid.x);
        s.stage(c, a, Memory::Shared, ko);
        s.stage(c, b, Memory::Shared, ko);
        s.mma(c, unit, {.m = it, .n = j, .k = ki});
        return build(s);
    }

    /// The kernel computes with `used`, and is said to have computed with `given`.
    CheckResult check(const Bindings& given, const Bindings& used, const CheckOptions& options = {}) const {
        return check_output(c, given, run_on(executable, used)[0], options);
    }
};

/// Of one sign or of both, of like or of very different sizes.
Bindings operands(const UnitProduct& product, std::mt19937_64& random, bool one_sign, int spread) {
    Bindings bindings = random_bindings({product.c}, random());
    for (auto& [name, array] : bindings.inputs) {
        std::vector<int64_t> at(array.shape.size());
        do {
            int exponent = static_cast<int>(random() % uint64_t(2 * spread + 1)) - spread;
            double value = std::ldexp(array.at(at).real, exponent);
            array.set(at, make_value(array.type, one_sign ? std::abs(value) : value));
        } while (advance(at, array.shape));
    }
    return bindings;
}

void zero_terms(Bindings& bindings, int64_t from, int64_t to) {
    HostArray& a = bindings.inputs.at("a");
    for (int64_t i = 0; i < M; ++i)
        for (int64_t r = from; r < to; ++r) a.set({i, r}, make_value(a.type, 0.0));
}

TEST(CheckUnits, TruncatedSumsPass) {
    std::mt19937_64 random(1);
    double most = 0;
    for (Type type : {bf16, f16, f32, e4m3})
        for (MatrixUnit unit : {mma_sync, wgmma})
            for (int64_t k : {32, 96, 256}) {
                if (type == e4m3 && unit == wgmma) continue;
                UnitProduct product(type, unit, k);
                for (bool one_sign : {false, true}) {
                    Bindings bindings = operands(product, random, one_sign, type == e4m3 ? 0 : 2);
                    CheckResult result = product.check(bindings, bindings);
                    EXPECT_TRUE(result.ok)
                        << name_of(type) << " " << to_string(unit) << " " << k << ": " << result.text;
                    EXPECT_GT(result.unit_error, 0);
                    most = std::max(most, result.error / result.plain_error);
                }
            }
    EXPECT_GT(most, 1.5) << "no sum was truncated";
}

// A piece of k is not added, sums begin anew at a piece, or one element of an operand is its neighbour.
TEST(CheckUnits, MutationsAreWrong) {
    std::mt19937_64 random(2);
    auto relu_of = [](const Expr& x) { return max(x, 0.0); };
    auto gelu_of = [](const Expr& x) { return cast(bf16, gelu(x)); };
    const Epilogue epilogues[] = {{}, relu_of, gelu_of};
    for (Type type : {bf16, f16, f32, e4m3})
        for (int64_t k : {64, 256}) {
            const Epilogue& epilogue = epilogues[random() % 3];
            UnitProduct product(type, type == e4m3 || random() % 2 ? mma_sync : wgmma, k, epilogue);
            SCOPED_TRACE(to_string(*product.c.operation()));
            Bindings right = operands(product, random, random() % 2, 0);
            CheckResult result = product.check(right, right);
            EXPECT_TRUE(result.ok) << result.text;
            int64_t pieces = k / product.piece, piece = static_cast<int64_t>(random() % uint64_t(pieces));
            Bindings dropped = right, forgot = right, neighbour = right;
            zero_terms(dropped, piece * product.piece, (piece + 1) * product.piece);
            zero_terms(forgot, 0, (piece % (pieces - 1) + 1) * product.piece);
            HostArray& b = neighbour.inputs.at("b");
            int64_t row = static_cast<int64_t>(random() % N), term = static_cast<int64_t>(random() % uint64_t(k - 1));
            b.set({row, term}, make_value(b.type, -b.at({row, term}).real - 0.25));
            for (const Bindings* used : {&dropped, &forgot, &neighbour}) {
                result = product.check(right, *used);
                EXPECT_FALSE(result.ok) << result.text;
            }
        }
}

// Sums of fp8 in wgmma are so much coarser that one says so.
TEST(CheckUnits, FewBits) {
    std::mt19937_64 random(3);
    for (int64_t k : {64, 256}) {
        UnitProduct product(e4m3, wgmma, k);
        for (bool one_sign : {false, true}) {
            Bindings bindings = operands(product, random, one_sign, 0);
            EXPECT_FALSE(product.check(bindings, bindings).ok);
            CheckResult result = product.check(bindings, bindings, {.few_bits = true});
            EXPECT_TRUE(result.ok) << result.text;
            Bindings dropped = bindings;
            zero_terms(dropped, 0, k / 2);
            EXPECT_FALSE(product.check(bindings, dropped, {.few_bits = true}).ok);
        }
    }
}

// f32 factors that no unit takes have no allowance, but where the schedule may round them.
TEST(CheckUnits, OnlyOfWhatUnitsMultiply) {
    Tensor x = input("x", f32, {M, 40}), y = input("y", f32, {40, N}), h = input("h", bf16, {M, 40});
    Axis r = reduce_axis("r", 40);
    auto unit_error = [&](const Tensor& c, const CheckOptions& options = {}) {
        Bindings bindings = random_bindings({c}, 4);
        return check_output(c, bindings, interpret_plain({c}, bindings)[0], options).unit_error;
    };
    Tensor plain = compute("plain", {M, N}, [&](Expr i, Expr j) { return sum(x(i, r) * y(r, j), r); });
    EXPECT_EQ(unit_error(plain), 0);
    EXPECT_GT(unit_error(plain, {.roundings = {tf32}}), 0);
    EXPECT_EQ(unit_error(compute("row", {M}, [&](Expr i) { return sum(cast(f32, h(i, r)), r); })), 0);
    EXPECT_EQ(
        unit_error(compute("mixed", {M, N}, [&](Expr i, Expr j) { return sum(cast(f32, h(i, r)) * y(r, j), r); })), 0);
    EXPECT_GT(unit_error(compute("same", {M, M},
                                 [&](Expr i, Expr j) { return sum(cast(f32, h(i, r)) * cast(f32, h(j, r)), r); })),
              0);
}

// What is made of sums: the allowance follows, and vanishes with what is made of them.
TEST(CheckUnits, AllowancesTravel) {
    Tensor h = input("h", bf16, {16, 64}), g = input("g", bf16, {16, 64});
    Axis r = reduce_axis("r", 64), q = reduce_axis("q", 16);
    Tensor p = compute("p", {16, 16}, [&](Expr i, Expr j) { return sum(cast(f32, h(i, r)) * cast(f32, g(j, r)), r); });
    auto unit_error = [&](const std::function<Expr(Expr)>& element) {
        Tensor y = compute("y", {16}, element);
        Bindings bindings = random_bindings({y}, 4);
        HostArray got = interpret_plain({y}, bindings)[0];
        CheckResult result = check_output(y, bindings, got);
        EXPECT_TRUE(result.ok) << result.text;
        return result.unit_error * [&] {
            double largest = 0;
            for (int64_t i = 0; i < 16; ++i) largest = std::max(largest, std::abs(got.at({i}).real));
            return largest > 0 ? largest : 1;
        }();
    };
    double one = unit_error([&](Expr i) { return p(i, i); });
    EXPECT_GT(one, 0);
    EXPECT_NEAR(unit_error([&](Expr i) { return -3.0 * p(i, i); }), 3 * one, one * 1e-3);
    EXPECT_NEAR(unit_error([&](Expr i) { return p(i, i) - p(i, i); }), 2 * one, one * 1e-3);
    EXPECT_LT(unit_error([&](Expr i) { return tanh(p(i, i)); }), one);
    EXPECT_GT(unit_error([&](Expr i) { return sum(p(i, q), q); }), 4 * one);
    EXPECT_LT(unit_error([&](Expr i) { return reduce_max(p(i, q), q); }), 2 * one);
    EXPECT_EQ(unit_error([&](Expr i) { return p(i, i) * 0.0 + cast(f32, i); }), 0);
    EXPECT_GT(unit_error([&](Expr i) { return select(p(i, i) - 1.0 * p(i, i) > 0.0, 0.0, 1.0); }), 0.5);
}

}  // namespace
}  // namespace tw
