// Random integer expressions with the values of their variables, and a plain evaluator to compare with.
#pragma once
#include <random>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "dsl/expr.h"

namespace tw {

using Assignment = std::unordered_map<const ExprNode*, int64_t>;

inline int64_t floor_divide(int64_t a, int64_t b) {
    int64_t quotient = a / b;
    while (quotient * b > a && b > 0) --quotient;
    while (quotient * b < a && b < 0) --quotient;
    return quotient;
}

/// The value of an integer or boolean expression, by definition.
inline int64_t value_by_definition(const Expr& expr, const Assignment& values) {
    auto value = [&](const Expr& e) { return value_by_definition(e, values); };
    if (auto c = as_constant(expr)) return *c;
    if (expr.as<Variable>()) return values.at(expr.id());
    if (auto* select = expr.as<Select>()) return value(select->condition) ? value(select->yes) : value(select->no);
    if (auto* unary = expr.as<Unary>()) {
        int64_t a = value(unary->a);
        return unary->op == UnaryOp::Not ? !a : unary->op == UnaryOp::Negate ? -a : a < 0 ? -a : a;
    }
    const Binary& node = *expr.as<Binary>();
    int64_t a = value(node.a), b = value(node.b);
    switch (node.op) {
        case BinaryOp::Add: return a + b;
        case BinaryOp::Sub: return a - b;
        case BinaryOp::Mul: return a * b;
        case BinaryOp::Div: return floor_divide(a, b);
        case BinaryOp::Mod: return a - b * floor_divide(a, b);
        case BinaryOp::Min: return a < b ? a : b;
        case BinaryOp::Max: return a > b ? a : b;
        case BinaryOp::Less: return a < b;
        case BinaryOp::LessEqual: return a <= b;
        case BinaryOp::Equal: return a == b;
        case BinaryOp::NotEqual: return a != b;
        case BinaryOp::And: return a && b;
        case BinaryOp::Or: return a || b;
        default: break;  // of u32: random_edge_expr.h
    }
    throw std::logic_error("no such operation");
}

class RandomExprs {
public:
    explicit RandomExprs(uint64_t seed) : random_(seed) {
        n = size("n", {.min = 4, .max = 24, .multiple_of = 4});
        m = size("m", {.min = 1, .max = 9});
        e = make_expr(Type::I64, Variable{.name = "e", .extent = n});
        f = make_expr(Type::I64, Variable{.name = "f", .min = 0, .max = 8, .extent = m});
    }

    int64_t pick(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }

    Expr integer(int depth) {
        if (depth == 0 || pick(0, 9) == 0) return leaf();
        switch (pick(0, 13)) {
            case 0:
            case 1:
            case 2: return integer(depth - 1) + integer(depth - 1);
            case 3:
            case 4: return integer(depth - 1) - integer(depth - 1);
            case 5:
            case 6: return integer(depth - 1) * constant(Type::I64, pick(-3, 16));
            case 7:
            case 8: return integer(depth - 1) / divisor();
            case 9:
            case 10: return integer(depth - 1) % divisor();
            case 11:
                return pick(0, 1) ? min(integer(depth - 1), integer(depth - 1))
                                  : max(integer(depth - 1), integer(depth - 1));
            case 12: return pick(0, 2) ? leaf() * leaf() : pick(0, 1) ? -integer(depth - 1) : abs(integer(depth - 1));
            default: return select(boolean(depth - 1), integer(depth - 1), integer(depth - 1));
        }
    }

    Expr boolean(int depth) {
        if (depth > 0 && pick(0, 3) == 0) {
            Expr a = boolean(depth - 1), b = boolean(depth - 1);
            switch (pick(0, 4)) {
                case 0: return a && b;
                case 1: return a || b;
                case 2: return a == b;
                case 3: return select(a, b, boolean(depth - 1));
                default: return !a;
            }
        }
        int below = depth > 0 ? depth - 1 : 0;
        Expr a = integer(below), b = pick(0, 1) ? integer(below) : constant(Type::I64, pick(-4, 40));
        switch (pick(0, 4)) {
            case 0: return a < b;
            case 1: return a <= b;
            case 2: return a >= b;
            case 3: return a == b;
            default: return a != b;
        }
    }

    /// Values within the bounds of all variables.
    Assignment assignment() {
        Assignment values;
        auto set = [&](const Expr& v, int64_t low, int64_t high) { values[v.id()] = pick(low, high); };
        set(i, 0, 7), set(o, 0, 3), set(j, 0, 15), set(k, -5, 9), set(x, -40, 40);
        values[n.id()] = 4 * pick(1, 6);
        set(m, 1, 9);
        set(e, 0, values[n.id()] - 1), set(f, 0, values[m.id()] - 1);
        return values;
    }

    Expr i = index_variable("i", 0, 7), o = index_variable("o", 0, 3), j = index_variable("j", 0, 15),
         k = index_variable("k", -5, 9), x = index_variable("x"), n, m, e, f;

private:
    Expr leaf() {
        switch (pick(0, 11)) {
            case 0: return constant(Type::I64, pick(-9, 40));
            case 1: return constant(Type::I64, pick(0, 8));
            case 2: return x;
            case 3: return j;
            case 4: return k;
            case 5: return n;
            case 6: return m;
            case 7: return e;
            case 8: return f;
            case 9: return o * 8 + i;
            default: return i;
        }
    }
    Expr divisor() {
        static constexpr int64_t divisors[] = {1, 2, 3, 4, 6, 8, 12, 16, -3, -4};
        int64_t which = pick(0, 12);
        if (which == 10) return n;
        if (which == 11) return m;
        if (which == 12) return n * m;
        return constant(Type::I64, divisors[which]);
    }

    std::mt19937_64 random_;
};

}  // namespace tw
