// Floor division and remainder of index expressions.
#include <algorithm>
#include <numeric>

#include "dsl/simplifier.h"

namespace tw {
namespace {

/// Common divisors of the divisor and of coefficients, largest first.
std::vector<int64_t> candidate_factors(const Affine& affine, int64_t divisor) {
    std::vector<int64_t> factors;
    for (const auto& term : affine.terms)
        if (int64_t common = std::gcd(term.second, divisor); common > 1) factors.push_back(common);
    std::sort(factors.rbegin(), factors.rend());
    factors.erase(std::unique(factors.begin(), factors.end()), factors.end());
    return factors;
}

/// factor * multiple + rest, where 0 <= rest < factor.
struct Split {
    int64_t factor;
    Affine multiple, rest;
};

Split split_by(const Affine& affine, int64_t factor) {
    Split split{factor, {}, {}};
    for (const auto& [atom, coefficient] : affine.terms) {
        if (coefficient % factor == 0)
            split.multiple.terms.emplace_back(atom, coefficient / factor);
        else
            split.rest.terms.emplace_back(atom, coefficient);
    }
    split.multiple.offset = floor_div(affine.offset, factor);
    split.rest.offset = floor_mod(affine.offset, factor);
    return split;
}

/// A constant that the type holds; Overflow otherwise.
Expr literal(Type type, int64_t value) {
    if (wrap_to_type(type, value) != value) throw_overflow();
    return constant(type, value);
}

/// The constant k with k * factor <= value < (k + 1) * factor, if the bounds tell.
std::optional<int64_t> constant_quotient(const Interval& value, int64_t factor) {
    if (!value.min || !value.max) return {};
    int64_t low = floor_div(*value.min, factor);
    if (low != floor_div(*value.max, factor)) return {};
    return low;
}

/// (g*a + b) / (g*c) = a / c and (g*a + b) % (g*c) = g * (a % c) + b where 0 <= b < g.
std::optional<Split> common_factor(Simplifier& simplifier, const Affine& affine, int64_t divisor) {
    for (int64_t factor : candidate_factors(affine, divisor)) {
        Split split = split_by(affine, factor);
        auto carry = constant_quotient(simplifier.bounds(split.rest), factor);
        if (!carry) continue;
        split.multiple.offset = checked_add(split.multiple.offset, *carry);
        split.rest.offset = checked_add(split.rest.offset, checked_mul(*carry, -factor));
        return split;
    }
    return {};
}

}  // namespace

/// atom / divisor where that leaves no remainder; a product loses the divisor in one factor.
Expr Simplifier::exact_quotient(const Expr& atom, int64_t divisor) {
    Type type = atom.type();
    if (divisor == 1) return atom;
    if (auto inner = by_constant(atom, BinaryOp::Div))
        return exact_expr(divide(decompose(inner->dividend), checked_mul(inner->divisor, divisor), type), type);
    if (auto inner = by_constant(atom, BinaryOp::Mod); inner && inner->divisor % divisor == 0)
        return exact_expr(modulo(divide(decompose(inner->dividend), divisor, type), inner->divisor / divisor, type),
                          type);
    std::vector<Expr> factors = factors_of(atom);
    for (Expr& factor : factors) {
        if (divisor_of(factor) % divisor != 0) continue;
        if (factors.size() == 1) break;
        factor = rewrite(binary(BinaryOp::Div, factor, literal(type, divisor)));
        return rewrite(product_of(factors));
    }
    return binary(BinaryOp::Div, atom, literal(type, divisor));
}

namespace {

/// (x - y % c) / c = x / c where x = y modulo c: that x.
std::optional<Affine> without_remainder(const Affine& sum, int64_t divisor) {
    for (size_t t = 0; t < sum.terms.size(); ++t) {
        const auto remainder = by_constant(sum.terms[t].first, BinaryOp::Mod);
        if (sum.terms[t].second != -1 || !remainder || remainder->divisor != divisor) continue;
        Affine whole = sum;
        whole.terms.erase(whole.terms.begin() + static_cast<std::ptrdiff_t>(t));
        const Affine difference = minus(whole, decompose(remainder->dividend));
        const bool agrees =
            difference.offset % divisor == 0 &&
            std::ranges::all_of(difference.terms, [&](const auto& term) { return term.second % divisor == 0; });
        if (agrees) return whole;
    }
    return {};
}

}  // namespace

Affine Simplifier::divide(const Affine& dividend, int64_t divisor, Type type) {
    if (divisor == 1) return dividend;
    Affine quotient, rest;
    for (const auto& [atom, coefficient] : dividend.terms) {
        int64_t common = std::gcd(coefficient, divisor);
        if (coefficient % divisor == 0)
            add_term(quotient, atom, coefficient / divisor);
        else if (divisor_of(atom) % (divisor / common) == 0)
            add_scaled(quotient, decompose(exact_quotient(atom, divisor / common)), coefficient / common);
        else
            add_term(rest, atom, coefficient);
    }
    quotient.offset = checked_add(quotient.offset, floor_div(dividend.offset, divisor));
    rest.offset = floor_mod(dividend.offset, divisor);
    if (combine_once(rest)) {
        add_scaled(quotient, divide(rest, divisor, type), 1);
        return quotient;
    }
    if (auto whole = without_remainder(rest, divisor)) {
        add_scaled(quotient, divide(*whole, divisor, type), 1);
        return quotient;
    }
    if (auto value = constant_quotient(bounds(rest), divisor)) {
        quotient.offset = checked_add(quotient.offset, *value);
        return quotient;
    }
    if (auto split = common_factor(*this, rest, divisor)) {
        add_scaled(quotient, divide(split->multiple, divisor / split->factor, type), 1);
        return quotient;
    }
    bool is_single = rest.terms.size() == 1 && rest.terms[0].second == 1;
    // (x/c + k) / d = (x + k*c) / (c*d)
    if (auto inner = is_single ? by_constant(rest.terms[0].first, BinaryOp::Div) : std::nullopt) {
        Affine whole = decompose(inner->dividend);
        whole.offset = checked_add(whole.offset, checked_mul(rest.offset, inner->divisor));
        add_scaled(quotient, divide(whole, checked_mul(divisor, inner->divisor), type), 1);
        return quotient;
    }
    // x % (c*d) / d = x / d % c
    auto inner = is_single && rest.offset == 0 ? by_constant(rest.terms[0].first, BinaryOp::Mod) : std::nullopt;
    if (inner && inner->divisor % divisor == 0) {
        Affine part = divide(decompose(inner->dividend), divisor, type);
        add_scaled(quotient, modulo(part, inner->divisor / divisor, type), 1);
        return quotient;
    }
    sort_terms(rest);
    add_term(quotient, binary(BinaryOp::Div, exact_expr(rest, type), literal(type, divisor)), 1);
    return quotient;
}

Affine Simplifier::modulo(Affine dividend, int64_t divisor, Type type) {
    if (divisor == 1) return {};
    Affine rest;
    for (const auto& [atom, coefficient] : dividend.terms) {
        // c * (x % d) = c * x modulo c * d
        auto inner = by_constant(atom, BinaryOp::Mod);
        if (inner && checked_mul(inner->divisor, coefficient) % divisor == 0) {
            Affine replaced = dividend;
            add_term(replaced, atom, checked_mul(coefficient, -1));
            add_scaled(replaced, decompose(inner->dividend), coefficient);
            return modulo(std::move(replaced), divisor, type);
        }
        if (checked_mul(coefficient, divisor_of(atom)) % divisor != 0) add_term(rest, atom, coefficient % divisor);
    }
    rest.offset = floor_mod(dividend.offset, divisor);
    if (combine_once(rest, divisor)) return modulo(std::move(rest), divisor, type);
    if (auto value = constant_quotient(bounds(rest), divisor)) {
        rest.offset = checked_add(rest.offset, checked_mul(*value, -divisor));
        return rest;
    }
    if (auto split = common_factor(*this, rest, divisor)) {
        Affine result = scaled(modulo(split->multiple, divisor / split->factor, type), split->factor);
        add_scaled(result, split->rest, 1);
        return result;
    }
    sort_terms(rest);
    Affine result;
    add_term(result, binary(BinaryOp::Mod, exact_expr(rest, type), literal(type, divisor)), 1);
    return result;
}

// Divisors that are no constants: named sizes and products of them.

namespace {

/// Removes the factors of `divisor` from those of `atom`; empty if one is missing. Nothing left stands for 1.
std::optional<std::vector<Expr>> without_factors(const Expr& atom, const Expr& divisor) {
    std::vector<Expr> factors = factors_of(atom);
    for (const Expr& wanted : factors_of(divisor)) {
        auto found = std::find_if(factors.begin(), factors.end(), [&](const Expr& f) { return equal(f, wanted); });
        if (found == factors.end()) return {};
        factors.erase(found);
    }
    return factors;
}

/// divisor * multiple + rest by the terms that have the divisor as a factor.
Split split_by(const Affine& affine, const Expr& divisor) {
    Split split{1, {}, {}};
    for (const auto& [atom, coefficient] : affine.terms) {
        auto factors = without_factors(atom, divisor);
        if (!factors)
            add_term(split.rest, atom, coefficient);
        else if (factors->empty())
            split.multiple.offset = checked_add(split.multiple.offset, coefficient);
        else
            add_term(split.multiple, product_of(*factors), coefficient);
    }
    split.rest.offset = affine.offset;
    return split;
}

/// 0 <= value < divisor
bool is_remainder(Simplifier& simplifier, const Affine& value, const Expr& divisor) {
    auto least = simplifier.lower(value);
    if (!least || *least < 0) return false;
    auto most = simplifier.upper(minus(value, decompose(divisor)));
    return most && *most < 0;
}

}  // namespace

Expr Simplifier::divide(const Expr& node, const Binary& division) {
    Type type = node.type();
    auto divisor = as_constant(division.b);
    if (divisor && *divisor == 0) return node;
    Affine dividend = decompose(division.a);
    Affine quotient;
    if (divisor) {
        // x / -c = -x / c
        int64_t sign = *divisor < 0 ? -1 : 1;
        quotient = divide(scaled(dividend, sign), checked_mul(*divisor, sign), type);
    } else {
        Split split = split_by(dividend, division.b);
        quotient = split.multiple;
        if (!is_remainder(*this, split.rest, division.b)) {
            if (quotient.terms.empty() && quotient.offset == 0) return node;
            add_term(quotient, binary(BinaryOp::Div, exact_expr(split.rest, type), division.b), 1);
        }
    }
    combine_quotients(quotient);
    sort_terms(quotient);
    Expr result = exact_expr(quotient, type);
    return equal(result, node) ? node : result;
}

Expr Simplifier::modulo(const Expr& node, const Binary& operation) {
    Type type = node.type();
    auto divisor = as_constant(operation.b);
    if (divisor && *divisor == 0) return node;
    Affine dividend = decompose(operation.a);
    Affine rest;
    if (divisor) {
        // x % -c = -(-x % c)
        int64_t sign = *divisor < 0 ? -1 : 1;
        rest = scaled(modulo(scaled(dividend, sign), checked_mul(*divisor, sign), type), sign);
    } else {
        Split split = split_by(dividend, operation.b);
        rest = split.rest;
        if (!is_remainder(*this, rest, operation.b)) {
            rest = {};
            sort_terms(split.rest);
            add_term(rest, binary(BinaryOp::Mod, exact_expr(split.rest, type), operation.b), 1);
        }
    }
    combine_quotients(rest);
    sort_terms(rest);
    Expr result = exact_expr(rest, type);
    return equal(result, node) ? node : result;
}

}  // namespace tw
