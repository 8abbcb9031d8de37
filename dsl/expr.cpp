#include "dsl/expr.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include "dsl/deep.h"
#include "dsl/recent_memory.h"
#include "dsl/simplifier.h"
#include "dsl/walk.h"
#include "support/error.h"

namespace tw {

namespace {

/// What a destroyed node held.
struct Released {
    Expr expr;
    std::shared_ptr<const Operation> operation;
};
/// The nodes that this thread is destroying, while it does.
thread_local std::vector<Released>* released = nullptr;

/// Every node of an expression. Its destruction does not go down the stack, however many nodes and tensors hang on it:
/// they wait in a list.
struct StoredNode : ExprNode {
    StoredNode(Type type, Kind kind) : ExprNode{type, std::move(kind)} {
        for_each_child(*this, [&](const Expr& kid) { depth = std::max(depth, depth_of(kid) + 1); });
    }
    StoredNode(const StoredNode&) = delete;
    StoredNode& operator=(const StoredNode&) = delete;

    ~StoredNode() {
        std::vector<Released> own;
        bool is_first = !released;
        if (is_first) released = &own;
        for_each_child(*this, [](const Expr& kid) {
            if (depth_of(kid) > 1 || kid.as<Read>()) released->push_back({std::move(const_cast<Expr&>(kid)), {}});
        });
        if (auto* read = std::get_if<Read>(&kind)) released->push_back({{}, std::move(read->operation)});
        if (!is_first) return;
        while (!own.empty()) {
            Released last = std::move(own.back());
            own.pop_back();
        }
        released = nullptr;
    }

    int depth = 1;
    mutable std::atomic<bool> is_simple = false;
};

const StoredNode& stored(const Expr& expr) { return static_cast<const StoredNode&>(*expr); }

}  // namespace
void refuse_undefined_expr(std::source_location where) {
    user_error(where, "an operand is undefined; give every Expr and every Axis a value before it is used");
}

// Construction.

Expr make_expr(Type type, ExprNode::Kind kind) {
    return Expr(std::allocate_shared<StoredNode>(RecentMemory<StoredNode>(), type, std::move(kind)));
}

int depth_of(const Expr& expr) { return expr.defined() ? stored(expr).depth : 0; }
bool is_simple(const Expr& expr) { return stored(expr).is_simple.load(std::memory_order_relaxed); }
void mark_simple(const Expr& expr) { stored(expr).is_simple.store(true, std::memory_order_relaxed); }

Expr Expr::literal(int64_t value, bool is_bool) {
    return make_expr(is_bool ? Type::Bool : Type::I64, IntConstant{value});
}
// Not rounded to f32 here: an f64 operand may still want all digits.
Expr::Expr(double value) : Expr(make_expr(Type::F32, FloatConstant{value})) {}

Expr constant(const Value& value) {
    if (is_float(value.type)) return make_expr(value.type, FloatConstant{value.real});
    return make_expr(value.type, IntConstant{value.integer});
}
Expr constant(Type type, int64_t value) { return constant(make_value(type, value)); }
Expr constant(Type type, double value) { return constant(make_value(type, value)); }

Expr index_variable(const std::string& name, std::optional<int64_t> min, std::optional<int64_t> max) {
    return make_expr(Type::I64, Variable{.name = name, .min = min, .max = max});
}

namespace {

bool is_comparison(BinaryOp op) { return op >= BinaryOp::Less && op <= BinaryOp::NotEqual; }

}  // namespace

Expr unary(UnaryOp op, Expr a) {
    Type type = a.type();
    return make_expr(type, Unary{op, std::move(a)});
}

Expr binary(BinaryOp op, Expr a, Expr b) {
    internal_check(a.type() == b.type(), "binary: {} and {}", name_of(a.type()), name_of(b.type()));
    Type type = is_comparison(op) ? Type::Bool : a.type();
    return make_expr(type, Binary{op, std::move(a), std::move(b)});
}

Expr fma(Expr a, Expr b, Expr c) {
    internal_check(a.type() == b.type() && a.type() == c.type(), "fma: operands of several types");
    Type type = a.type();
    return make_expr(type, Fma{std::move(a), std::move(b), std::move(c)});
}

Expr select_unchecked(Expr condition, Expr yes, Expr no) {
    internal_check(condition.type() == Type::Bool && yes.type() == no.type(), "select: {} ? {} : {}",
                   name_of(condition.type()), name_of(yes.type()), name_of(no.type()));
    Type type = yes.type();
    return make_expr(type, Select{std::move(condition), std::move(yes), std::move(no)});
}

Expr cast_unchecked(Type type, Expr a) { return a.type() == type ? a : make_expr(type, Cast{std::move(a)}); }

Expr all_of(const std::vector<Expr>& conditions) {
    if (conditions.empty()) return Expr(true);
    Expr result = conditions[0];
    for (size_t i = 1; i < conditions.size(); ++i) result = binary(BinaryOp::And, result, conditions[i]);
    return result;
}

// What users write.

namespace {

using Where = std::source_location;

bool is_literal(const Expr& expr) {
    Type type = expr.type();
    if (expr.as<IntConstant>()) return type == Type::I64 || type == Type::I32;
    return expr.as<FloatConstant>() && (type == Type::F32 || type == Type::F64);
}

/// The type whose arithmetic stands in for a storage type's.
Type arithmetic_type(Type type) { return is_float(type) ? Type::F32 : Type::I32; }

void check_arithmetic(const char* name, const Expr& expr, Where where) {
    Type type = expr.type();
    user_check(!info(type).is_storage_only, where, "{}: {} is a storage type; arithmetic needs cast({}, x)", name,
               name_of(type), name_of(arithmetic_type(type)));
    user_check(type != Type::Bool, where, "{}: bool has no arithmetic; use select(condition, 1, 0)", name);
}

void check_float(const char* name, const Expr& expr, Where where) {
    check_arithmetic(name, expr, where);
    user_check(is_float(expr.type()), where, "{}: {} is no float type; write {}(cast(f32, x))", name,
               name_of(expr.type()), name);
}

void check_bool(const char* name, const Expr& expr, Where where) {
    user_check(expr.type() == Type::Bool, where, "{}: expects bool, not {}; compare first, e.g. x != 0", name,
               name_of(expr.type()));
}

/// The constant of a finite number is finite.
Expr real_literal(const char* name, Type type, double value, Where where) {
    Expr rounded = constant(type, value);
    user_check(!std::isfinite(value) || std::isfinite(rounded.as<FloatConstant>()->value), where,
               "{}: the literal {} is beyond the largest {}; write infinity if that is meant, or compute in f64", name,
               value, name_of(type));
    return rounded;
}

/// The literal as a constant of the other operand's type.
Expr adapt(const char* name, const Expr& literal, Type type, Where where) {
    if (auto* real = literal.as<FloatConstant>()) {
        user_check(is_float(type), where, "{}: the literal {} does not fit {}; convert the other operand: cast(f32, x)",
                   name, to_string(literal), name_of(type));
        return real_literal(name, type, real->value, where);
    }
    int64_t value = literal.as<IntConstant>()->value;
    user_check(type != Type::Bool, where, "{}: the literal {} meets bool; write true or false, or compare first", name,
               value);
    user_check(is_float(type) || wrap_to_type(type, value) == value, where,
               "{}: the literal {} does not fit {}; convert the other operand: cast(i64, x)", name, value,
               name_of(type));
    return constant(type, value);
}

/// The wider of two literals' types.
Type common_literal_type(const Expr& a, const Expr& b) {
    for (Type type : {Type::F64, Type::F32, Type::I64})
        if (a.type() == type || b.type() == type) return type;
    return Type::I32;
}

struct Pair {
    Expr a, b;
};

/// Both operands in one type.
Pair unify(const char* name, const Operand& a, const Operand& b) {
    bool a_literal = is_literal(a.expr), b_literal = is_literal(b.expr);
    if (a_literal && b_literal) {
        Type type = common_literal_type(a.expr, b.expr);
        return {adapt(name, a.expr, type, a.where), adapt(name, b.expr, type, b.where)};
    }
    Type left = a.expr.type(), right = b.expr.type();
    if (a_literal) return {adapt(name, a.expr, right, a.where), b.expr};
    if (b_literal) return {a.expr, adapt(name, b.expr, left, b.where)};
    if (left == right) return {a.expr, b.expr};
    bool indices = (left == Type::I32 && right == Type::I64) || (left == Type::I64 && right == Type::I32);
    Type wider = is_float(right) && !is_float(left) ? right : left;
    user_check(indices, a.where, "{}: {} and {} do not mix; convert one, e.g. cast({}, x)", name, name_of(left),
               name_of(right), name_of(wider));
    return {cast_unchecked(Type::I64, a.expr), cast_unchecked(Type::I64, b.expr)};
}

Pair unify_arithmetic(const char* name, const Operand& a, const Operand& b) {
    for (const Operand* operand : {&a, &b}) check_arithmetic(name, operand->expr, operand->where);
    return unify(name, a, b);
}

Expr arithmetic(BinaryOp op, const char* name, const Operand& a, const Operand& b) {
    auto [left, right] = unify_arithmetic(name, a, b);
    return binary(op, left, right);
}

Expr division(BinaryOp op, const char* name, const Operand& a, const Operand& b) {
    auto [left, right] = unify_arithmetic(name, a, b);
    user_check(is_float(left.type()) || !is_constant(right, 0), b.where, "{}: division of {} by zero", name,
               to_string(left));
    return binary(op, left, right);
}

Expr equality(BinaryOp op, const char* name, const Operand& a, const Operand& b) {
    if (a.expr.type() == Type::Bool && b.expr.type() == Type::Bool) return binary(op, a.expr, b.expr);
    return arithmetic(op, name, a, b);
}

Expr logical(BinaryOp op, const char* name, const Operand& a, const Operand& b) {
    check_bool(name, a.expr, a.where);
    check_bool(name, b.expr, b.where);
    return binary(op, a.expr, b.expr);
}

Expr word(const char* name, const Operand& a) {
    if (is_literal(a.expr)) return adapt(name, a.expr, Type::U32, a.where);
    Type type = a.expr.type();
    user_check(type != Type::Bool, a.where, "{}: bool is one bit; conditions have &&, ||, == and !=", name);
    user_check(type == Type::U32, a.where, "{}: takes the bits of u32, not {}; use cast(u32, x)", name, name_of(type));
    return a.expr;
}

Expr of_bits(BinaryOp op, const char* name, const Operand& a, const Operand& b) {
    return binary(op, word(name, a), word(name, b));
}

/// A function of floats; a literal alone is f32.
Expr real_function(UnaryOp op, const char* name, const Operand& a) {
    Expr x = a.expr;
    if (is_literal(x)) x = adapt(name, x, x.type() == Type::F64 ? Type::F64 : Type::F32, a.where);
    check_float(name, x, a.where);
    return unary(op, x);
}

}  // namespace

Expr operator+(const Operand& a, const Operand& b) { return arithmetic(BinaryOp::Add, "operator+", a, b); }
Expr operator-(const Operand& a, const Operand& b) { return arithmetic(BinaryOp::Sub, "operator-", a, b); }
Expr operator*(const Operand& a, const Operand& b) { return arithmetic(BinaryOp::Mul, "operator*", a, b); }
Expr operator/(const Operand& a, const Operand& b) { return division(BinaryOp::Div, "operator/", a, b); }
Expr operator%(const Operand& a, const Operand& b) {
    for (const Operand* operand : {&a, &b})
        user_check(!is_float(operand->expr.type()), a.where, "operator%: {} has no remainder; only integers do",
                   name_of(operand->expr.type()));
    return division(BinaryOp::Mod, "operator%", a, b);
}

Expr operator-(const Operand& a) {
    check_arithmetic("operator-", a.expr, a.where);
    // -1 and -infinity stay literals.
    Type type = a.expr.type();
    if (auto* real = a.expr.as<FloatConstant>()) return make_expr(type, FloatConstant{-real->value});
    if (auto* integer = a.expr.as<IntConstant>())
        return make_expr(type, IntConstant{wrap_to_type(type, static_cast<int64_t>(-uint64_t(integer->value)))});
    return unary(UnaryOp::Negate, a.expr);
}

Expr operator<(const Operand& a, const Operand& b) { return arithmetic(BinaryOp::Less, "operator<", a, b); }
Expr operator<=(const Operand& a, const Operand& b) { return arithmetic(BinaryOp::LessEqual, "operator<=", a, b); }
Expr operator>(const Operand& a, const Operand& b) { return arithmetic(BinaryOp::Less, "operator>", b, a); }
Expr operator>=(const Operand& a, const Operand& b) { return arithmetic(BinaryOp::LessEqual, "operator>=", b, a); }
Expr operator==(const Operand& a, const Operand& b) { return equality(BinaryOp::Equal, "operator==", a, b); }
Expr operator!=(const Operand& a, const Operand& b) { return equality(BinaryOp::NotEqual, "operator!=", a, b); }
Expr operator&&(const Operand& a, const Operand& b) { return logical(BinaryOp::And, "operator&&", a, b); }
Expr operator||(const Operand& a, const Operand& b) { return logical(BinaryOp::Or, "operator||", a, b); }
Expr operator!(const Operand& a) {
    check_bool("operator!", a.expr, a.where);
    return unary(UnaryOp::Not, a.expr);
}

Expr operator&(const Operand& a, const Operand& b) { return of_bits(BinaryOp::BitAnd, "operator&", a, b); }
Expr operator|(const Operand& a, const Operand& b) { return of_bits(BinaryOp::BitOr, "operator|", a, b); }
Expr operator^(const Operand& a, const Operand& b) { return of_bits(BinaryOp::BitXor, "operator^", a, b); }
Expr operator<<(const Operand& a, const Operand& b) { return of_bits(BinaryOp::ShiftLeft, "operator<<", a, b); }
Expr operator>>(const Operand& a, const Operand& b) { return of_bits(BinaryOp::ShiftRight, "operator>>", a, b); }
Expr mul_high(const Operand& a, const Operand& b) { return of_bits(BinaryOp::MulHigh, "mul_high", a, b); }

Expr min(const Operand& a, const Operand& b) { return arithmetic(BinaryOp::Min, "min", a, b); }
Expr max(const Operand& a, const Operand& b) { return arithmetic(BinaryOp::Max, "max", a, b); }

Expr abs(const Operand& a) {
    check_arithmetic("abs", a.expr, a.where);
    if (a.expr.type() == Type::U32) return a.expr;
    return unary(UnaryOp::Abs, a.expr);
}
Expr floor(const Operand& a) { return real_function(UnaryOp::Floor, "floor", a); }
Expr ceil(const Operand& a) { return real_function(UnaryOp::Ceil, "ceil", a); }
Expr round(const Operand& a) { return real_function(UnaryOp::Round, "round", a); }
Expr sqrt(const Operand& a) { return real_function(UnaryOp::Sqrt, "sqrt", a); }
Expr rsqrt(const Operand& a) { return real_function(UnaryOp::Rsqrt, "rsqrt", a); }
Expr exp(const Operand& a) { return real_function(UnaryOp::Exp, "exp", a); }
Expr exp2(const Operand& a) { return real_function(UnaryOp::Exp2, "exp2", a); }
Expr log(const Operand& a) { return real_function(UnaryOp::Log, "log", a); }
Expr log2(const Operand& a) { return real_function(UnaryOp::Log2, "log2", a); }
Expr tanh(const Operand& a) { return real_function(UnaryOp::Tanh, "tanh", a); }
Expr tanh_approx(const Operand& a) {
    user_check(a.expr.type() != Type::F64, a.where, "tanh_approx of f64: it is an instruction for f32; use tanh");
    return real_function(UnaryOp::TanhApprox, "tanh_approx", a);
}
Expr erf(const Operand& a) { return real_function(UnaryOp::Erf, "erf", a); }
Expr sigmoid(const Operand& a) { return real_function(UnaryOp::Sigmoid, "sigmoid", a); }

Expr select(const Operand& condition, const Operand& yes, const Operand& no) {
    check_bool("select", condition.expr, condition.where);
    auto [a, b] = unify("select", yes, no);
    return select_unchecked(condition.expr, a, b);
}

Expr cast(Type type, const Operand& a) {
    if (auto* real = a.expr.as<FloatConstant>()) return constant(convert(type, {Type::F64, real->value, 0}));
    if (auto* integer = a.expr.as<IntConstant>()) return constant(convert(type, value_of(*integer, a.expr.type())));
    return cast_unchecked(type, a.expr);
}

Expr bitcast(Type type, const Operand& a) {
    const Type from = a.expr.type(a.where);
    for (const Type each : {type, from})
        user_check(each != Type::Bool && each != Type::TF32, a.where, "bitcast({}, {}): {} has no bits of its own; {}",
                   name_of(type), to_string(a.expr), name_of(each),
                   each == Type::Bool ? "use select(x, 1, 0)" : "use f32, which holds it");
    user_check(bytes_of(type) == bytes_of(from), a.where,
               "bitcast({}, {}): {} has {} bytes and {} has {}; cast to a type of as many bytes first, as in "
               "bitcast(f32, cast(u32, x))",
               name_of(type), to_string(a.expr), name_of(from), bytes_of(from), name_of(type), bytes_of(type));
    if (type == from) return a.expr;
    return make_expr(type, Bitcast{a.expr});
}

Expr round_to(Type type, const Operand& x) {
    check_float("round_to", x.expr, x.where);
    user_check(is_float(type), x.where, "round_to: {} is no float type; floor, ceil and round give whole numbers",
               name_of(type));
    return cast_unchecked(x.expr.type(), cast_unchecked(type, x.expr));
}

Expr truncate_tf32(const Operand& x) {
    Expr a = is_literal(x.expr) ? adapt("truncate_tf32", x.expr, Type::F32, x.where) : x.expr;
    user_check(a.type() == Type::F32, x.where, "truncate_tf32: takes an f32, not {}; use cast(f32, ...)",
               name_of(a.type()));
    return unary(UnaryOp::TruncateTf32, a);
}

Expr relu(const Operand& a) { return arithmetic(BinaryOp::Max, "relu", a, {0, a.where}); }

namespace {

/// The operand of a composed function, checked under that function's name.
Expr float_operand(const char* name, const Operand& a) {
    check_float(name, a.expr, a.where);
    return a.expr;
}

}  // namespace

Expr gelu(const Operand& a) {
    constexpr double reciprocal_sqrt2 = 0.70710678118654752440;
    Expr x = float_operand("gelu", a);
    return x * 0.5 * (1 + erf(x * reciprocal_sqrt2));
}
Expr gelu_tanh(const Operand& a) {
    constexpr double twice_sqrt_2_by_pi = 1.59576912160573071176;
    Expr x = float_operand("gelu_tanh", a);  // 1 + tanh(u) = 2 sigmoid(2 u)
    return x * sigmoid(x * (twice_sqrt_2_by_pi + x * x * (twice_sqrt_2_by_pi * 0.044715)));
}
Expr silu(const Operand& a) {
    Expr x = float_operand("silu", a);
    return x * sigmoid(x);
}

Expr scalar(const std::string& name, Type type, std::source_location where) {
    user_check(!info(type).is_storage_only, where, "scalar '{}': {} is a storage type; pass it as {}", name,
               name_of(type), name_of(arithmetic_type(type)));
    return make_expr(type, Variable{.name = name, .kind = VariableKind::Scalar});
}

Expr size(const std::string& name, SizeBounds bounds, std::source_location where) {
    auto [min, max, multiple_of] = bounds;
    user_check(multiple_of >= 1, where, "size '{}': multiple_of is {}; it starts at 1", name, multiple_of);
    user_check(min >= 0, where, "size '{}': min is {}; sizes start at 0", name, min);
    int64_t most = max / multiple_of * multiple_of;
    int64_t least = min <= most ? (min / multiple_of + (min % multiple_of != 0)) * multiple_of : min;
    user_check(least <= most, where, "size '{}': no multiple of {} lies in {}..{}; give .max", name, multiple_of, min,
               max);
    Variable variable{.name = name, .kind = VariableKind::Size, .min = least, .max = most, .multiple_of = multiple_of};
    return make_expr(Type::I64, variable);
}

}  // namespace tw
