// Rewriting rules as data: pattern, result, condition. Patterns are ordinary expressions with wildcards.
#include <array>
#include <bit>
#include <cmath>

#include "dsl/simplifier.h"
#include "dsl/walk.h"

namespace tw {
namespace {

/// What the wildcards of a pattern stand for, by their number.
using Matched = std::array<Expr, 4>;

struct Rule {
    Expr pattern, result;
    bool (*condition)(const Matched&) = nullptr;
};

/// A wildcard is a Variable: `min` is its number, its kind says what it matches.
Expr wildcard(Type type, VariableKind kind, int64_t number) {
    return make_expr(type, Variable{.name = "_", .kind = kind, .min = number});
}
constexpr VariableKind kSameClass = VariableKind::Index;  // integers, floats or bool, as the wildcard's own type
constexpr VariableKind kAnyType = VariableKind::Scalar;
constexpr VariableKind kConstant = VariableKind::Size;  // a constant of the same class

bool power_of_two(const Matched& b) {
    int exponent = 0;
    double value = b[3].as<FloatConstant>()->value;
    // 1 / value must not leave the normal numbers of f32.
    return std::fabs(std::frexp(value, &exponent)) == 0.5 && std::abs(exponent) < 120;
}
bool shifts_all_out(const Matched& b) { return *as_constant(b[3]) >= 32; }
bool is_of_zero(const Matched& b) { return is_constant(b[2], 0); }
bool is_signed(const Matched& b) { return b[0].type() != Type::U32; }
bool not_constant(const Matched& b) { return !b[0].as<IntConstant>() && !b[0].as<FloatConstant>(); }

std::vector<Rule> table() {
    Expr x = wildcard(Type::I64, kSameClass, 0), y = wildcard(Type::I64, kSameClass, 1);
    Expr c0 = wildcard(Type::I64, kConstant, 2), c1 = wildcard(Type::I64, kConstant, 3);
    Expr u = wildcard(Type::F32, kSameClass, 0), v = wildcard(Type::F32, kSameClass, 1);
    Expr w = wildcard(Type::F32, kSameClass, 2), r = wildcard(Type::F32, kConstant, 3);
    Expr p = wildcard(Type::Bool, kSameClass, 0), q = wildcard(Type::Bool, kSameClass, 1);
    Expr z = wildcard(Type::U32, kSameClass, 0), c2 = wildcard(Type::U32, kConstant, 2),
         c3 = wildcard(Type::U32, kConstant, 3);
    Expr s = wildcard(Type::I64, kAnyType, 2), t = wildcard(Type::I64, kAnyType, 3);
    Expr t1 = wildcard(Type::I64, kAnyType, 1);
    Expr one = constant(Type::F32, 1.0), zero = constant(Type::F32, 0.0), minus_zero = constant(Type::F32, -0.0);
    Expr all_bits = constant(Type::U32, int64_t{0xffffffff});
    auto choose = select_unchecked;

    // clang-format off
    return {
        // The ring of integers modulo 2^32 (u32); i32 and i64 go through affine forms instead.
        {x + 0, x},
        {x - 0, x},
        {x - x, 0},
        {x * 0, 0},
        {x * 1, x},
        {-(-x), x},
        {c0 + x, x + c0, not_constant},
        {c0 * x, x * c0, not_constant},

        // Words of bits, u32.
        {z & 0, 0},
        {z & all_bits, z},
        {z & z, z},
        {z | 0, z},
        {z | all_bits, all_bits},
        {z | z, z},
        {z ^ 0, z},
        {z ^ z, 0},
        {c2 & z, z & c2, not_constant},
        {c2 | z, z | c2, not_constant},
        {c2 ^ z, z ^ c2, not_constant},
        {(z & c2) & c3, z & (c2 & c3)},
        {(z | c2) | c3, z | (c2 | c3)},
        {(z ^ c2) ^ c3, z ^ (c2 ^ c3)},
        {z << 0, z},
        {z >> 0, z},
        {z << c3, 0, shifts_all_out},
        {z >> c3, 0, shifts_all_out},
        {c2 << z, 0, is_of_zero},
        {c2 >> z, 0, is_of_zero},
        {mul_high(z, 0), 0},
        {mul_high(z, 1), 0},
        {mul_high(c2, z), mul_high(z, c2), not_constant},

        // Floor division.
        {x / 1, x},
        {x % 1, 0},

        // The lattice of min and max on integers.
        {min(x, x), x},
        {max(x, x), x},
        {min(c0, x), min(x, c0), not_constant},
        {max(c0, x), max(x, c0), not_constant},
        {min(min(x, c0), c1), min(x, min(c0, c1))},
        {max(max(x, c0), c1), max(x, max(c0, c1))},
        {min(x, min(x, y)), min(x, y)},
        {min(x, min(y, x)), min(y, x)},
        {min(min(x, y), x), min(x, y)},
        {min(min(y, x), x), min(y, x)},
        {max(x, max(x, y)), max(x, y)},
        {max(x, max(y, x)), max(y, x)},
        {max(max(x, y), x), max(x, y)},
        {max(max(y, x), x), max(y, x)},
        {min(x, max(x, y)), x},
        {min(x, max(y, x)), x},
        {min(max(x, y), x), x},
        {min(max(y, x), x), x},
        {max(x, min(x, y)), x},
        {max(x, min(y, x)), x},
        {max(min(x, y), x), x},
        {max(min(y, x), x), x},
        {abs(abs(x)), abs(x)},
        {abs(-x), abs(x), is_signed},

        // Total orders: integers only, as no float equals or is below NaN.
        {x < x, false},
        {x <= x, true},
        {x == x, true},
        {x != x, false},
        {!(x < y), y <= x},
        {!(x <= y), y < x},

        // Boolean algebra.
        {!(!p), p},
        {!(x == y), x != y},
        {!(x != y), x == y},
        {!(u == v), u != v},
        {!(u != v), u == v},
        {p == p, true},
        {p != p, false},
        {p == true, p},
        {p == false, !p},
        {p != true, !p},
        {p != false, p},
        {true == p, p},
        {false == p, !p},
        {true != p, !p},
        {false != p, p},

        // Choices. A condition moves before another one only where both guarded the value.
        {choose(!p, s, t), choose(p, t, s)},
        {choose(p, s, s), s},
        {choose(p, choose(p, s, t1), t), choose(p, s, t)},
        {choose(p, s, choose(p, t1, t)), choose(p, s, t)},
        {choose(p, choose(q, s, t), t), choose(p && q, s, t)},
        {choose(p, s, choose(q, s, t)), choose(p || q, s, t)},
        {choose(p, true, false), p},
        {choose(p, false, true), !p},
        {choose(p, q, false), p && q},
        {choose(p, true, q), p || q},
        {choose(x < y, x, y), min(x, y)},
        {choose(x < y, y, x), max(x, y)},
        {choose(x <= y, x, y), min(x, y)},
        {choose(x <= y, y, x), max(x, y)},

        // Floats: only what holds for every value, NaN, infinities and -0 included. x + 0, x * 0 and x - x do not.
        {u * one, u},
        {u / one, u},
        {u - zero, u},
        {u + minus_zero, u},
        {u * -one, -u},
        {u / r, u * (1.0 / r), power_of_two},
        {r + u, u + r, not_constant},
        {r * u, u * r, not_constant},
        {-(-u), u},
        {u + -v, u - v},
        {u - -v, u + v},
        {-u * -v, u * v},
        {abs(-u), abs(u)},
        {abs(abs(u)), abs(u)},
        {min(u, u), u},
        {max(u, u), u},
        {u < u, false},
        {fma(u, one, w), u + w},
        {fma(one, u, w), u + w},
        {fma(u, v, minus_zero), u * v},
        {fma(-u, -v, w), fma(u, v, w)},
    };
    // clang-format on
}

// Matching.

enum class Class { Integer, Float, Bool };
Class class_of(Type type) {
    if (type == Type::Bool) return Class::Bool;
    return is_float(type) ? Class::Float : Class::Integer;
}

bool bind(const Expr& pattern, const Variable& wildcard, const Expr& expr, Matched& bindings) {
    if (wildcard.kind != kAnyType && class_of(pattern.type()) != class_of(expr.type())) return false;
    if (wildcard.kind == kConstant && !expr.as<IntConstant>() && !expr.as<FloatConstant>()) return false;
    Expr& bound = bindings[static_cast<size_t>(*wildcard.min)];
    if (bound.defined()) return equal(bound, expr);
    bound = expr;
    return true;
}

/// -0 matches no 0: patterns compare floats by their bits.
bool same_constant(const Expr& pattern, const Expr& expr) {
    if (class_of(pattern.type()) != class_of(expr.type())) return false;
    auto *real = pattern.as<FloatConstant>(), *other = expr.as<FloatConstant>();
    if (real) return other && std::bit_cast<uint64_t>(real->value) == std::bit_cast<uint64_t>(other->value);
    auto value = as_constant(pattern);
    return value && as_constant(expr) == value;
}

bool matches(const Expr& pattern, const Expr& expr, Matched& bindings) {
    if (auto* wildcard = pattern.as<Variable>()) return bind(pattern, *wildcard, expr, bindings);
    if (auto* node = pattern.as<Binary>()) {
        auto* other = expr.as<Binary>();
        return other && other->op == node->op && matches(node->a, other->a, bindings) &&
               matches(node->b, other->b, bindings);
    }
    if (auto* node = pattern.as<Unary>()) {
        auto* other = expr.as<Unary>();
        return other && other->op == node->op && matches(node->a, other->a, bindings);
    }
    if (auto* node = pattern.as<Select>()) {
        auto* other = expr.as<Select>();
        return other && matches(node->condition, other->condition, bindings) &&
               matches(node->yes, other->yes, bindings) && matches(node->no, other->no, bindings);
    }
    if (auto* node = pattern.as<Fma>()) {
        auto* other = expr.as<Fma>();
        return other && matches(node->a, other->a, bindings) && matches(node->b, other->b, bindings) &&
               matches(node->c, other->c, bindings);
    }
    return same_constant(pattern, expr);
}

// Results.

/// The type that the constants of a result take: that of the first binding of their class.
Type type_like(const Expr& literal, const Matched& bindings) {
    for (const Expr& bound : bindings)
        if (bound.defined() && class_of(bound.type()) == class_of(literal.type())) return bound.type();
    return literal.type();
}

Expr instantiate(const Expr& result, const Matched& bindings, Simplifier& simplifier) {
    if (auto* wildcard = result.as<Variable>()) return bindings[static_cast<size_t>(*wildcard->min)];
    auto build = [&](const Expr& part) { return instantiate(part, bindings, simplifier); };
    if (auto* node = result.as<Binary>()) return simplifier.rewrite(binary(node->op, build(node->a), build(node->b)));
    if (auto* node = result.as<Unary>()) return simplifier.rewrite(unary(node->op, build(node->a)));
    if (auto* node = result.as<Select>())
        return simplifier.rewrite(select_unchecked(build(node->condition), build(node->yes), build(node->no)));
    if (auto* node = result.as<Fma>()) return simplifier.rewrite(fma(build(node->a), build(node->b), build(node->c)));
    Type type = type_like(result, bindings);
    if (auto* real = result.as<FloatConstant>()) return constant(type, real->value);
    return constant(type, result.as<IntConstant>()->value);
}

// Dispatch by the root of the pattern.

constexpr size_t kNumRoots = 64;
size_t root_of(const Expr& expr) {
    if (auto* node = expr.as<Binary>()) return static_cast<size_t>(node->op);
    if (auto* node = expr.as<Unary>()) return 32 + static_cast<size_t>(node->op);
    if (expr.as<Select>()) return 62;
    if (expr.as<Fma>()) return 61;
    return 63;  // no rules
}

const std::vector<Rule>& rules_for(const Expr& expr) {
    static const auto by_root = [] {
        std::array<std::vector<Rule>, kNumRoots> rules;
        for (Rule& rule : table()) rules[root_of(rule.pattern)].push_back(rule);
        return rules;
    }();
    return by_root[root_of(expr)];
}

}  // namespace

Expr apply_rules(const Expr& node, Simplifier& simplifier) {
    for (const Rule& rule : rules_for(node)) {
        Matched bindings;
        if (!matches(rule.pattern, node, bindings)) continue;
        if (rule.condition && !rule.condition(bindings)) continue;
        return instantiate(rule.result, bindings, simplifier);
    }
    return {};
}

}  // namespace tw
