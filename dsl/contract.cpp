#include "dsl/stage.h"

namespace tw {
namespace {

const Binary* product(const Expr& expr) {
    const Binary* node = expr.as<Binary>();
    return node && node->op == BinaryOp::Mul ? node : nullptr;
}

}  // namespace

Expr contract(const Expr& root) {
    return transform(root, [](const Expr& expr) -> Expr {
        const Binary* node = expr.as<Binary>();
        if (!node || (expr.type() != Type::F32 && expr.type() != Type::F64)) return {};
        if (node->op == BinaryOp::Add) {
            if (auto* left = product(node->a)) return fma(left->a, left->b, node->b);
            if (auto* right = product(node->b)) return fma(right->a, right->b, node->a);
        }
        if (node->op == BinaryOp::Sub) {
            if (auto* left = product(node->a)) return fma(left->a, left->b, unary(UnaryOp::Negate, node->b));
            if (auto* right = product(node->b)) return fma(unary(UnaryOp::Negate, right->a), right->b, node->a);
        }
        return {};
    });
}

}  // namespace tw
