// Mutations of the catalog's kernels: each is caught, or provably changes nothing. TW_FUZZ_MUTATIONS sets their number
// (0: all, which takes long), TW_FUZZ_SEED the seed, always the same here: a mutant that changes nothing, but for reasons
// that no law of terms.h covers, must not fail a commit that has nothing to do with it.
#include <gtest/gtest.h>

#include "tests/fuzz/fuzz_seed.h"
#include "tools/fuzz/mutations.h"
#include "tools/fuzz/terms.h"

namespace tw::fuzz {
namespace {

TEST(FuzzMutations, EveryMutantIsCaught) {
    MutationOptions options;
    options.seed = static_cast<uint64_t>(number_from_environment("TW_FUZZ_SEED", 5));
    options.count = number_from_environment("TW_FUZZ_MUTATIONS", 240);
    options.most_leaf_runs = 3e4;
    MutationSummary summary = fuzz_mutations(options);
    std::printf("%s", to_string(summary).c_str());
    for (const Failure& same : summary.equivalent) std::printf("changes nothing: %s\n", same.text.c_str());
    for (const Failure& failure : summary.failures)
        ADD_FAILURE() << "case " << failure.number << " of seed " << options.seed << ": " << failure.text;
    EXPECT_GE(summary.programs.size(), 12u);
    for (int k = 0; k < kNumMutationKinds; ++k)
        EXPECT_GT(summary.kinds[static_cast<size_t>(k)].caught(), 0) << to_string(static_cast<MutationKind>(k));
}

TEST(Terms, LawsKeepTheValue) {
    Terms terms;
    Term x = terms.symbol(Type::F32, 0, 0), y = terms.symbol(Type::F32, 0, 1), zero = terms.real(Type::F32, 0);
    auto of = [&](BinaryOp op, Term a, Term b) { return terms.binary(op, Type::F32, a, b); };
    EXPECT_EQ(of(BinaryOp::Add, x, y), of(BinaryOp::Add, y, x));
    EXPECT_NE(of(BinaryOp::Sub, x, y), of(BinaryOp::Sub, y, x));
    EXPECT_EQ(of(BinaryOp::Add, x, zero), x);
    EXPECT_NE(of(BinaryOp::Sub, zero, x), x);
    EXPECT_EQ(of(BinaryOp::Sub, x, x), zero);
    EXPECT_EQ(of(BinaryOp::Div, x, terms.real(Type::F32, 1)), x);
    EXPECT_EQ(of(BinaryOp::Max, of(BinaryOp::Max, x, y), of(BinaryOp::Max, y, x)), of(BinaryOp::Max, x, y));
    EXPECT_NE(of(BinaryOp::Max, x, y), of(BinaryOp::Min, x, y));
    Term less = terms.binary(BinaryOp::Less, Type::Bool, x, y),
         equals = terms.binary(BinaryOp::Equal, Type::Bool, x, y);
    EXPECT_EQ(terms.select(Type::F32, less, y, x), of(BinaryOp::Max, x, y));
    EXPECT_EQ(terms.select(Type::F32, less, x, y), of(BinaryOp::Min, x, y));
    EXPECT_EQ(terms.select(Type::F32, equals, x, y), y);
    EXPECT_EQ(terms.binary(BinaryOp::Or, Type::Bool, less, equals),
              terms.unary(UnaryOp::Not, Type::Bool, terms.binary(BinaryOp::Less, Type::Bool, y, x)));
    // Float addition is not associative.
    Term z = terms.symbol(Type::F32, 0, 2);
    EXPECT_NE(of(BinaryOp::Add, of(BinaryOp::Add, x, y), z), of(BinaryOp::Add, x, of(BinaryOp::Add, y, z)));
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
