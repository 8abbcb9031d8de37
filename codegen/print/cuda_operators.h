// Operators and functions of expressions in CUDA text.
#pragma once
#include "dsl/expr.h"

namespace tw::codegen {

// C++ precedence; larger binds tighter.
enum Precedence {
    kConditional = 1,
    kOr,
    kAnd,
    kBitOr,
    kBitXor,
    kBitAnd,
    kEquality,
    kRelation,
    kShift,
    kAdd,
    kMultiply,
    kUnary,
    kPrimary
};

struct Operator {
    const char* text;
    int precedence;  // kPrimary: called as a function
};
Operator operator_of(BinaryOp op);

/// Whether an operand has parentheses for the reader's sake: compilers warn where && meets ||, or operators of bits
/// meet others.
bool is_mixed(int operand, int op);

/// The function's name in the vocabulary; empty if it is an operator.
const char* function_of(UnaryOp op);

}  // namespace tw::codegen
