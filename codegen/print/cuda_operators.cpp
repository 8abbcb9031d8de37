#include "codegen/print/cuda_operators.h"

namespace tw::codegen {

Operator operator_of(BinaryOp op) {
    switch (op) {
        case BinaryOp::Add: return {"+", kAdd};
        case BinaryOp::Sub: return {"-", kAdd};
        case BinaryOp::Mul: return {"*", kMultiply};
        case BinaryOp::Div: return {"/", kMultiply};
        case BinaryOp::DivShared: return {"divided", kPrimary};
        case BinaryOp::Mod: return {"%", kMultiply};
        case BinaryOp::Less: return {"<", kRelation};
        case BinaryOp::LessEqual: return {"<=", kRelation};
        case BinaryOp::Equal: return {"==", kEquality};
        case BinaryOp::NotEqual: return {"!=", kEquality};
        case BinaryOp::And: return {"&&", kAnd};
        case BinaryOp::Or: return {"||", kOr};
        case BinaryOp::Min: return {"min", kPrimary};
        case BinaryOp::Max: return {"max", kPrimary};
        case BinaryOp::BitAnd: return {"&", kBitAnd};
        case BinaryOp::BitOr: return {"|", kBitOr};
        case BinaryOp::BitXor: return {"^", kBitXor};
        case BinaryOp::ShiftLeft: return {"<<", kShift};
        case BinaryOp::ShiftRight: return {">>", kShift};
        case BinaryOp::MulHigh: return {"mul_high", kPrimary};
    }
    return {"", kPrimary};
}

namespace {

bool is_of_bits(int precedence) { return (precedence >= kBitOr && precedence <= kBitAnd) || precedence == kShift; }

}  // namespace

bool is_mixed(int operand, int op) {
    if (operand == op || operand >= kUnary) return false;
    return (op == kOr && operand == kAnd) || is_of_bits(op) || is_of_bits(operand);
}

const char* function_of(UnaryOp op) {
    switch (op) {
        case UnaryOp::Abs: return "abs";
        case UnaryOp::Floor: return "floor";
        case UnaryOp::Ceil: return "ceil";
        case UnaryOp::Round: return "round";
        case UnaryOp::TruncateTf32: return "truncate_tf32";
        case UnaryOp::Sqrt: return "sqrt";
        case UnaryOp::Rsqrt: return "rsqrt";
        case UnaryOp::Exp: return "exp";
        case UnaryOp::Exp2: return "exp2";
        case UnaryOp::Log: return "log";
        case UnaryOp::Log2: return "log2";
        case UnaryOp::Tanh: return "tanh";
        case UnaryOp::TanhApprox: return "tanh_approx";
        case UnaryOp::Erf: return "erf";
        case UnaryOp::Sigmoid: return "sigmoid";
        case UnaryOp::ErfUnbranched: return "erf_unbranched";
        case UnaryOp::NormalCdf: return "normal_cdf";
        case UnaryOp::ExpNonpositive: return "exp_nonpositive";
        case UnaryOp::Logistic2: return "logistic2";
        case UnaryOp::Negate:
        case UnaryOp::Not: break;
    }
    return "";
}

}  // namespace tw::codegen
