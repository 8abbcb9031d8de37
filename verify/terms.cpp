#include "verify/terms.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "dsl/integers.h"

namespace tw::fuzz {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool is_commutative(BinaryOp op) {
    switch (op) {
        case BinaryOp::Add:
        case BinaryOp::Mul:
        case BinaryOp::Min:
        case BinaryOp::Max:
        case BinaryOp::Equal:
        case BinaryOp::NotEqual:
        case BinaryOp::And:
        case BinaryOp::Or:
        case BinaryOp::BitAnd:
        case BinaryOp::BitOr:
        case BinaryOp::BitXor:
        case BinaryOp::MulHigh: return true;
        default: return false;
    }
}

}  // namespace

size_t Terms::Hash::operator()(const Node& node) const {
    uint64_t hash = 0;
    for (int64_t part : {int64_t(node.kind), int64_t(node.type), int64_t{node.op}, int64_t{node.a}, int64_t{node.b},
                         int64_t{node.c}, node.number})
        hash = (hash ^ static_cast<uint64_t>(part)) * 0x9e3779b97f4a7c15u, hash ^= hash >> 29;
    return hash;
}

Term Terms::make(const Node& node) {
    auto [entry, is_new] = known_.try_emplace(node, static_cast<Term>(nodes_.size()));
    if (!is_new) return entry->second;
    nodes_.push_back(node);
    facts_.push_back(facts_of(node));
    return entry->second;
}

/// Of finite values.
bool Terms::makes_infinities(const Node& node) {
    if (node.kind == Kind::Real) return !std::isfinite(std::bit_cast<double>(node.number));
    if (node.kind == Kind::Unary)
        return node.op == static_cast<int>(UnaryOp::Log) || node.op == static_cast<int>(UnaryOp::Log2) ||
               node.op == static_cast<int>(UnaryOp::Rsqrt);
    return node.kind == Kind::Binary && node.op == static_cast<int>(BinaryOp::Div);
}

/// Finite or -infinity, of values that are so: maxima so far are.
bool Terms::is_below(const Node& node) const {
    switch (node.kind) {
        case Kind::Real: return std::bit_cast<double>(node.number) == -kInfinity;
        case Kind::Element: return is_below(node.a);
        case Kind::Select: return is_below(node.b) && is_below(node.c);
        case Kind::Fma: return is_finite(node.a) && is_finite(node.b) && is_below(node.c);
        case Kind::Binary: break;
        default: return false;
    }
    switch (static_cast<BinaryOp>(node.op)) {
        case BinaryOp::Max:
        case BinaryOp::Min:
        case BinaryOp::Add: return is_below(node.a) && is_below(node.b);
        case BinaryOp::Sub: return is_below(node.a) && is_finite(node.b);
        default: return false;
    }
}

/// Finite, though what it is made of need not be.
bool Terms::makes_finite(const Node& node) const {
    if (node.kind == Kind::Unary) {
        const auto op = static_cast<UnaryOp>(node.op);
        return (op == UnaryOp::Exp || op == UnaryOp::Exp2) && is_below(node.a);
    }
    if (node.kind == Kind::Binary && node.op == static_cast<int>(BinaryOp::Max))
        return is_below(node.a) && is_below(node.b) && (is_finite(node.a) || is_finite(node.b));
    if (node.kind != Kind::Select || !is_finite(node.b) || !is_below(node.c)) return false;
    const Node condition = nodes_[static_cast<size_t>(node.a)];  // c == -infinity ? b : c
    const bool asks = condition.kind == Kind::Binary && condition.op == static_cast<int>(BinaryOp::Equal);
    return asks && ((condition.a == node.c && is_real(condition.b, -kInfinity)) ||
                    (condition.b == node.c && is_real(condition.a, -kInfinity)));
}

Terms::Facts Terms::facts_of(const Node& node) const {
    Facts facts{.undefined = node.kind == Kind::Undefined,
                .finite = node.kind != Kind::Undefined && !makes_infinities(node),
                .lo = std::numeric_limits<int64_t>::min(),
                .hi = std::numeric_limits<int64_t>::max()};
    for (Term part : {node.a, node.b, node.c}) {
        facts.undefined = facts.undefined || (part >= 0 && is_undefined(part));
        const bool condition = node.kind == Kind::Select && part == node.a;
        facts.finite = facts.finite && (part < 0 || condition || is_finite(part));
    }
    facts.finite = !facts.undefined && (facts.finite || makes_finite(node));
    facts.below = !facts.undefined && (facts.finite || is_below(node));
    auto range_of = [&](Term part) { return facts_[static_cast<size_t>(part)]; };
    if (node.kind == Kind::Integer) facts.lo = facts.hi = node.number;
    if (node.kind == Kind::Select) {
        facts.lo = std::min(range_of(node.b).lo, range_of(node.c).lo);
        facts.hi = std::max(range_of(node.b).hi, range_of(node.c).hi);
    }
    return facts;
}

Term Terms::integer(Type type, int64_t value) { return make({.kind = Kind::Integer, .type = type, .number = value}); }
Term Terms::real(Type type, double value) {
    return make({.kind = Kind::Real, .type = type, .number = std::bit_cast<int64_t>(value == 0 ? 0.0 : value)});
}
Term Terms::symbol(Type type, int memory, int64_t offset) {
    return make({.kind = Kind::Symbol, .type = type, .op = memory, .number = offset});
}
Term Terms::element(Type type, int memory, Term index) {
    return make({.kind = Kind::Element, .type = type, .op = memory, .a = index});
}
Term Terms::undefined(Type type) { return make({.kind = Kind::Undefined, .type = type, .number = ++undefined_}); }

std::optional<int64_t> Terms::value(Term term) const {
    const Node& node = nodes_[static_cast<size_t>(term)];
    return node.kind == Kind::Integer ? std::optional(node.number) : std::nullopt;
}

std::optional<double> Terms::real_value(Term term) const {
    const Node& node = nodes_[static_cast<size_t>(term)];
    return node.kind == Kind::Real ? std::optional(std::bit_cast<double>(node.number)) : std::nullopt;
}

bool Terms::is_infinite(Term term) const {
    const auto known = real_value(term);
    return known && std::isinf(*known);
}

/// One is the negation of the other.
bool Terms::is_not(Term one, Term other) const {
    const Node& node = nodes_[static_cast<size_t>(one)];
    return node.kind == Kind::Unary && node.op == static_cast<int>(UnaryOp::Not) && node.a == other;
}

bool Terms::is_binary(Term term, BinaryOp op) const {
    const Node& node = nodes_[static_cast<size_t>(term)];
    return node.kind == Kind::Binary && node.op == static_cast<int>(op);
}

/// The condition holds only where both are equal.
bool Terms::says_equal(Term condition, Term one, Term other) const {
    const Node& node = nodes_[static_cast<size_t>(condition)];
    if (node.kind != Kind::Binary) return false;
    if (node.op == static_cast<int>(BinaryOp::And))
        return says_equal(node.a, one, other) || says_equal(node.b, one, other);
    bool same = (node.a == one && node.b == other) || (node.a == other && node.b == one);
    return node.op == static_cast<int>(BinaryOp::Equal) && same;
}

Term Terms::unary(UnaryOp op, Type type, Term a) {
    const Node node = nodes_[static_cast<size_t>(a)];
    if (auto known = value(a)) {
        if (op == UnaryOp::Negate)
            return integer(type, wrap_to_type(type, *apply_to_integers(BinaryOp::Sub, 0, *known)));
        if (op == UnaryOp::Not) return integer(type, !*known);
    }
    if ((op == UnaryOp::Exp || op == UnaryOp::Exp2) && is_real(a, -kInfinity)) return real(type, 0);
    if ((op == UnaryOp::Exp || op == UnaryOp::Exp2) && is_real(a, 0)) return real(type, 1);
    if (op == UnaryOp::Abs && is_infinite(a)) return real(type, kInfinity);
    if (op == UnaryOp::Negate && node.kind == Kind::Real) return real(type, -std::bit_cast<double>(node.number));
    bool undoes = (op == UnaryOp::Negate || op == UnaryOp::Not) && node.kind == Kind::Unary &&
                  node.op == static_cast<int>(op) && node.type == type;
    if (undoes) return node.a;
    return make({.kind = Kind::Unary, .type = type, .op = static_cast<int>(op), .a = a});
}

Term Terms::binary(BinaryOp op, Type type, Term a, Term b) {
    if (op == BinaryOp::DivShared) op = BinaryOp::Div;  // which it computes
    if (auto result = by_constants(op, type, a, b)) return *result;
    if (auto simpler = by_law(op, type, a, b)) return *simpler;
    if (is_commutative(op) && b < a) std::swap(a, b);
    return make({.kind = Kind::Binary, .type = type, .op = static_cast<int>(op), .a = a, .b = b});
}

std::optional<Term> Terms::by_constants(BinaryOp op, Type type, Term a, Term b) {
    auto left = value(a), right = value(b);
    if (left && right)
        if (auto result = apply_to_integers(op, *left, *right)) return integer(type, wrap_to_type(type, *result));
    auto x = real_value(a), y = real_value(b);
    if (!x || !y) return {};
    // Rounding a double to a narrower type gives what one rounding gives.
    switch (op) {
        case BinaryOp::Add: return real(type, round_to_type(type, *x + *y));
        case BinaryOp::Sub: return real(type, round_to_type(type, *x - *y));
        case BinaryOp::Mul: return real(type, round_to_type(type, *x * *y));
        case BinaryOp::Div: return real(type, round_to_type(type, *x / *y));
        case BinaryOp::Less: return integer(type, *x < *y);
        case BinaryOp::LessEqual: return integer(type, *x <= *y);
        case BinaryOp::Equal: return integer(type, *x == *y);
        case BinaryOp::NotEqual: return integer(type, *x != *y);
        default: return {};
    }
}

std::optional<bool> Terms::by_ranges(BinaryOp op, Term a, Term b) const {
    const Facts &left = facts_[static_cast<size_t>(a)], &right = facts_[static_cast<size_t>(b)];
    bool less = left.hi<right.lo, more = left.lo> right.hi;
    bool at_most = left.hi <= right.lo, at_least = left.lo >= right.hi;
    if (op == BinaryOp::Less && (less || at_least)) return less;
    if (op == BinaryOp::LessEqual && (at_most || more)) return at_most;
    if (op == BinaryOp::Equal && (less || more)) return false;
    if (op == BinaryOp::NotEqual && (less || more)) return true;
    return {};
}

std::optional<Term> Terms::by_law(BinaryOp op, Type type, Term a, Term b) {
    if (is_undefined(a) || is_undefined(b)) return {};  // perhaps NaN
    if (auto decided = by_ranges(op, a, b)) return integer(type, *decided);
    if ((is_infinite(a) && is_finite(b)) || (is_finite(a) && is_infinite(b)))
        if (auto simpler = of_infinity(op, type, a, b)) return simpler;
    switch (op) {
        case BinaryOp::Add:
            if (is_real(a, 0) || value(a) == 0) return b;
            [[fallthrough]];
        case BinaryOp::Sub:
            if (is_real(b, 0) || value(b) == 0) return a;
            if (a == b && op == BinaryOp::Sub) return is_float(type) ? real(type, 0) : integer(type, 0);
            return {};
        case BinaryOp::Div:
            if (is_real(b, 1) || value(b) == 1) return a;
            return {};
        case BinaryOp::Mul:
            if ((is_real(a, 0) && is_finite(b)) || is_real(b, 1) || value(a) == 0 || value(b) == 1) return a;
            if ((is_real(b, 0) && is_finite(a)) || is_real(a, 1) || value(b) == 0 || value(a) == 1) return b;
            return square_of_difference(type, a, b);
        case BinaryOp::Min:
        case BinaryOp::Max: {
            double neutral = op == BinaryOp::Min ? kInfinity : -kInfinity;
            if (a == b || is_real(b, neutral)) return a;
            if (is_real(a, neutral)) return b;
            return {};
        }
        case BinaryOp::Less:
            if (a == b || is_real(b, -kInfinity) || is_real(a, kInfinity)) return integer(type, 0);
            if (is_real(a, -kInfinity) || is_real(b, kInfinity))
                return unary(UnaryOp::Not, type, binary(BinaryOp::Equal, type, a, b));
            return {};
        case BinaryOp::LessEqual:
        case BinaryOp::Equal:
            if (a == b) return integer(type, 1);
            return {};
        case BinaryOp::NotEqual:
            if (a == b) return integer(type, 0);
            return {};
        case BinaryOp::And:
        case BinaryOp::Or: return of_bools(op, a, b);
        default: return of_words(op, type, a, b);
    }
}

/// One of them is an infinity, the other a finite value.
std::optional<Term> Terms::of_infinity(BinaryOp op, Type type, Term a, Term b) {
    switch (op) {
        case BinaryOp::Add: return is_infinite(a) ? a : b;
        case BinaryOp::Sub: return is_infinite(a) ? a : real(type, -*real_value(b));
        case BinaryOp::LessEqual: return integer(type, is_real(a, -kInfinity) || is_real(b, kInfinity));
        case BinaryOp::Equal: return integer(type, 0);
        case BinaryOp::NotEqual: return integer(type, 1);
        default: return {};
    }
}

/// (x - y)^2 = (y - x)^2.
std::optional<Term> Terms::square_of_difference(Type type, Term a, Term b) {
    if (a != b || !is_binary(a, BinaryOp::Sub)) return {};
    const Node difference = nodes_[static_cast<size_t>(a)];
    if (difference.a < difference.b) return {};
    Term other = binary(BinaryOp::Sub, difference.type, difference.b, difference.a);
    return make({.kind = Kind::Binary, .type = type, .op = static_cast<int>(BinaryOp::Mul), .a = other, .b = other});
}

/// Of bits: what simplify() leaves out.
std::optional<Term> Terms::of_words(BinaryOp op, Type type, Term a, Term b) {
    constexpr int64_t all_bits = 0xffffffff;
    if (op == BinaryOp::BitAnd || op == BinaryOp::BitOr) {
        int64_t neutral = op == BinaryOp::BitAnd ? all_bits : 0, decisive = all_bits - neutral;
        if (a == b || value(b) == neutral || value(a) == decisive) return a;
        if (value(a) == neutral || value(b) == decisive) return b;
        return {};
    }
    if (op == BinaryOp::BitXor) {
        if (a == b) return integer(type, 0);
        if (value(b) == 0) return a;
        return value(a) == 0 ? std::optional(b) : std::nullopt;
    }
    if (op == BinaryOp::MulHigh) {
        bool vanishes = value(a) == 0 || value(b) == 0 || value(a) == 1 || value(b) == 1;
        return vanishes ? std::optional(integer(type, 0)) : std::nullopt;
    }
    if (value(b) == 0) return a;
    bool vanishes = value(a) == 0 || value(b).value_or(0) >= 32;
    return vanishes ? std::optional(integer(type, 0)) : std::nullopt;
}

std::optional<Term> Terms::of_bools(BinaryOp op, Term a, Term b) {
    bool deciding = op == BinaryOp::Or;
    if (a == b) return a;
    if (is_not(a, b) || is_not(b, a)) return integer(Type::Bool, deciding);
    for (auto [one, other] : {std::pair(a, b), std::pair(b, a)}) {
        const Node less = nodes_[static_cast<size_t>(one)], equals = nodes_[static_cast<size_t>(other)];
        bool at_most = op == BinaryOp::Or && less.kind == Kind::Binary && less.op == static_cast<int>(BinaryOp::Less) &&
                       equals.kind == Kind::Binary && equals.op == static_cast<int>(BinaryOp::Equal) &&
                       says_equal(other, less.a, less.b);
        if (at_most) return unary(UnaryOp::Not, Type::Bool, binary(BinaryOp::Less, Type::Bool, less.b, less.a));
        if (auto known = value(one)) return (*known != 0) == deciding ? one : other;
    }
    return {};
}

Term Terms::fma(Type type, Term a, Term b, Term c) {
    if (is_real(c, 0)) return binary(BinaryOp::Mul, type, a, b);
    bool vanishes = (is_real(a, 0) && !is_undefined(b)) || (is_real(b, 0) && !is_undefined(a));
    if (vanishes) return c;
    if (real_value(a) && real_value(b) && is_finite(c))
        if (const Term product = binary(BinaryOp::Mul, type, a, b); is_infinite(product)) return product;
    if (b < a) std::swap(a, b);
    return make({.kind = Kind::Fma, .type = type, .a = a, .b = b, .c = c});
}

Term Terms::select(Type type, Term condition, Term yes, Term no) {
    if (auto known = value(condition)) return *known ? yes : no;
    if (yes == no) return yes;
    const Node node = nodes_[static_cast<size_t>(condition)];
    if (node.kind == Kind::Unary && node.op == static_cast<int>(UnaryOp::Not)) return select(type, node.a, no, yes);
    if (!is_undefined(condition) && says_equal(condition, yes, no)) return no;  // x == y ? x : y
    if (node.kind == Kind::Binary && node.op == static_cast<int>(BinaryOp::Or) && !is_undefined(condition)) {
        if (says_equal(node.a, yes, no)) return select(type, node.b, yes, no);
        if (says_equal(node.b, yes, no)) return select(type, node.a, yes, no);
    }
    bool less = node.kind == Kind::Binary && node.op == static_cast<int>(BinaryOp::Less) && !is_undefined(condition);
    if (less && node.a == yes && node.b == no) return binary(BinaryOp::Min, type, yes, no);
    if (less && node.a == no && node.b == yes) return binary(BinaryOp::Max, type, yes, no);
    Choice choice{condition, yes, no};
    if (auto same = ordered(choice); same && !(*same == choice))
        return select(type, same->condition, same->yes, same->no);
    return make({.kind = Kind::Select, .type = type, .a = condition, .b = yes, .c = no});
}

/// p < q || (p == q && (yes < no or yes <= no)) ? yes : no, or with ties to the larger one: where yes == no, both sides
/// are one, and with q < p the sides change places. Of those, the form with yes made before no.
std::optional<Terms::Choice> Terms::ordered(const Choice& choice) {
    auto [condition, yes, no] = choice;
    if (!is_binary(condition, BinaryOp::Or) || is_undefined(condition)) return {};
    auto node = [&](Term term) { return nodes_[static_cast<size_t>(term)]; };
    Term less = node(condition).a, tie = node(condition).b;
    if (!is_binary(less, BinaryOp::Less)) std::swap(less, tie);
    if (!is_binary(less, BinaryOp::Less) || !is_binary(tie, BinaryOp::And)) return {};
    Term p = node(less).a, q = node(less).b, equal = node(tie).a, breaks = node(tie).b;
    if (!says_equal(equal, p, q)) std::swap(equal, breaks);
    if (!is_binary(equal, BinaryOp::Equal) || !says_equal(equal, p, q)) return {};
    if (!is_binary(breaks, BinaryOp::Less) && !is_binary(breaks, BinaryOp::LessEqual)) return {};
    bool to_smaller = node(breaks).a == yes && node(breaks).b == no;
    if (!to_smaller && !(node(breaks).a == no && node(breaks).b == yes)) return {};
    if (no < yes) std::swap(yes, no), std::swap(p, q);
    auto compared = [&](Term a, Term b) { return binary(BinaryOp::Less, Type::Bool, a, b); };
    Term first = binary(BinaryOp::And, Type::Bool, equal, to_smaller ? compared(yes, no) : compared(no, yes));
    return Choice{binary(BinaryOp::Or, Type::Bool, compared(p, q), first), yes, no};
}

Term Terms::cast(Type type, Term a) {
    Type from = nodes_[static_cast<size_t>(a)].type;
    if (from == type) return a;
    if (auto known = value(a)) {
        if (type == Type::Bool) return integer(type, *known != 0);
        if (is_integer(type)) return integer(type, wrap_to_type(type, *known));
        return real(type, round_to_type(type, static_cast<double>(*known)));
    }
    if (auto known = real_value(a); known && is_float(type)) return real(type, round_to_type(type, *known));
    return make({.kind = Kind::Cast, .type = type, .a = a});
}

}  // namespace tw::fuzz
