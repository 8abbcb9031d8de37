#include "dsl/evaluate.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>

#include <gtest/gtest.h>

#include "dsl/integers.h"
#include "dsl/simplify.h"
#include "dsl/tree.h"
#include "tests/dsl/random_expr.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

const MemoryView* no_memory(const ExprNode&) { return nullptr; }

/// The value of an expression without variables.
Value value_of(const Expr& expr, Precision precision = Precision::Declared) {
    SlotMap slots;
    return CompiledExpr(expr, slots, no_memory, precision).run({});
}

Expr f(double value) { return constant(f32, value); }

TEST(EvaluateTest, RandomIntegerExpressionsByDefinition) {
    RandomExprs exprs(11);
    for (int round = 0; round < 5000; ++round) {
        Expr expr = round % 3 ? exprs.integer(4) : exprs.boolean(3);
        SlotMap slots;
        CompiledExpr compiled(expr, slots, no_memory);
        Assignment values = exprs.assignment();
        std::vector<Register> registers(static_cast<size_t>(slots.size()));
        for (const Expr& v : {exprs.i, exprs.o, exprs.j, exprs.k, exprs.x, exprs.n, exprs.m, exprs.e, exprs.f}) {
            size_t slot = static_cast<size_t>(slots.slot(v));
            if (slot < registers.size()) registers[slot].integer = values.at(v.id());
        }
        ASSERT_EQ(compiled.run(registers).integer, value_by_definition(expr, values)) << to_string(expr);
    }
}

// What depends on arguments that have not changed is not computed again.
TEST(EvaluateTest, RunsInWhichAFewArgumentsChange) {
    RandomExprs exprs(12);
    const std::vector<Expr> variables = {exprs.i, exprs.o, exprs.j, exprs.k, exprs.x, exprs.n, exprs.m};
    for (int round = 0; round < 500; ++round) {
        SlotMap slots;
        for (const Expr& v : variables) slots.slot(v);
        Expr divisor = exprs.i - exprs.j, quotient = exprs.integer(3) / divisor;
        Expr expr = exprs.integer(3) + select(exprs.boolean(2) && divisor != 0, quotient - exprs.integer(3), quotient);
        CompiledExpr compiled(expr, slots, no_memory);
        std::vector<Register> registers(static_cast<size_t>(slots.size()));
        for (int run = 0; run < 12; ++run) {
            Assignment values = exprs.assignment();
            for (size_t slot = 0; slot < variables.size(); ++slot)
                if (run == 0 || exprs.pick(0, 2) == 0) registers[slot].integer = values.at(variables[slot].id());
            auto outcome = [&](const CompiledExpr& code) -> std::optional<int64_t> {
                try {
                    return code.run(registers).integer;
                } catch (const EvaluationError&) {
                    return {};
                }
            };
            ASSERT_EQ(outcome(compiled), outcome(CompiledExpr(expr, slots, no_memory))) << to_string(expr);
        }
    }
}

TEST(EvaluateTest, EveryOperationRoundsToItsType) {
    float a = 1.1f, b = 3.3f;
    EXPECT_EQ(value_of(f(a) + f(b)).real, a + b);
    EXPECT_EQ(value_of(f(a) / f(b)).real, a / b);
    EXPECT_EQ(value_of(f(a) * f(b) - f(b)).real, float(a * b) - b);
    EXPECT_EQ(value_of(fma(f(a), f(b), f(-b))).real, std::fmaf(a, b, -b));
    EXPECT_EQ(value_of(exp(f(a))).real, float(std::exp(double(a))));
    EXPECT_EQ(value_of(rsqrt(f(b))).real, 1 / std::sqrt(b));
    EXPECT_EQ(value_of(sqrt(f(b))).real, std::sqrt(b));
    EXPECT_EQ(value_of(round(f(2.5))).real, 2);
    EXPECT_EQ(value_of(floor(f(-0.5))).real, -1);
    EXPECT_EQ(value_of(truncate_tf32(f(-1 - 0x1.7p-10))).real, -1 - 0x1p-10);
    EXPECT_EQ(value_of(erf(f(a))).real, float(std::erf(double(a))));
    EXPECT_EQ(value_of(Expr(0.1)).real, double{0.1f});
    for (auto [function, expected] :
         {std::pair(log(f(b)), std::log(double(b))), std::pair(log2(f(b)), std::log2(double(b))),
          std::pair(exp2(f(b)), std::exp2(double(b))), std::pair(tanh(f(b)), std::tanh(double(b)))})
        EXPECT_EQ(value_of(function).real, float(expected));
    EXPECT_EQ(value_of(exp2(f(-126))).real, 0x1p-126);
    EXPECT_EQ(value_of(exp2(f(-127))).real, 0) << "no subnormal numbers";
    EXPECT_EQ(value_of(exp2(f(-127)), Precision::Float64).real, 0x1p-127);
}

TEST(EvaluateTest, Float64KeepsAllDigits) {
    double a = 1.1, b = 3.3;
    EXPECT_EQ(value_of(cast_unchecked(f32, cast_unchecked(bf16, f(b) / f(a))), Precision::Float64).real,
              double{3.3f} / double{1.1f});
    EXPECT_EQ(value_of(truncate_tf32(f(a)), Precision::Float64).real, 0x1.198p0) << "no rounding, but a function";
    EXPECT_EQ(value_of(truncate_tf32(f(a) / f(a) - cast(f32, constant(f64, 1e-12))), Precision::Float64).real, 1)
        << "of the nearest f32";
    EXPECT_EQ(value_of(Expr(0.1), Precision::Float64).real, 0.1);
    EXPECT_EQ(value_of(exp(Expr(1)), Precision::Float64).real, std::exp(1.0));
    EXPECT_EQ(value_of(fma(constant(f64, a), constant(f64, b), constant(f64, 1.0))).real, std::fma(a, b, 1.0));
}

TEST(EvaluateTest, Conversions) {
    EXPECT_EQ(value_of(cast_unchecked(f32, cast_unchecked(bf16, f(1.005)))).real, round_to_type(bf16, 1.005f));
    EXPECT_EQ(value_of(cast_unchecked(e4m3, f(1e9))).real, 448);
    EXPECT_EQ(value_of(cast_unchecked(i32, f(-2.7))).integer, -2);
    EXPECT_EQ(value_of(cast_unchecked(i8, cast_unchecked(i32, f(300)))).integer, 44);
    EXPECT_EQ(value_of(cast_unchecked(f32, cast_unchecked(i64, f(7)))).real, 7);
    EXPECT_EQ(value_of(cast_unchecked(f16, cast_unchecked(i64, f(2049)))).real, 2048);
    EXPECT_EQ(value_of(cast_unchecked(f64, f(0.1))).real, double{0.1f});
    EXPECT_EQ(value_of(cast_unchecked(f32, constant(f64, 0.1))).real, double{0.1f});
    EXPECT_EQ(value_of(cast_unchecked(f16, constant(f64, 2049.0))).real, 2048);
    EXPECT_EQ(value_of(cast_unchecked(boolean, f(0.5))).integer, 1);
    for (uint32_t high = 0; high < 0x10000; high += 7) {
        float real;
        uint32_t bits = high << 16 | 0x8000;
        std::memcpy(&real, &bits, sizeof real);
        double rounded = value_of(cast_unchecked(bf16, f(real))).real, expected = round_to_type(bf16, real);
        ASSERT_TRUE(rounded == expected || (rounded != rounded && expected != expected)) << real;
    }
}

TEST(EvaluateTest, Integers) {
    Expr u = constant(u32, int64_t{0xffffffff}), w = constant(i32, int64_t{0x7fffffff});
    EXPECT_EQ(value_of(u + 1).integer, 0);
    EXPECT_EQ(value_of(u * u).integer, 1);
    EXPECT_EQ(value_of(w + constant(i32, 1)).integer, -2147483648LL);
    EXPECT_EQ(value_of(Expr(-7) / 2).integer, -4);
    EXPECT_EQ(value_of(Expr(-7) % 2).integer, 1);
    EXPECT_EQ(value_of(Expr(7) % -2).integer, -1);
    Expr zero = index_variable("zero");
    SlotMap slots;
    CompiledExpr division(Expr(1) / zero, slots, no_memory);
    EXPECT_ERROR(division.run(std::vector<Register>(1)), "an integer is divided by zero");
    EXPECT_EQ(
        CompiledExpr(select(zero == 0, 0, Expr(1) / zero), slots, no_memory).run(std::vector<Register>(1)).integer, 0);
}

constexpr __int128 two_to_32 = __int128{1} << 32;

/// By the definition over all integers, of which 128 bits hold enough.
std::optional<int64_t> by_definition(BinaryOp op, __int128 a, __int128 b) {
    auto wrapped = [](__int128 value) { return static_cast<int64_t>(static_cast<uint64_t>(value)); };
    __int128 quotient = b == 0 ? 0 : a / b;
    if (b != 0 && quotient * b != a && (a < 0) != (b < 0)) --quotient;
    switch (op) {
        case BinaryOp::Add: return wrapped(a + b);
        case BinaryOp::Sub: return wrapped(a - b);
        case BinaryOp::Mul: return wrapped(a * b);
        case BinaryOp::Div: return b == 0 ? std::nullopt : std::optional(wrapped(quotient));
        case BinaryOp::Mod: return b == 0 ? std::nullopt : std::optional(wrapped(a - quotient * b));
        case BinaryOp::Min: return wrapped(a < b ? a : b);
        case BinaryOp::Max: return wrapped(a < b ? b : a);
        case BinaryOp::Less: return a < b;
        case BinaryOp::LessEqual: return a <= b;
        case BinaryOp::Equal: return a == b;
        case BinaryOp::NotEqual: return a != b;
        case BinaryOp::And: return a != 0 && b != 0;
        case BinaryOp::Or: return a != 0 || b != 0;
        case BinaryOp::BitAnd: return wrapped(a & b);
        case BinaryOp::BitOr: return wrapped(a | b);
        case BinaryOp::BitXor: return wrapped(a ^ b);
        case BinaryOp::ShiftLeft: return b < 32 ? wrapped((a << b) % two_to_32) : 0;
        case BinaryOp::ShiftRight: return b < 32 ? wrapped(a >> b) : 0;
        case BinaryOp::MulHigh: return wrapped(a * b / two_to_32);
        case BinaryOp::DivShared: break;
    }
    return {};
}

TEST(EvaluateTest, IntegersAtTheirLimits) {
    constexpr int64_t least = std::numeric_limits<int64_t>::min(), most = std::numeric_limits<int64_t>::max();
    for (int64_t a :
         {least, least + 1, int64_t{-8}, int64_t{-7}, int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{9}, most})
        for (int64_t b : {least, int64_t{-4}, int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{3}, most - 1, most})
            for (int op = 0; op <= static_cast<int>(BinaryOp::Or); ++op) {
                SCOPED_TRACE(fmt::format("{} {} {}", a, op, b));
                auto operation = static_cast<BinaryOp>(op);
                bool connects = operation == BinaryOp::And || operation == BinaryOp::Or;
                Type type = connects ? Type::Bool : Type::I64;
                int64_t left = connects ? a != 0 : a, right = connects ? b != 0 : b;
                auto expected = by_definition(operation, left, right);
                EXPECT_EQ(apply_to_integers(operation, left, right), expected);
                if (!expected) continue;
                Expr expr = binary(operation, constant(type, left), constant(type, right));
                EXPECT_EQ(value_of(expr).integer, *expected);
                EXPECT_EQ(value_of(simplify(expr)).integer, *expected);
            }
}

TEST(EvaluateTest, Words) {
    constexpr int64_t words[] = {0,  1,    2,          3,          7,          31,         32,
                                 33, 0x80, 0x7fffffff, 0x80000000, 0xdeadbeef, 0xfffffffe, 0xffffffff};
    Expr x = scalar("x", u32), y = scalar("y", u32);
    for (int op = static_cast<int>(BinaryOp::BitAnd); op <= static_cast<int>(BinaryOp::MulHigh); ++op) {
        auto operation = static_cast<BinaryOp>(op);
        SlotMap slots;
        slots.slot(x), slots.slot(y);
        CompiledExpr compiled(binary(operation, x, y), slots, no_memory);
        for (int64_t a : words)
            for (int64_t b : words) {
                SCOPED_TRACE(fmt::format("{} {} {}", a, op, b));
                const int64_t expected = by_definition(operation, a, b).value();
                EXPECT_EQ(apply_to_integers(operation, a, b), expected);
                Expr of_constants = binary(operation, constant(u32, a), constant(u32, b));
                EXPECT_EQ(value_of(of_constants).integer, expected);
                EXPECT_EQ(as_constant(simplify(of_constants)), expected);
                std::vector<Register> registers(2);
                registers[0].integer = a, registers[1].integer = b;
                EXPECT_EQ(compiled.run_integer(registers), expected);
                const BoundsOverride near{{x.id(), {a, a}}, {y.id(), {b, b}}};
                const Interval bounds = bounds_of(binary(operation, x, y), near);
                EXPECT_LE(bounds.min.value(), expected);
                EXPECT_GE(bounds.max.value(), expected);
            }
    }
}

TEST(EvaluateTest, MinAndMaxPreferNumbers) {
    EXPECT_EQ(value_of(min(f(NAN), f(1))).real, 1);
    EXPECT_EQ(value_of(max(f(1), f(NAN))).real, 1);
    EXPECT_TRUE(std::signbit(value_of(min(f(0.0), f(-0.0))).real));
    EXPECT_FALSE(std::signbit(value_of(max(f(-0.0), f(0.0))).real));
    EXPECT_EQ(value_of(f(NAN) == f(NAN)).integer, 0);
    EXPECT_EQ(value_of(f(NAN) != f(NAN)).integer, 1);
    EXPECT_EQ(value_of(!(f(NAN) < f(1))).integer, 1);
}

class ElementsTest : public testing::Test {
protected:
    Expr load(const Expr& row, const Expr& column) { return make_expr(type, Load{buffer, {row, column}}); }
    Value run(const Expr& expr, int64_t value, Precision precision = Precision::Declared) {
        SlotMap slots;
        slots.slot(i);
        std::vector<Register> registers(1);
        registers[0].integer = value;
        return CompiledExpr(
                   expr, slots, [&](const ExprNode&) { return &memory; }, precision)
            .run(registers);
    }
    template <class T>
    void fill(Type element_type, std::vector<T> elements) {
        type = memory.type = element_type;
        storage.resize(elements.size() * sizeof(T));
        std::memcpy(storage.data(), elements.data(), storage.size());
        memory.data = storage.data();
    }

    Type type = f32;
    std::shared_ptr<const BufferNode> buffer = std::make_shared<BufferNode>(
        BufferNode{.name = "a", .type = f32, .memory = Memory::Global, .shape = {}, .strides = {}});
    Expr i = index_variable("i");
    std::vector<unsigned char> storage;
    MemoryView memory{
        .type = f32, .strides = {3, 1}, .shape = {2, 3}, .data = nullptr, .initialised = nullptr, .name = "a"};
};

TEST_F(ElementsTest, AreFoundByStrides) {
    fill<float>(f32, {0, 1, 2, 3, 4, 5});
    EXPECT_EQ(run(load(1, i), 2).real, 5);
    EXPECT_EQ(run(load(1, i), 2, Precision::Float64).real, 5);
    fill<uint16_t>(bf16, {0, 0x3f80, 0, 0, 0, 0x4000});
    EXPECT_EQ(run(cast(f32, load(1, i)), 2).real, 2);
    fill<uint8_t>(e4m3, {0, 0x38, 0, 0, 0, 0});
    EXPECT_EQ(run(cast(f32, load(0, i)), 1).real, 1);
    fill<int32_t>(i32, {0, -7, 0, 0, 0, 0});
    EXPECT_EQ(run(load(0, i), 1).integer, -7);
    const int64_t indices[] = {1, 2};
    EXPECT_EQ(locate(memory, indices), 5);
}

TEST_F(ElementsTest, ChecksShapeAndInitialisation) {
    fill<float>(f32, {0, 1, 2, 3, 4, 5});
    EXPECT_ERROR(run(load(1, i), 3), "a[1, 3] is outside of its shape [2, 3]; guard the read, or correct the index");
    EXPECT_ERROR(run(load(i, 0), -1), "a[-1, 0] is outside of its shape [2, 3]");
    std::vector<uint8_t> written = {1, 1, 0, 1, 1, 1};
    memory.initialised = written.data();
    EXPECT_EQ(run(load(0, i), 1).real, 1);
    EXPECT_ERROR(run(load(0, i), 2), "a[0, 2] (shape [2, 3]) is read before anything wrote it");
    const int64_t outside[] = {2, 0};
    EXPECT_ERROR(locate(memory, outside), "a[2, 0] is outside");
    EXPECT_THROW(run(load(1, i), 3), EvaluationError);
}

TEST_F(ElementsTest, OnlyTheChosenSideIsRead) {
    fill<float>(f32, {0, 1, 2, 3, 4, 5});
    Expr element = load(1, i);
    Expr guarded = select(i >= 0 && i < 3, element, -1);
    EXPECT_EQ(run(guarded, 7).real, -1);
    EXPECT_EQ(run(guarded, 2).real, 5);
    EXPECT_EQ(run(i < 3 && element > 4.5, 7).integer, 0);
    EXPECT_EQ(run(i >= 3 || element > 4.5, 7).integer, 1);
    EXPECT_EQ(run(i >= 3 || element > 4.5, 2).integer, 1);
    // What one side has computed is not taken for known on the other, or after both.
    EXPECT_EQ(run(select(i < 0, element * 2, element * 3) + element, 2).real, 20);
}

TEST_F(ElementsTest, TheViewMayChangeBetweenRuns) {
    fill<float>(f32, {0, 1, 2, 3, 4, 5});
    SlotMap slots;
    CompiledExpr compiled(load(0, 1), slots, [&](const ExprNode&) { return &memory; });
    EXPECT_EQ(compiled.run({}).real, 1);
    fill<float>(f32, {0, 9, 2, 3, 4, 5});
    EXPECT_EQ(compiled.run({}).real, 9);
}

TEST_F(ElementsTest, ElementsAreReadInEachRun) {
    fill<int32_t>(i32, {0, 1, 2, 3, 4, 5});
    Expr j = index_variable("j");
    Expr element = load(i % 2, j % 3), expr = select(element < i, element * j, load(i % 2, (j + 1) % 3)) + i * j + 7;
    SlotMap slots;
    slots.slot(i), slots.slot(j);
    CompiledExpr compiled(expr, slots, [&](const ExprNode&) { return &memory; });
    std::mt19937 random(5);
    std::vector<Register> registers(2);
    for (int run = 0; run < 500; ++run) {
        for (Register& value : registers)
            if (random() % 2) value.integer = random() % 8;
        reinterpret_cast<int32_t*>(storage.data())[random() % 6] = int32_t(random() % 9);
        int64_t expected = CompiledExpr(expr, slots, [&](const ExprNode&) { return &memory; }).run(registers).integer;
        ASSERT_EQ(compiled.run(registers).integer, expected) << "run " << run;
    }
}

TEST_F(ElementsTest, Speed) {
    fill<float>(f32, {0, 1, 2, 3, 4, 5});
    Expr x = load(i % 2, i % 3), expr = f(0);
    for (int term = 0; term < 16; ++term) expr = fma(x + term, f(0.5), expr * 1.5 - x);
    SlotMap slots;
    CompiledExpr compiled(expr, slots, [&](const ExprNode&) { return &memory; });
    std::vector<Register> registers(1);
    constexpr int runs = 20000;
    auto start = std::chrono::steady_clock::now();
    for (int run = 0; run < runs; ++run) {
        registers[0].integer = run;
        compiled.run(registers);
    }
    std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    double per_second = static_cast<double>(compiled.num_instructions()) * runs / time.count();
    RecordProperty("operations_per_second", fmt::format("{:.3g}", per_second));
    EXPECT_GT(per_second, 1e6);  // 300 M in a release build; sanitizers and busy machines take longer
}

}  // namespace
}  // namespace tw
