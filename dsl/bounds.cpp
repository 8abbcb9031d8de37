// Intervals of integer expressions.
#include <algorithm>
#include <bit>
#include <limits>

#include "dsl/deep.h"
#include "dsl/simplifier.h"
#include "dsl/tree.h"
#include "dsl/walk.h"

namespace tw {
namespace {

using Bound = std::optional<int64_t>;

/// op(a, b), or unknown if a side is or the result leaves 64 bits.
template <class Op>
Bound both(Bound a, Bound b, Op op) {
    if (!a || !b) return {};
    try {
        return op(*a, *b);
    } catch (const Overflow&) {
        return {};
    }
}

Bound larger(Bound a, Bound b) { return a && b ? std::max(*a, *b) : a ? a : b; }
Bound smaller(Bound a, Bound b) { return a && b ? std::min(*a, *b) : a ? a : b; }

Interval sum(const Interval& a, const Interval& b) {
    return {both(a.min, b.min, checked_add), both(a.max, b.max, checked_add)};
}

Interval negated(const Interval& a) { return {both(a.max, -1, checked_mul), both(a.min, -1, checked_mul)}; }

Interval scaled(const Interval& a, int64_t factor) {
    if (factor == 0) return {0, 0};
    Interval result{both(a.min, factor, checked_mul), both(a.max, factor, checked_mul)};
    if (factor < 0) std::swap(result.min, result.max);
    return result;
}

bool is_point(const Interval& a) { return a.min && a.min == a.max; }
bool non_negative(const Interval& a) { return a.min && *a.min >= 0; }

Interval product(const Interval& a, const Interval& b) {
    if (is_point(a)) return scaled(b, *a.min);
    if (is_point(b)) return scaled(a, *b.min);
    if (non_negative(a) && non_negative(b)) return {both(a.min, b.min, checked_mul), both(a.max, b.max, checked_mul)};
    if (!a.min || !a.max || !b.min || !b.max) return {};
    Interval low = scaled(a, *b.min), high = scaled(a, *b.max);
    if (!low.min || !low.max || !high.min || !high.max) return {};
    return {std::min(*low.min, *high.min), std::max(*low.max, *high.max)};
}

/// The interval of floor division by at least 1.
Interval quotient(const Interval& a, const Interval& b) {
    if (!b.min || *b.min < 1) return {};
    Interval result;
    if (a.min && *a.min < 0) result.min = floor_div(*a.min, *b.min);
    if (a.min && *a.min >= 0) result.min = b.max ? *a.min / *b.max : 0;
    if (a.max && *a.max >= 0) result.max = *a.max / *b.min;
    if (a.max && *a.max < 0) result.max = b.max ? floor_div(*a.max, *b.max) : -1;
    return result;
}

Interval remainder(const Interval& a, const Interval& b) {
    if (b.max && *b.max < 0) return {both(b.min, 1, checked_add), 0};
    if (!b.min || *b.min < 1) return {};
    if (non_negative(a) && a.max && *a.max < *b.min) return a;
    Bound below_divisor = both(b.max, -1, checked_add);
    return {0, non_negative(a) ? smaller(a.max, below_divisor) : below_divisor};
}

Interval hull(const Interval& a, const Interval& b) {
    return {both(a.min, b.min, [](auto x, auto y) { return std::min(x, y); }),
            both(a.max, b.max, [](auto x, auto y) { return std::max(x, y); })};
}

Interval minimum(const Interval& a, const Interval& b) { return {hull(a, b).min, smaller(a.max, b.max)}; }
Interval maximum(const Interval& a, const Interval& b) { return {larger(a.min, b.min), hull(a, b).max}; }

Interval decided(Bound value) { return value ? Interval{value, value} : Interval{0, 1}; }
bool below(Bound a, Bound b) { return a && b && *a < *b; }
bool at_most(Bound a, Bound b) { return a && b && *a <= *b; }

Bound less(const Interval& a, const Interval& b) {
    if (below(a.max, b.min)) return 1;
    if (at_most(b.max, a.min)) return 0;
    return {};
}

Bound equal_points(const Interval& a, const Interval& b) {
    if (is_point(a) && a == b) return 1;
    if (below(a.max, b.min) || below(b.max, a.min)) return 0;
    return {};
}

Bound negation(Bound value) { return value ? Bound(1 - *value) : value; }

/// Of u32: each bound by the operation on bounds, where it grows with both sides, or falls with the second.
Interval of_words(BinaryOp op, const Interval& a, const Interval& b) {
    if (!a.min || !a.max || !b.min || !b.max) return {};
    const int64_t most = std::max(*a.max, *b.max),
                  low_bits = static_cast<int64_t>(std::bit_ceil(uint64_t(most) + 1)) - 1;
    switch (op) {
        case BinaryOp::BitAnd: return {0, std::min(*a.max, *b.max)};
        case BinaryOp::BitOr: return {std::max(*a.min, *b.min), low_bits};
        case BinaryOp::BitXor: return {0, low_bits};
        case BinaryOp::ShiftRight: return {shifted_right(*a.min, *b.max), shifted_right(*a.max, *b.min)};
        case BinaryOp::MulHigh: return {high_product(*a.min, *b.min), high_product(*a.max, *b.max)};
        default: return {};
    }
}

/// Nothing where bits of the largest would be shifted out.
Interval of_shift_left(const Interval& a, const Interval& b) {
    if (!a.min || !a.max || !b.min || !b.max || *b.max >= 32 || *a.max << *b.max >> 32 != 0) return {};
    return {*a.min << *b.min, *a.max << *b.max};
}

Interval of_operation(BinaryOp op, const Interval& a, const Interval& b) {
    switch (op) {
        case BinaryOp::Add: return sum(a, b);
        case BinaryOp::Sub: return sum(a, negated(b));
        case BinaryOp::Mul: return product(a, b);
        case BinaryOp::Div: return quotient(a, b);
        case BinaryOp::Mod: return remainder(a, b);
        case BinaryOp::Min:
        case BinaryOp::And: return minimum(a, b);
        case BinaryOp::Max:
        case BinaryOp::Or: return maximum(a, b);
        case BinaryOp::Less: return decided(less(a, b));
        case BinaryOp::LessEqual: return decided(negation(less(b, a)));
        case BinaryOp::Equal: return decided(equal_points(a, b));
        case BinaryOp::NotEqual: return decided(negation(equal_points(a, b)));
        case BinaryOp::ShiftLeft: return of_shift_left(a, b);
        case BinaryOp::BitAnd:
        case BinaryOp::BitOr:
        case BinaryOp::BitXor:
        case BinaryOp::ShiftRight:
        case BinaryOp::MulHigh: return of_words(op, a, b);
        case BinaryOp::DivShared: break;  // of floats
    }
    return {};
}

Interval range_of(Type type) {
    switch (type) {
        case Type::Bool: return {0, 1};
        case Type::I8: return {-128, 127};
        case Type::U8: return {0, 255};
        case Type::I32: return {std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()};
        case Type::U32: return {0, std::numeric_limits<uint32_t>::max()};
        default: return {};
    }
}

bool within(const Interval& inner, const Interval& outer) {
    return (!outer.min || at_most(outer.min, inner.min)) && (!outer.max || at_most(inner.max, outer.max));
}

/// What is left of an interval in a type that wraps.
Interval wrapped(const Interval& a, Type type) { return within(a, range_of(type)) ? a : range_of(type); }

}  // namespace

Interval Simplifier::bounds(const Expr& expr) {
    if (auto value = as_constant(expr)) return {value, value};
    if (is_float(expr.type())) return {};
    if (auto* variable = expr.as<Variable>()) return bounds_of_variable(expr, *variable);
    if (const KnownBounds* found = known_bounds_.find(expr.id())) return found->result;
    Interval result = bounds_of_node(expr);
    known_bounds_.insert(expr.id(), KnownBounds{expr, result});
    return result;
}

Interval Simplifier::bounds_of_variable(const Expr& expr, const Variable& variable) {
    if (overrides_)
        if (auto found = overrides_->find(expr.id()); found != overrides_->end()) return found->second;
    Interval range = range_of(expr.type());
    Interval result{larger(variable.min, range.min), smaller(variable.max, range.max)};
    if (!variable.extent.defined()) return result;
    result.min = larger(result.min, 0);
    if (!result.max) result.max = both(bounds(simplify(variable.extent)).max, -1, checked_add);
    return result;
}

Interval Simplifier::unwrapped_bounds(const Expr& expr) {
    if (auto* node = expr.as<Binary>()) return of_operation(node->op, bounds(node->a), bounds(node->b));
    const Unary& node = *expr.as<Unary>();
    Interval a = bounds(node.a);
    switch (node.op) {
        case UnaryOp::Not: return {negation(a.max), negation(a.min)};
        case UnaryOp::Negate: return negated(a);
        case UnaryOp::Abs: return {larger(larger(a.min, negated(a).min), 0), hull(a, negated(a)).max};
        default: return {};
    }
}

namespace {

/// Known on both sides, and within what the type holds.
bool fits(const Interval& bounds, Type type) { return bounds.min && bounds.max && within(bounds, range_of(type)); }

}  // namespace

Interval Simplifier::bounds_of_node(const Expr& expr) {
    Type type = expr.type();
    auto* node = expr.as<Binary>();
    if (node && is_float(node->a.type())) return range_of(Type::Bool);
    if (node || expr.as<Unary>()) {
        Interval result = unwrapped_bounds(expr);
        if (type == Type::Bool || is_place(expr) || fits(result, type)) return result;
        bool may_leave = is_linear(expr) || expr.as<Unary>();
        return may_leave ? range_of(type) : wrapped(result, type);
    }
    if (auto* select = expr.as<Select>()) {
        Interval condition = bounds(select->condition);
        if (is_point(condition)) return bounds(*condition.min ? select->yes : select->no);
        return hull(bounds(select->yes), bounds(select->no));
    }
    if (auto* cast = expr.as<Cast>(); cast && !is_float(cast->a.type())) return wrapped(bounds(cast->a), type);
    if (auto* load = expr.as<Load>(); load && load->buffer->below > 0) return {0, load->buffer->below - 1};
    return range_of(type);
}

bool Simplifier::is_within(const Expr& expr, Type type) {
    return (type == Type::I64 && is_integer(expr.type())) || fits(bounds(expr), type);
}

bool Simplifier::is_place(const Expr& expr) {
    if (expr.type() != Type::I64) return false;
    if (auto* variable = expr.as<Variable>()) return variable->kind != VariableKind::Scalar;
    constexpr int64_t room = int64_t{1} << 62;  // beyond, the sum with a small index may leave 64 bits
    if (auto value = as_constant(expr)) return *value <= room && *value >= -room;
    if (!expr.as<Unary>() && !expr.as<Binary>() && !expr.as<Select>()) return false;
    if (auto found = known_places_.find(expr.id()); found != known_places_.end()) return found->second.second;
    bool result = true;
    for_each_child(*expr, [&](const Expr& kid) { result = result && (kid.type() == Type::Bool || is_place(kid)); });
    known_places_.emplace(expr.id(), std::pair(expr, result));
    return result;
}

bool Simplifier::is_bounded(const Expr& expr) {
    if (is_place(expr)) return true;
    if (expr.type() != Type::I64) return false;
    if (const Cast* cast = expr.as<Cast>()) return is_integer(cast->a.type()) && bytes_of(cast->a.type()) <= 4;
    if (!expr.as<Unary>() && !expr.as<Binary>() && !expr.as<Select>()) return false;
    if (auto found = known_bounded_.find(expr.id()); found != known_bounded_.end()) return found->second.second;
    bool result = true;
    for_each_child(*expr, [&](const Expr& kid) { result = result && (kid.type() == Type::Bool || is_bounded(kid)); });
    const Interval range = result ? bounds(expr) : Interval{};  // all values of the type if it may wrap
    constexpr int64_t room = int64_t{1} << 62;
    result = range.min && range.max && *range.min >= -room && *range.max <= room;
    known_bounded_.emplace(expr.id(), std::pair(expr, result));
    return result;
}

bool Simplifier::is_exact(const Expr& expr) {
    bool wraps = is_index(expr.type()) && (expr.as<Unary>() || expr.as<Binary>());
    if (!wraps || is_place(expr)) return true;
    if (auto found = known_exact_.find(expr.id()); found != known_exact_.end()) return found->second.second;
    bool result = true;
    for_each_child(*expr, [&](const Expr& kid) { result = result && is_exact(kid); });
    if (is_linear(expr)) result = result && fits(unwrapped_bounds(expr), expr.type());
    known_exact_.emplace(expr.id(), std::pair(expr, result));
    return result;
}

Interval Simplifier::bounds(const Affine& affine) {
    Interval result{affine.offset, affine.offset};
    for (const auto& [atom, coefficient] : affine.terms) result = sum(result, scaled(bounds(atom), coefficient));
    return result;
}

// Whether an operation leaves its type.

/// Sums and products that stay in their type, as those of the integers.
Expr Simplifier::in_64_bits(const Expr& expr) {
    if (auto value = as_constant(expr)) return constant(Type::I64, *value);
    if (expr.type() == Type::I64) return expr;
    if (auto* node = expr.as<Cast>(); node && node->a.type() == Type::I64 && is_within(simplify(node->a), expr.type()))
        return node->a;
    if (!is_linear(expr)) return cast_unchecked(Type::I64, expr);
    if (auto* node = expr.as<Unary>()) return unary(node->op, in_64_bits(node->a));
    const Binary& node = *expr.as<Binary>();
    return binary(node.op, in_64_bits(node.a), in_64_bits(node.b));
}

bool Simplifier::may_wrap(const Expr& operation) {
    Type type = operation.type();
    if (is_place(operation)) return !fits(bounds(simplify(operation)), type);
    Expr of_simple = map_children(operation, [&](const Expr& kid) { return simplify(kid); });
    if (fits(unwrapped_bounds(of_simple), type)) return false;
    // Together the parts may cancel, if none of them wraps.
    bool parts_wrap = !is_linear(operation);
    for_each_child(*operation, [&](const Expr& kid) { parts_wrap = parts_wrap || (is_linear(kid) && may_wrap(kid)); });
    return parts_wrap || !fits(bounds(simplify(in_64_bits(operation))), type);
}

bool may_wrap(const Expr& operation, const BoundsOverride& overrides) {
    return Simplifier(overrides.empty() ? nullptr : &overrides).may_wrap(operation);
}

// Bounds through symbolic extents, and through the sides of minima. raise_once replaces one term by something not
// smaller.

namespace {

/// Whether the number of iterations of another index in the sum depends on one of the factors: that index first.
bool limits_another(const Affine& affine, const std::vector<Expr>& factors) {
    for (const auto& term : affine.terms)
        for (const Expr& other : factors_of(term.first)) {
            auto* variable = other.as<Variable>();
            if (!variable || !variable->extent.defined() || as_constant(variable->extent)) continue;
            for (const Expr& factor : factors)
                if (factor.as<Variable>() && contains(variable->extent, factor)) return true;
        }
    return false;
}

}  // namespace

bool Simplifier::raise_index(Affine& affine, size_t term) {
    auto [atom, coefficient] = affine.terms[term];
    std::vector<Expr> factors = factors_of(atom);
    if (limits_another(affine, factors)) return false;
    for (size_t f = 0; f < factors.size(); ++f) {
        auto* variable = factors[f].as<Variable>();
        if (!variable || !variable->extent.defined() || as_constant(variable->extent)) continue;
        if (overrides_ && overrides_->count(factors[f].id())) continue;
        std::vector<Expr> others = factors;
        others.erase(others.begin() + static_cast<std::ptrdiff_t>(f));
        if (!std::all_of(others.begin(), others.end(), [&](const Expr& o) { return non_negative(bounds(o)); }))
            continue;
        affine.terms.erase(affine.terms.begin() + static_cast<std::ptrdiff_t>(term));
        if (coefficient < 0) return true;  // the index is 0 at least
        Affine largest = decompose(simplify(variable->extent));
        largest.offset = checked_add(largest.offset, -1);
        if (!others.empty()) largest = product(largest, decompose(product_of(others)), atom.type());
        add_scaled(affine, largest, coefficient);
        return true;
    }
    return false;
}

/// x - (c - 1) <= x / c * c <= x.
bool Simplifier::raise_quotient(Affine& affine, size_t term) {
    auto [atom, coefficient] = affine.terms[term];
    auto* node = as_binary(atom, BinaryOp::Div);
    int64_t divisor = node ? as_constant(node->b).value_or(0) : 0;
    if (divisor <= 0 || coefficient % divisor != 0 || !is_exact(atom)) return false;
    affine.terms.erase(affine.terms.begin() + static_cast<std::ptrdiff_t>(term));
    Affine dividend = decompose(node->a);
    if (coefficient < 0) dividend.offset = checked_add(dividend.offset, 1 - divisor);
    add_scaled(affine, dividend, coefficient / divisor);
    return true;
}

/// x / c - y / c <= (x - y) / c, rounded up.
bool Simplifier::raise_difference_of_quotients(Affine& affine, size_t term) {
    auto [atom, coefficient] = affine.terms[term];
    auto quotient = coefficient > 0 ? by_constant(atom, BinaryOp::Div) : std::nullopt;
    if (!quotient) return false;
    for (size_t t = 0; t < affine.terms.size(); ++t) {
        auto other =
            affine.terms[t].second == -coefficient ? by_constant(affine.terms[t].first, BinaryOp::Div) : std::nullopt;
        if (!other || other->divisor != quotient->divisor) continue;
        if (!is_exact(atom) || !is_exact(affine.terms[t].first)) continue;
        auto most = upper(minus(decompose(quotient->dividend), decompose(other->dividend)));
        if (!most) continue;
        affine.terms.erase(affine.terms.begin() + static_cast<std::ptrdiff_t>(std::max(t, term)));
        affine.terms.erase(affine.terms.begin() + static_cast<std::ptrdiff_t>(std::min(t, term)));
        int64_t rounded_up = -floor_div(checked_mul(*most, -1), quotient->divisor);
        affine.offset = checked_add(affine.offset, checked_mul(coefficient, rounded_up));
        return true;
    }
    return false;
}

/// Indices first: without its quotient, x/c*c is no longer known to be non-negative.
bool Simplifier::raise_once(Affine& affine) {
    for (auto raise :
         {&Simplifier::raise_index, &Simplifier::raise_difference_of_quotients, &Simplifier::raise_quotient})
        for (size_t t = 0; t < affine.terms.size(); ++t)
            if ((this->*raise)(affine, t)) {
                combine_quotients(affine);
                return true;
            }
    return false;
}

/// c * min(x, y) is c * x or c * y, and for c > 0 at most either; of a maximum for c < 0. Where the rest of the sum is
/// made of what x or y is made of, that tells more than their bounds.
std::optional<int64_t> Simplifier::upper_by_sides(const Affine& affine, int sides) {
    if (sides == 0) return {};
    for (size_t t = 0; t < affine.terms.size(); ++t) {
        const auto [atom, coefficient] = affine.terms[t];
        const Binary* node = atom.as<Binary>();
        if (!node || (node->op != BinaryOp::Min && node->op != BinaryOp::Max) || !is_exact(atom)) continue;
        Affine rest = affine;
        rest.terms.erase(rest.terms.begin() + static_cast<std::ptrdiff_t>(t));
        const std::vector<Expr> of_atom = variables_of(atom);
        const bool is_related = std::ranges::any_of(rest.terms, [&](const auto& term) {
            return std::ranges::any_of(of_atom, [&](const Expr& variable) { return contains(term.first, variable); });
        });
        if (!is_related) continue;
        auto with = [&](const Expr& side) {
            Affine sum = rest;
            add_scaled(sum, decompose(side), coefficient);
            combine_quotients(sum);
            return upper(sum, sides - 1);
        };
        const Bound a = with(node->a), b = with(node->b);
        const bool at_most_either = (node->op == BinaryOp::Min) == (coefficient > 0);
        if (at_most_either) return smaller(a, b);
        return both(a, b, [](int64_t x, int64_t y) { return std::max(x, y); });
    }
    return {};
}

std::optional<int64_t> Simplifier::upper(const Affine& affine, int sides) {
    Bound best = smaller(bounds(affine).max, upper_by_sides(affine, sides));
    Affine raised = affine;
    constexpr int most_steps = 16;
    for (int step = 0; step < most_steps && raise_once(raised); ++step) best = smaller(best, bounds(raised).max);
    return best;
}

std::optional<int64_t> Simplifier::lower(const Affine& affine) {
    return both(upper(scaled(affine, -1)), -1, checked_mul);
}

Interval bounds_of(const Expr& expr, const BoundsOverride& overrides) {
    return with_room_for(expr, [&] {
        Simplifier simplifier(overrides.empty() ? nullptr : &overrides);
        return simplifier.bounds(simplifier.simplify(expr));
    });
}

Interval bounds_of(const Expr& expr) { return bounds_of(expr, {}); }

std::optional<bool> prove(const Expr& condition) {
    auto value = as_constant(simplify(condition));
    return value ? std::optional<bool>(*value != 0) : std::nullopt;
}

}  // namespace tw
