// Random expressions of data and of places at the edges of their types, and their values by definition.
#pragma once
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "dsl/expr.h"

namespace tw {

using Values = std::unordered_map<const ExprNode*, Value>;

/// Data (scalars stand for elements) wrap as their types do. Places, i64 made of indices and sizes, do not: an
/// assignment that takes one out of 64 bits, or that divides by zero, has no value.
class ValueByDefinition {
public:
    explicit ValueByDefinition(const Values& values) : values_(values) {}

    std::optional<Value> operator()(const Expr& expr) const {
        if (auto* c = expr.as<IntConstant>()) return value_of(*c, expr.type());
        if (auto* c = expr.as<FloatConstant>()) return value_of(*c, expr.type());
        if (expr.as<Variable>()) return values_.at(expr.id());
        if (auto* node = expr.as<Select>()) {
            auto condition = (*this)(node->condition);
            if (!condition) return {};
            return (*this)(condition->integer ? node->yes : node->no);
        }
        if (auto* node = expr.as<Cast>()) {
            auto a = (*this)(node->a);
            return a ? std::optional(convert(expr.type(), *a)) : a;
        }
        if (auto* node = expr.as<Unary>()) return of_unary(expr, *node);
        return of_binary(expr, *expr.as<Binary>());
    }

private:
    using Wide = __int128;

    /// Data may choose between places.
    static bool is_place(const Expr& expr) {
        if (expr.type() != Type::I64 || expr.as<Cast>()) return false;
        if (auto* variable = expr.as<Variable>()) return variable->kind != VariableKind::Scalar;
        if (auto* node = expr.as<Unary>()) return is_place(node->a);
        if (auto* node = expr.as<Binary>()) return is_place(node->a) && is_place(node->b);
        if (auto* node = expr.as<Select>()) return is_place(node->yes) && is_place(node->no);
        return true;
    }

    std::optional<Value> integer(const Expr& expr, Wide value) const {
        auto wrapped = static_cast<int64_t>(static_cast<uint64_t>(value));
        if (wrapped != value && is_place(expr)) return {};
        return Value{expr.type(), 0, wrap_to_type(expr.type(), wrapped)};
    }

    std::optional<Value> of_unary(const Expr& expr, const Unary& node) const {
        auto a = (*this)(node.a);
        if (!a) return {};
        if (node.op == UnaryOp::Not) return Value{expr.type(), 0, !a->integer};
        if (is_float(expr.type())) return Value{expr.type(), node.op == UnaryOp::Abs ? std::abs(a->real) : -a->real, 0};
        Wide value = a->integer;
        return integer(expr, node.op == UnaryOp::Abs && value >= 0 ? value : -value);
    }

    std::optional<Value> of_binary(const Expr& expr, const Binary& node) const {
        auto left = (*this)(node.a);
        if (!left) return {};
        bool decided = node.op == BinaryOp::And ? !left->integer : node.op == BinaryOp::Or && left->integer;
        if (decided) return left;
        auto right = (*this)(node.b);
        if (!right) return {};
        if (is_float(node.a.type())) return Value{Type::Bool, 0, compared(node.op, left->real, right->real)};
        Wide a = left->integer, b = right->integer, quotient = 0;
        if (node.op == BinaryOp::Div || node.op == BinaryOp::Mod) {
            if (b == 0) return {};
            quotient = a / b;
            if (quotient * b != a && (a < 0) != (b < 0)) --quotient;
        }
        switch (node.op) {
            case BinaryOp::Add: return integer(expr, a + b);
            case BinaryOp::Sub: return integer(expr, a - b);
            case BinaryOp::Mul: return integer(expr, a * b);
            case BinaryOp::Div: return integer(expr, quotient);
            case BinaryOp::Mod: return integer(expr, a - b * quotient);
            case BinaryOp::Min: return integer(expr, a < b ? a : b);
            case BinaryOp::Max: return integer(expr, a > b ? a : b);
            case BinaryOp::And:
            case BinaryOp::Or: return right;
            case BinaryOp::BitAnd: return integer(expr, a & b);
            case BinaryOp::BitOr: return integer(expr, a | b);
            case BinaryOp::BitXor: return integer(expr, a ^ b);
            case BinaryOp::ShiftLeft: return integer(expr, b < 32 ? a << b : 0);
            case BinaryOp::ShiftRight: return integer(expr, b < 32 ? a >> b : 0);
            case BinaryOp::MulHigh: return integer(expr, a * b >> 32);
            default: return Value{Type::Bool, 0, compared(node.op, a, b)};
        }
    }

    template <class Number>
    static bool compared(BinaryOp op, Number a, Number b) {
        switch (op) {
            case BinaryOp::Less: return a < b;
            case BinaryOp::LessEqual: return a <= b;
            case BinaryOp::Equal: return a == b;
            default: return a != b;
        }
    }

    const Values& values_;
};

class RandomEdgeExprs {
public:
    explicit RandomEdgeExprs(uint64_t seed) : random_(seed) {
        for (Type type : {i32, i32, u32, u32, i64, i64, i8, u8, f32, f64, boolean}) {
            std::string name = std::string(name_of(type)) + "_" + std::to_string(data_.size());
            data_.push_back(make_expr(type, Variable{.name = name, .kind = VariableKind::Scalar}));
        }
    }

    int64_t pick(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }

    Expr any(int depth) {
        static constexpr Type types[] = {i32, i32, u32, i64, i64, boolean, boolean};
        return of(types[pick(0, 6)], depth);
    }

    /// All values of the variables.
    Values assignment() {
        Values values;
        for (const Expr& v : data_) values[v.id()] = number(v.type());
        auto place = [&](const Expr& v, int64_t low, int64_t high) {
            values[v.id()] = {i64, 0, pick(0, 3) ? pick(low, high) : pick(0, 1) ? low : high};
        };
        place(i, 0, 7), place(x, -40, 40), place(far, kFar, kFar + 9), place(n, 1, 4096);
        return values;
    }
    std::string text_of(const Values& values) const {
        std::string text;
        for (const Expr& v : variables()) {
            const Value& value = values.at(v.id());
            text += to_string(v) + " = " +
                    (is_float(v.type()) ? std::to_string(value.real) : std::to_string(value.integer)) + ", ";
        }
        return text;
    }
    std::vector<Expr> variables() const {
        std::vector<Expr> all = data_;
        for (const Expr& v : {i, x, far, n}) all.push_back(v);
        return all;
    }

    /// Scalars that stand for data.
    const std::vector<Expr>& data() const { return data_; }
    static constexpr int64_t kFar = int64_t{1} << 32;
    Expr i = index_variable("i", 0, 7), x = index_variable("x"), far = index_variable("far", kFar, kFar + 9),
         n = size("n", {.min = 1, .max = 4096});

    /// At or near an edge of its type, mostly.
    Value number(Type type) {
        if (type == Type::Bool) return {type, 0, pick(0, 1)};
        static constexpr int64_t anchors[] = {0,
                                              0,
                                              127,
                                              255,
                                              int64_t{1} << 24,
                                              int64_t{1} << 31,
                                              int64_t{1} << 32,
                                              int64_t{1} << 53,
                                              int64_t{1} << 62,
                                              std::numeric_limits<int64_t>::max()};
        uint64_t value = pick(0, 3) ? anchors[pick(0, 9)] : uint64_t{1} << pick(0, 63);
        if (pick(0, 1)) value = -value;
        value += static_cast<uint64_t>(pick(-3, 3));
        if (pick(0, 7) == 0) value = random_();
        return convert(type, {Type::I64, 0, static_cast<int64_t>(value)});
    }

private:
    Expr leaf(Type type) {
        if (type == Type::I64 && pick(0, 1)) return place(1);
        if (is_integer(type) && !info(type).is_storage_only && pick(0, 2) == 0) return constant(number(type));
        std::vector<Expr> fitting;
        for (const Expr& v : data_)
            if (v.type() == type) fitting.push_back(v);
        return fitting[static_cast<size_t>(pick(0, static_cast<int64_t>(fitting.size()) - 1))];
    }

    Expr place(int depth) {
        if (depth == 0 || pick(0, 2) == 0) {
            const Expr leaves[] = {i, x, far, n, constant(i64, pick(-9, 40)), constant(i64, kFar - pick(0, 9))};
            return leaves[pick(0, 5)];
        }
        switch (pick(0, 4)) {
            case 0: return place(depth - 1) + place(depth - 1);
            case 1: return place(depth - 1) - place(depth - 1);
            case 2: return place(depth - 1) * constant(i64, pick(-3, 16));
            case 3: return place(depth - 1) / constant(i64, pick(1, 16));
            default: return place(depth - 1) % constant(i64, pick(1, 16));
        }
    }

    Expr of(Type type, int depth) {
        if (depth == 0 || pick(0, 7) == 0) return leaf(type);
        if (type == Type::Bool) return condition(depth - 1);
        if (is_float(type) || info(type).is_storage_only) return cast_unchecked(type, any_number(depth - 1));
        if (type == Type::I64 && pick(0, 3) == 0) return place(depth);
        if (type == Type::U32 && pick(0, 2) == 0) return word(depth - 1);
        auto one = [&] { return of(type, depth - 1); };
        switch (pick(0, 15)) {
            case 0:
            case 1:
            case 2: return binary(BinaryOp::Add, one(), one());
            case 3:
            case 4: return binary(BinaryOp::Sub, one(), one());
            case 5: return binary(BinaryOp::Mul, one(), one());
            case 6: return binary(BinaryOp::Mul, one(), constant(number(type)));
            case 7: return binary(BinaryOp::Div, one(), divisor(type, depth));
            case 8: return binary(BinaryOp::Mod, one(), divisor(type, depth));
            case 9: return binary(BinaryOp::Min, one(), one());
            case 10: return binary(BinaryOp::Max, one(), one());
            case 11: return pick(0, 1) ? unary(UnaryOp::Negate, one()) : abs(one());
            case 12: return select(condition(depth - 1), one(), one());
            default: return cast_unchecked(type, any_number(depth - 1));
        }
    }

    Expr word(int depth) {
        static constexpr BinaryOp operations[] = {BinaryOp::BitAnd,    BinaryOp::BitOr,      BinaryOp::BitXor,
                                                  BinaryOp::ShiftLeft, BinaryOp::ShiftRight, BinaryOp::MulHigh};
        Expr a = of(u32, depth), b = pick(0, 1) ? of(u32, depth) : constant(u32, pick(0, 1) ? 0xffffffff : pick(0, 33));
        return pick(0, 7) ? binary(operations[pick(0, 5)], a, b) : binary(operations[pick(0, 5)], b, a);
    }

    Expr divisor(Type type, int depth) {
        switch (pick(0, 3)) {
            case 0: return of(type, depth - 1);
            case 1: return constant(type, pick(1, 16));
            case 2: return constant(type, pick(0, 1) ? -pick(1, 3) : pick(1, 3));
            default: {
                Value value = number(type);
                return value.integer ? constant(value) : constant(type, 1);
            }
        }
    }

    Expr any_number(int depth) {
        static constexpr Type types[] = {i32, i32, u32, u32, i64, i64, i64, i8, u8, f32, f64, boolean};
        return of(types[pick(0, 11)], depth);
    }

    Expr condition(int depth) {
        if (depth > 0 && pick(0, 3) == 0) {
            Expr a = condition(depth - 1), b = condition(depth - 1);
            switch (pick(0, 2)) {
                case 0: return a && b;
                case 1: return a || b;
                default: return !a;
            }
        }
        static constexpr Type types[] = {i32, i32, u32, i64, i64, f32, f64};
        Type type = types[pick(0, 6)];
        Expr a = of(type, depth), b = pick(0, 2) || is_float(type) ? of(type, depth) : constant(number(type));
        static constexpr BinaryOp comparisons[] = {BinaryOp::Less, BinaryOp::LessEqual, BinaryOp::Equal,
                                                   BinaryOp::NotEqual};
        return binary(comparisons[pick(0, 3)], a, b);
    }

    std::mt19937_64 random_;
    std::vector<Expr> data_;
};

}  // namespace tw
