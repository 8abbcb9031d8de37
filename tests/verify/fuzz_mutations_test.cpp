// Mutations of the catalog's kernels: each is caught, or provably changes nothing. TW_FUZZ_MUTATIONS sets their number
// (0: all, which takes long).
#include <cmath>
#include <limits>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schedules/catalog.h"
#include "tests/verify/expect_all_caught.h"
#include "verify/catalog_trial.h"
#include "verify/prove_equivalent.h"
#include "verify/telling_data.h"
#include "verify/terms.h"

namespace tw::fuzz {
namespace {

TEST(FuzzMutations, EveryMutantIsCaught) {
    MutationOptions options;
    options.count = number_from_environment("TW_FUZZ_MUTATIONS", 240);
    options.most_leaf_runs = 3e4;
    MutationSummary summary = expect_all_caught(options);
    EXPECT_GE(summary.programs.size(), 12u);
    for (int k = 0; k <= static_cast<int>(MutationKind::Exchange); ++k)
        EXPECT_GT(summary.kinds[static_cast<size_t>(k)].caught(), 0) << to_string(static_cast<MutationKind>(k));
    EXPECT_GT(summary.kinds[static_cast<size_t>(MutationKind::Launch)].caught(), 0);
}

/// Also of those that are too large for a commit's run: whatever may be drawn is understood.
TEST(FuzzMutations, EveryProgramThatMayBeDrawnIsProvablyItself) {
    std::set<std::string> operands;
    for (const std::string& name : programs_to_alter({})) {
        CatalogTrial trial(*schedules::find_kernel(name));
        for (const codegen::ThreadKernel& kernel : trial.kernels()) {
            EquivalenceProver prover(kernel, trial.sizes());
            Comparison same = prover.compare(kernel);
            EXPECT_EQ(same.outcome, Comparison::Outcome::Same) << name << ", " << kernel.name << ": " << same.text;
        }
        if (name.starts_with("gemm_")) operands.insert(name.substr(5, name.find('_', 5) - 5));
    }
    EXPECT_THAT(operands, testing::IsSupersetOf({"bf16", "f16", "tf32", "e4m3", "i8"}));
}

/// TW_FUZZ_ROLE_MUTATIONS sets their number (0: all, 3000).
TEST(FuzzMutations, EveryMutantOfKernelsWithRolesIsCaught) {
    MutationOptions options;
    options.roles = true;
    options.count = number_from_environment("TW_FUZZ_ROLE_MUTATIONS", 48);
    options.original_seeds = 3;
    MutationSummary summary = expect_all_caught(options);
    EXPECT_GT(summary.places, 2500);
    for (MutationKind kind :
         {MutationKind::Signal, MutationKind::Operand, MutationKind::Role, MutationKind::Barrier, MutationKind::Launch})
        EXPECT_GT(summary.kinds[static_cast<size_t>(kind)].caught(), 0) << to_string(kind);
}

TEST(Terms, LawsKeepTheValue) {
    Terms terms;
    Term x = terms.symbol(Type::F32, 0, 0), y = terms.symbol(Type::F32, 0, 1), zero = terms.real(Type::F32, 0);
    auto of = [&](BinaryOp op, Term a, Term b) { return terms.binary(op, Type::F32, a, b); };
    EXPECT_EQ(of(BinaryOp::Add, x, y), of(BinaryOp::Add, y, x));
    EXPECT_NE(of(BinaryOp::Sub, x, y), of(BinaryOp::Sub, y, x));
    Term forth = of(BinaryOp::Sub, x, y), back = of(BinaryOp::Sub, y, x);
    EXPECT_EQ(of(BinaryOp::Mul, forth, forth), of(BinaryOp::Mul, back, back));
    EXPECT_NE(of(BinaryOp::Mul, forth, back), of(BinaryOp::Mul, back, back));
    EXPECT_EQ(of(BinaryOp::Add, x, zero), x);
    EXPECT_NE(of(BinaryOp::Sub, zero, x), x);
    EXPECT_EQ(of(BinaryOp::Sub, x, x), zero);
    EXPECT_EQ(of(BinaryOp::Div, x, terms.real(Type::F32, 1)), x);
    const Term lowest = terms.real(Type::F32, -INFINITY), distance = of(BinaryOp::Sub, x, lowest);
    EXPECT_EQ(terms.value(terms.binary(BinaryOp::LessEqual, Type::Bool, terms.unary(UnaryOp::Abs, Type::F32, distance),
                                       terms.real(Type::F32, 8))),
              0);
    EXPECT_EQ(terms.value(terms.binary(BinaryOp::LessEqual, Type::Bool, lowest, x)), 1);
    EXPECT_EQ(of(BinaryOp::Mul, y, terms.unary(UnaryOp::Exp2, Type::F32, of(BinaryOp::Sub, x, x))), y);
    EXPECT_EQ(terms.fma(Type::F32, x, terms.cast(Type::F32, terms.real(Type::BF16, 0)), y), y);
    Term n = terms.symbol(Type::I32, 1, 0), none = terms.cast(Type::I32, terms.integer(Type::I8, 0));
    EXPECT_EQ(terms.binary(BinaryOp::Mul, Type::I32, n, none), none);
    EXPECT_EQ(of(BinaryOp::Max, of(BinaryOp::Max, x, y), of(BinaryOp::Max, y, x)), of(BinaryOp::Max, x, y));
    EXPECT_NE(of(BinaryOp::Max, x, y), of(BinaryOp::Min, x, y));
    Term less = terms.binary(BinaryOp::Less, Type::Bool, x, y),
         equals = terms.binary(BinaryOp::Equal, Type::Bool, x, y);
    EXPECT_EQ(terms.select(Type::F32, less, y, x), of(BinaryOp::Max, x, y));
    EXPECT_EQ(terms.select(Type::F32, less, x, y), of(BinaryOp::Min, x, y));
    EXPECT_EQ(terms.select(Type::F32, equals, x, y), y);
    EXPECT_EQ(terms.binary(BinaryOp::Or, Type::Bool, less, equals),
              terms.unary(UnaryOp::Not, Type::Bool, terms.binary(BinaryOp::Less, Type::Bool, y, x)));
    // What no element has been reduced to yet.
    Term none_yet = terms.real(Type::F32, -std::numeric_limits<double>::infinity());
    Term shifted = of(BinaryOp::Sub, none_yet, of(BinaryOp::Max, x, none_yet));
    EXPECT_EQ(terms.unary(UnaryOp::Exp2, Type::F32, of(BinaryOp::Mul, shifted, terms.real(Type::F32, 1.5))), zero);
    EXPECT_EQ(terms.select(Type::F32, terms.binary(BinaryOp::Equal, Type::Bool, x, none_yet), zero, x), x);
    EXPECT_NE(of(BinaryOp::Sub, none_yet, terms.unary(UnaryOp::Log2, Type::F32, x)), none_yet);
    EXPECT_NE(of(BinaryOp::Sub, x, none_yet), none_yet);
    // Maxima so far: none yet, or finite, which their guard is then; with a score they are.
    Term any = terms.select(Type::F32, terms.binary(BinaryOp::Less, Type::Bool, y, zero), x, none_yet),
         empty = terms.binary(BinaryOp::Equal, Type::Bool, any, none_yet),
         guarded = terms.select(Type::F32, empty, zero, any);
    EXPECT_EQ(of(BinaryOp::Mul, zero, guarded), zero);
    EXPECT_NE(of(BinaryOp::Mul, zero, any), zero);
    EXPECT_EQ(of(BinaryOp::Mul, zero, terms.unary(UnaryOp::Exp2, Type::F32, of(BinaryOp::Sub, any, guarded))), zero);
    EXPECT_NE(of(BinaryOp::Mul, zero, terms.unary(UnaryOp::Exp2, Type::F32, of(BinaryOp::Sub, guarded, any))), zero);
    EXPECT_EQ(terms.value(terms.binary(BinaryOp::Equal, Type::Bool, of(BinaryOp::Max, any, x), none_yet)), 0);
    EXPECT_EQ(terms.value(terms.binary(BinaryOp::Equal, Type::Bool, of(BinaryOp::Max, any, any), none_yet)),
              std::nullopt);
    EXPECT_NE(of(BinaryOp::Mul, zero, terms.select(Type::F32, empty, zero, terms.undefined(Type::F32))), zero);
    // Float addition is not associative.
    Term z = terms.symbol(Type::F32, 0, 2);
    EXPECT_NE(of(BinaryOp::Add, of(BinaryOp::Add, x, y), z), of(BinaryOp::Add, x, of(BinaryOp::Add, y, z)));
}

/// The end of rows of 999 that vectors of 8 leave to a statement of its own: one that chose wrongly survived 200 seeds.
TEST(TellingData, ChoosesTheLastElementsOften) {
    const Tensor x = input("x", f32, {5, 999}), label = input("label", i64, {5});
    const Tensor y = compute("y", {5}, [&](Expr i) { return x(i, label(i)); });
    int at_the_end = 0;
    for (uint64_t seed = 0; seed < 60; ++seed) {
        const int64_t last = telling_bindings({y}, seed).inputs.at("label").at({4}).integer;
        EXPECT_GE(last, 0);
        EXPECT_LT(last, 999);
        at_the_end += last >= 996;
    }
    EXPECT_GE(at_the_end, 4);
    EXPECT_LE(at_the_end, 30);
}

/// An argmax among 64 threads of 4 neighbours each shows which of two equal maxima it takes only if that of the earlier
/// thread has the higher index, for each pair of groups of threads.
TEST(TellingData, HasTiesBetweenElementsAnywhere) {
    constexpr int64_t length = 1000, round = 256;
    Tensor x = input("x", f32, {5, length});
    Tensor y = compute("y", {5, length}, [&](Expr i, Expr j) { return x(i, j); });
    std::map<int64_t, int> seen;
    for (uint64_t seed = 0; seed < 200; ++seed) {
        HostArray array = telling_bindings({y}, seed).inputs.at("x");
        for (int64_t row = 0; row < 5; ++row) {
            std::vector<int64_t> largest;
            for (int64_t k = 0; k < length; ++k) {
                if (!largest.empty() && array.at({row, k}).real > array.at({row, largest[0]}).real) largest.clear();
                if (largest.empty() || array.at({row, k}).real == array.at({row, largest[0]}).real)
                    largest.push_back(k);
            }
            for (int64_t half = 4; half < round; half *= 2)
                for (int64_t k : largest) {
                    bool one_pair = k % round / (2 * half) == largest[0] % round / (2 * half);
                    seen[half] += one_pair && k % round / half % 2 == 0 && largest[0] % round / half % 2 == 1;
                }
        }
    }
    for (int64_t half = 4; half < round; half *= 2) EXPECT_GE(seen[half], 5) << half;
}

/// The numbers of the larger of two values, the smaller or the larger number where they are equal.
TEST(Terms, WhatGoesWithTheLargerValueDoesSoInEitherOrder) {
    Terms terms;
    Term x = terms.symbol(Type::F32, 0, 0), y = terms.symbol(Type::F32, 0, 1);
    Term i = terms.symbol(Type::I64, 1, 0), j = terms.symbol(Type::I64, 1, 1);
    struct Numbered {
        Term value, number;
    };
    auto of = [&](BinaryOp op, Term a, Term b) { return terms.binary(op, Type::Bool, a, b); };
    auto chosen = [&](Numbered a, Numbered b, bool smaller, BinaryOp breaks) {
        Term tie = smaller ? of(breaks, a.number, b.number) : of(breaks, b.number, a.number);
        Term equal = of(BinaryOp::And, of(BinaryOp::Equal, a.value, b.value), tie);
        return terms.select(Type::I64, of(BinaryOp::Or, of(BinaryOp::Less, b.value, a.value), equal), a.number,
                            b.number);
    };
    Numbered one{x, i}, other{y, j};
    for (bool smaller : {true, false}) {
        Term number = chosen(one, other, smaller, BinaryOp::LessEqual);
        EXPECT_EQ(number, chosen(other, one, smaller, BinaryOp::LessEqual));
        EXPECT_EQ(number, chosen(one, other, smaller, BinaryOp::Less));
        EXPECT_EQ(number, chosen(other, one, smaller, BinaryOp::Less));
        EXPECT_NE(number, chosen(one, other, !smaller, BinaryOp::LessEqual));
        EXPECT_NE(number, chosen({x, j}, {y, i}, smaller, BinaryOp::LessEqual));
        EXPECT_NE(number, terms.select(Type::I64, of(BinaryOp::Less, y, x), i, j));
    }
}

TEST(Terms, WhatNobodyWroteObeysNoLaw) {
    Terms terms;
    Term one = terms.undefined(Type::F32), zero = terms.real(Type::F32, 0), x = terms.symbol(Type::F32, 0, 0);
    EXPECT_NE(one, terms.undefined(Type::F32));
    for (Term term : {terms.binary(BinaryOp::Mul, Type::F32, one, zero), terms.fma(Type::F32, one, zero, x),
                      terms.binary(BinaryOp::Max, Type::F32, one, one)})
        EXPECT_TRUE(terms.is_undefined(term));
}

}  // namespace
}  // namespace tw::fuzz
