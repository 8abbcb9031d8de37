#include "codegen/cost/known_values.h"

#include <algorithm>
#include <bit>

#include "dsl/walk.h"

namespace tw::codegen {
namespace {

using Number = KnownValues::Number;

constexpr Number of_one = 0x9e3779b97f4a7c15;  // odd: no multiple of it is 0 again

Number mixed(Number a, Number b) {
    Number x = (a ^ std::rotl(b, 29)) * 0xbf58476d1ce4e5b9 + b;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

Number of_address(const void* node) { return mixed(of_one, std::bit_cast<uintptr_t>(node)); }

/// Of what the node does with its operands.
Number of_kind(const Expr& expr) {
    Number op = 0;
    if (const Unary* node = expr.as<Unary>()) op = static_cast<Number>(node->op);
    if (const Binary* node = expr.as<Binary>()) op = static_cast<Number>(node->op);
    return mixed((*expr).kind.index() * 1000 + op, static_cast<Number>(expr.type()) + 1);
}

}  // namespace

Number KnownValues::of(int64_t value) { return static_cast<Number>(value) * of_one; }

Number KnownValues::fresh() { return mixed(of_one, ++last_); }

Number KnownValues::of(const Expr& expr) const {
    if (expr.as<Variable>()) {
        const auto found = variables_.find(expr.id());
        return found == variables_.end() ? of_address(expr.id()) : found->second;
    }
    if (const auto value = as_constant(expr); value && !is_float(expr.type())) return of(*value);
    if (const FloatConstant* real = expr.as<FloatConstant>())
        return mixed(std::bit_cast<Number>(real->value), static_cast<Number>(expr.type()));
    if (const Load* load = expr.as<Load>()) return of(load->buffer.get(), load->indices);
    Operands operands;
    for_each_child(*expr, [&](const Expr& operand) { operands.add(of(operand)); });
    return of(expr, operands);
}

Number KnownValues::of(const Expr& expr, const Operands& operands) const {
    if (expr.as<Exchange>() || operands.count == 0) return of_address(expr.id());
    const auto& [a, b, c] = operands.numbers;
    const Binary* node = expr.as<Binary>();
    if (node && !is_float(expr.type())) {
        const auto factor = as_constant(node->b);
        if (node->op == BinaryOp::Add) return a + b;
        if (node->op == BinaryOp::Sub) return a - b;
        if (node->op == BinaryOp::Mul && factor) return a * static_cast<Number>(*factor);
    }
    const bool turns = node && (node->op == BinaryOp::Add || node->op == BinaryOp::Mul);
    const Number of_two = turns ? mixed(std::min(a, b), std::max(a, b)) : mixed(a, b);
    return mixed(mixed(of_kind(expr), of_two), c);
}

Number KnownValues::of(const BufferNode* buffer, const std::vector<Expr>& indices, int64_t width) const {
    Number number = mixed(content_of(buffer), static_cast<Number>(width));
    for (const Expr& index : indices) number = mixed(number, of(index));
    return number;
}

Number KnownValues::content_of(const BufferNode* buffer) const {
    const auto found = contents_.find(buffer);
    return found == contents_.end() ? of_address(buffer) : found->second;
}

void KnownValues::write(const BufferNode* buffer, Number place, Number value) {
    contents_[buffer] = mixed(content_of(buffer), mixed(place, value));
}

bool KnownValues::add(Number value) {
    if (!added_.insert(value).second) return false;
    in_order_.push_back(value);
    return true;
}

void KnownValues::keep_first(size_t count) {
    for (; in_order_.size() > count; in_order_.pop_back()) added_.erase(in_order_.back());
}

}  // namespace tw::codegen
