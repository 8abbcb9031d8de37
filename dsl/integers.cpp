#include "dsl/integers.h"

#include <algorithm>

namespace tw {
namespace {

int64_t wrapped(uint64_t value) { return static_cast<int64_t>(value); }

}  // namespace

std::optional<int64_t> apply_to_integers(BinaryOp op, int64_t a, int64_t b) {
    bool divides = op == BinaryOp::Div || op == BinaryOp::Mod;
    if (divides && b == 0) return {};
    switch (op) {
        case BinaryOp::Add: return wrapped(uint64_t(a) + uint64_t(b));
        case BinaryOp::Sub: return wrapped(uint64_t(a) - uint64_t(b));
        case BinaryOp::Mul: return wrapped(uint64_t(a) * uint64_t(b));
        case BinaryOp::Div: return floor_div(a, b);
        case BinaryOp::Mod: return floor_mod(a, b);
        case BinaryOp::Min: return std::min(a, b);
        case BinaryOp::Max: return std::max(a, b);
        case BinaryOp::Less: return a < b;
        case BinaryOp::LessEqual: return a <= b;
        case BinaryOp::Equal: return a == b;
        case BinaryOp::NotEqual: return a != b;
        case BinaryOp::And: return a && b;
        case BinaryOp::Or: return a || b;
        case BinaryOp::BitAnd: return a & b;
        case BinaryOp::BitOr: return a | b;
        case BinaryOp::BitXor: return a ^ b;
        case BinaryOp::ShiftLeft: return shifted_left(a, b);
        case BinaryOp::ShiftRight: return shifted_right(a, b);
        case BinaryOp::MulHigh: return high_product(a, b);
        case BinaryOp::DivShared: break;  // of floats
    }
    return {};
}

}  // namespace tw
