// simplify(): index arithmetic through affine forms and bounds, everything else by the rules of rules.cpp.
#include "dsl/simplify.h"

#include <algorithm>
#include <numeric>

#include "dsl/deep.h"
#include "dsl/simplifier.h"
#include "dsl/walk.h"

namespace tw {

/// Parts that would have left 64 bits stand as they were; simpler by now, they may no longer. In the end nothing
/// changes.
Expr simplify(const Expr& expr) {
    constexpr int most_passes = 8;
    if (is_simple(expr)) return expr;
    return with_room_for(expr, [&] {
        Expr result = expr;
        for (int pass = 0; pass < most_passes; ++pass) {
            int64_t before = num_overflows();
            Expr simpler = Simplifier().simplify(result);
            if (num_overflows() == before || equal(simpler, result)) return simpler;
            result = simpler;
        }
        return result;
    });
}

Expr Simplifier::simplify(const Expr& expr) {
    if (expr.as<IntConstant>() || expr.as<Variable>()) return expr;
    if (auto* real = expr.as<FloatConstant>()) {  // a literal carries all digits
        double rounded = round_to_type(expr.type(), real->value);
        return rounded == real->value || rounded != rounded ? expr : constant(expr.type(), rounded);
    }
    const bool is_general = overrides_ == nullptr;  // what holds for these bounds alone is nothing to remember
    if (is_general && is_simple(expr)) return expr;
    if (const Known* found = known_.find(expr.id()); found && found->result.defined()) return found->result;
    Expr result;
    try {
        result = is_linear(expr) ? simplify_linear(expr)
                                 : rewrite(map_children(expr, [&](const Expr& kid) { return simplify(kid); }));
    } catch (const Overflow&) {  // of the parts, unless they are simpler by themselves
        result = map_children(expr, [&](const Expr& kid) { return simplify(kid); });
        if (!result.same(expr)) result = simplify(result);
    }
    if (is_general && num_overflows() == overflows_before_) mark_simple(result);  // nor is a part that stays as it was
    known_.assign(expr.id(), {expr, result});
    if (!result.same(expr)) known_.assign(result.id(), {result, result});
    return result;
}

Expr Simplifier::rewrite(const Expr& node) {
    if (is_linear(node)) return simplify_linear(node);
    if (Expr folded = fold(node); folded.defined()) return folded;
    if (auto* binary = node.as<Binary>()) return rewrite_binary(node, *binary);
    if (auto* cast = node.as<Cast>()) return rewrite_cast(node, cast->a);
    Expr changed = apply_rules(node, *this);
    return changed.defined() ? changed : node;
}

// Linear forms.

Expr Simplifier::simplify_linear(const Expr& expr) {
    Affine form = linear(expr);
    if (wrap_to(form, expr.type())) sort_terms(form);
    Expr result = to_expr(form, expr.type());
    return equal(result, expr) ? expr : result;
}

Expr Simplifier::exact_expr(const Affine& affine, Type type) {
    Affine wrapped = affine;
    if (wrap_to(wrapped, type)) throw_overflow();
    Expr result = to_expr(affine, type);
    if (!is_exact(result)) throw_overflow();
    return result;
}

Affine Simplifier::linear(const Expr& expr) {
    Affine form;
    if (is_linear(expr))
        collect_parts(expr, 1, form);
    else
        collect(expr, 1, form);
    combine_quotients(form);
    sort_terms(form);
    return form;
}

void Simplifier::collect(const Expr& expr, int64_t factor, Affine& sum) {
    if (!is_linear(expr)) return add_scaled(sum, decompose(simplify(expr)), factor);
    // A node that is met again is simplified once: sums of shared sums must not take exponential time.
    if (known_.insert(expr.id(), Known{expr, {}})) return collect_parts(expr, factor, sum);
    add_scaled(sum, decompose(simplify(expr)), factor);
}

void Simplifier::collect_parts(const Expr& expr, int64_t factor, Affine& sum) {
    if (auto* negation = expr.as<Unary>()) return collect(negation->a, checked_mul(factor, -1), sum);
    const Binary& node = *expr.as<Binary>();
    if (node.op == BinaryOp::Mul) {
        Affine constant{{}, 1};
        std::vector<Affine> factors;
        collect_factors(expr, constant.offset, factors);
        return add_scaled(sum, product(std::move(constant), factors, expr.type()), factor);
    }
    collect(node.a, factor, sum);
    collect(node.b, node.op == BinaryOp::Add ? factor : checked_mul(factor, -1), sum);
}

/// The product's constant factor and its others, as sums.
void Simplifier::collect_factors(const Expr& expr, int64_t& constant, std::vector<Affine>& factors) {
    constexpr size_t most_factors = 32;  // of longer products parts stand together
    if (auto* node = as_binary(expr, BinaryOp::Mul); node && factors.size() < most_factors) {
        collect_factors(node->a, constant, factors);
        collect_factors(node->b, constant, factors);
        return;
    }
    Type type = expr.type();
    Affine form;
    collect(expr, 1, form);
    combine_quotients(form);
    wrap_to(form, type);
    sort_terms(form);
    bool is_product = form.offset == 0 && form.terms.size() == 1;
    if (!is_product && !form.terms.empty()) return factors.push_back(std::move(form));
    constant = wrap_to_type(type, checked_mul(constant, is_product ? form.terms[0].second : form.offset));
    if (!is_product) return;
    for (const Expr& atom : factors_of(form.terms[0].first)) factors.push_back(decompose(atom));
}

namespace {

using Terms = Affine::Terms;

void erase_pair(Terms& terms, size_t i, size_t j) {
    terms.erase(terms.begin() + static_cast<std::ptrdiff_t>(std::max(i, j)));
    terms.erase(terms.begin() + static_cast<std::ptrdiff_t>(std::min(i, j)));
}

/// Is `product` the product of a / n and n, for the remainder a % n?
bool is_quotient_times_divisor(const Expr& product, const Binary& remainder) {
    auto* node = as_binary(product, BinaryOp::Mul);
    if (!node) return false;
    for (const auto& [quotient, divisor] : {std::pair(node->a, node->b), std::pair(node->b, node->a)})
        if (auto* division = as_binary(quotient, BinaryOp::Div))
            if (equal(divisor, remainder.b) && equal(division->b, remainder.b) && equal(division->a, remainder.a))
                return true;
    return false;
}

/// Does the sum hold `factor` times every term of the addend?
bool holds(const Affine& sum, const Affine& addend, int64_t factor) {
    return std::all_of(addend.terms.begin(), addend.terms.end(), [&](const auto& wanted) {
        return std::any_of(sum.terms.begin(), sum.terms.end(), [&](const auto& term) {
            return term.second == checked_mul(factor, wanted.second) && equal(term.first, wanted.first);
        });
    });
}

/// Is a - b a multiple of the divisor, term by term? Where c * d is one, c * (x % d) counts as c * x.
bool congruent(const Expr& a, const Expr& b, int64_t divisor) {
    Affine difference = decompose(a);
    add_scaled(difference, decompose(b), -1);
    while (true) {
        const auto odd = std::ranges::find_if(difference.terms, [&](const auto& term) {
            return checked_mul(term.second % divisor, divisor_of(term.first) % divisor) % divisor != 0;
        });
        if (odd == difference.terms.end()) return difference.offset % divisor == 0;
        const auto [atom, coefficient] = *odd;
        const auto remainder = by_constant(atom, BinaryOp::Mod);
        if (!remainder || checked_mul(coefficient % divisor, remainder->divisor % divisor) % divisor != 0) return false;
        difference.terms.erase(odd);
        add_scaled(difference, decompose(remainder->dividend), coefficient % divisor);
    }
}

}  // namespace

/// x/c*c + x%c = x, and its kin.
void Simplifier::combine_quotients(Affine& affine) {
    while (combine_once(affine)) {
    }
}

bool Simplifier::combine_once(Affine& affine, int64_t modulus) {
    Terms& terms = affine.terms;
    auto same = [&](int64_t a, int64_t b) { return a == b || (modulus != 0 && (a - b) % modulus == 0); };
    auto replace = [&](size_t i, size_t j, const Affine& by, int64_t factor) {
        if (i == j)
            terms.erase(terms.begin() + static_cast<std::ptrdiff_t>(i));
        else
            erase_pair(terms, i, j);
        add_scaled(affine, by, factor);
        return true;
    };
    for (size_t q = 0; q < terms.size(); ++q) {
        auto quotient = by_constant(terms[q].first, BinaryOp::Div);
        if (!quotient || !is_exact(terms[q].first)) continue;
        auto [dividend, divisor] = *quotient;
        int64_t coefficient = terms[q].second;
        if (coefficient % divisor != 0) continue;
        // x/c*c = x where c divides x
        if (divisor_of(dividend) % divisor == 0) return replace(q, q, decompose(dividend), coefficient / divisor);
        // x - x/c*c = x%c
        Affine whole = decompose(dividend);
        int64_t factor = -(coefficient / divisor);
        if (holds(affine, whole, factor)) {
            Affine remainder = modulo(whole, divisor, dividend.type());
            terms.erase(terms.begin() + static_cast<std::ptrdiff_t>(q));
            add_scaled(affine, whole, -factor);
            add_scaled(affine, remainder, factor);
            return true;
        }
    }
    for (size_t r = 0; r < terms.size(); ++r) {
        auto* remainder = as_binary(terms[r].first, BinaryOp::Mod);
        if (!remainder || !is_exact(terms[r].first)) continue;
        int64_t divisor = as_constant(remainder->b).value_or(0), factor = terms[r].second;
        for (size_t q = 0; q < terms.size(); ++q) {
            if (q == r || !is_exact(terms[q].first)) continue;
            auto [atom, coefficient] = terms[q];
            // x/n*n + x%n = x
            if (coefficient == factor && is_quotient_times_divisor(atom, *remainder))
                return replace(q, r, decompose(remainder->a), factor);
            if (divisor <= 0 || !same(coefficient, checked_mul(factor, divisor))) continue;
            // x/c*c + y%c = x where x = y modulo c
            auto quotient = by_constant(atom, BinaryOp::Div);
            if (quotient && quotient->divisor == divisor && congruent(quotient->dividend, remainder->a, divisor))
                return replace(q, r, decompose(quotient->dividend), factor);
            // x/c%d*c + y%c = x%(c*d) where x = y modulo c
            auto inner = by_constant(atom, BinaryOp::Mod);
            quotient = inner ? by_constant(inner->dividend, BinaryOp::Div) : std::nullopt;
            if (quotient && quotient->divisor == divisor && congruent(quotient->dividend, remainder->a, divisor)) {
                int64_t both = checked_mul(divisor, inner->divisor);
                return replace(q, r, modulo(decompose(quotient->dividend), both, atom.type()), factor);
            }
        }
    }
    return false;
}

// Operations on simplified operands.

Expr Simplifier::rewrite_binary(const Expr& node, const Binary& binary) {
    if (is_index(binary.a.type()) && is_exact(binary.a) && is_exact(binary.b)) {
        switch (binary.op) {
            case BinaryOp::Div: return divide(node, binary);
            case BinaryOp::Mod: return modulo(node, binary);
            case BinaryOp::Min:
            case BinaryOp::Max: return min_or_max(node, binary);
            case BinaryOp::Less:
            case BinaryOp::LessEqual:
            case BinaryOp::Equal:
            case BinaryOp::NotEqual: {
                Expr result = compare_indices(binary);
                return equal(result, node) ? node : result;
            }
            default: break;
        }
    }
    if (binary.op == BinaryOp::And || binary.op == BinaryOp::Or) return connect(node, binary);
    Expr changed = apply_rules(node, *this);
    return changed.defined() ? changed : node;
}

Expr Simplifier::min_or_max(const Expr& node, const Binary& binary) {
    Affine difference = minus(decompose(binary.a), decompose(binary.b));
    combine_quotients(difference);
    bool is_min = binary.op == BinaryOp::Min;
    if (auto most = upper(difference); most && *most <= 0) return is_min ? binary.a : binary.b;
    if (auto least = lower(difference); least && *least >= 0) return is_min ? binary.b : binary.a;
    Expr changed = apply_rules(node, *this);
    return changed.defined() ? changed : node;
}

Expr Simplifier::compare_indices(const Binary& node) {
    Affine difference = minus(decompose(node.a), decompose(node.b));
    combine_quotients(difference);
    sort_terms(difference);
    Type type = node.a.type();
    switch (node.op) {
        case BinaryOp::Less: difference.offset = checked_add(difference.offset, 1); [[fallthrough]];
        case BinaryOp::LessEqual: return at_most_zero(std::move(difference), type);
        default: break;
    }
    Expr equality = equals_zero(std::move(difference), type);
    if (node.op == BinaryOp::Equal) return equality;
    if (auto value = as_constant(equality)) return Expr(*value == 0);
    return binary(BinaryOp::NotEqual, equality.as<Binary>()->a, equality.as<Binary>()->b);
}

namespace {

/// Overflow where a number has no opposite.
int64_t coefficient_divisor(const Affine& affine) {
    int64_t divisor = 0;
    checked_mul(affine.offset, -1);
    for (const auto& term : affine.terms) divisor = std::gcd(divisor, checked_mul(term.second, -1));
    return divisor;
}

struct Sides {
    Affine positive, negative;
};
Sides sides_of(const Affine& affine) {
    Sides sides;
    for (const auto& [atom, coefficient] : affine.terms) {
        if (coefficient > 0)
            sides.positive.terms.emplace_back(atom, coefficient);
        else
            sides.negative.terms.emplace_back(atom, -coefficient);
    }
    return sides;
}

}  // namespace

/// d <= 0 as: p < c, c <= n, or p + c < n and p <= n + c, where d = p - n + constant.
Expr Simplifier::at_most_zero(Affine d, Type type) {
    if (d.terms.empty()) return Expr(d.offset <= 0);
    int64_t divisor = coefficient_divisor(d);
    for (auto& term : d.terms) term.second /= divisor;
    d.offset = -floor_div(checked_mul(d.offset, -1), divisor);
    if (auto most = upper(d); most && *most <= 0) return Expr(true);
    if (auto least = lower(d); least && *least > 0) return Expr(false);
    if (d.terms.size() == 1) {
        auto [atom, sign] = d.terms[0];
        if (auto quotient = by_constant(atom, BinaryOp::Div)) {
            // x/c <= -k: x <= -k*c + c - 1;   x/c >= k: x >= k*c
            Affine whole = scaled(decompose(quotient->dividend), sign);
            int64_t bound = checked_mul(d.offset, quotient->divisor);
            if (sign > 0) bound = checked_add(bound, 1 - quotient->divisor);
            whole.offset = checked_add(whole.offset, bound);
            return at_most_zero(std::move(whole), type);
        }
    }
    auto [positive, negative] = sides_of(d);
    BinaryOp op = BinaryOp::LessEqual;
    if (negative.terms.empty()) {
        op = BinaryOp::Less;
        negative.offset = checked_add(1, checked_mul(d.offset, -1));
    } else if (positive.terms.empty()) {
        positive.offset = d.offset;
    } else if (d.offset > 0) {
        op = BinaryOp::Less;
        positive.offset = d.offset - 1;
    } else {
        negative.offset = checked_mul(d.offset, -1);
    }
    return binary(op, exact_expr(positive, type), exact_expr(negative, type));
}

Expr Simplifier::equals_zero(Affine d, Type type) {
    if (d.terms.empty()) return Expr(d.offset == 0);
    int64_t divisor = coefficient_divisor(d), value_divisor = 0;
    for (const auto& [atom, coefficient] : d.terms)
        value_divisor = std::gcd(value_divisor, checked_mul(coefficient, divisor_of(atom)));
    if (value_divisor != 0 && d.offset % value_divisor != 0) return Expr(false);
    if (d.offset % divisor != 0) return Expr(false);
    if (d.terms[0].second < 0) divisor = -divisor;  // the first term gets a positive coefficient
    for (auto& term : d.terms) term.second /= divisor;
    d.offset /= divisor;
    auto most = upper(d), least = lower(d);
    if ((most && *most < 0) || (least && *least > 0)) return Expr(false);
    if (most == 0 && least == 0) return Expr(true);
    auto [positive, negative] = sides_of(d);
    if (negative.terms.empty() || d.offset < 0)
        negative.offset = checked_mul(d.offset, -1);
    else
        positive.offset = d.offset;
    return binary(BinaryOp::Equal, exact_expr(positive, type), exact_expr(negative, type));
}

// Conversions.

namespace {

/// Does `to` hold every value of `from`?
bool holds_all_of(Type to, Type from) {
    if (to == from) return true;
    if (from == Type::Bool) return true;
    switch (to) {
        case Type::F64: return from != Type::I64;
        case Type::F32: return is_float(from) ? from != Type::F64 : bytes_of(from) == 1;
        case Type::TF32: return is_float(from) && bytes_of(from) <= 2;
        case Type::F16: return bytes_of(from) == 1;
        case Type::I64: return is_integer(from);
        case Type::I32: return from == Type::I8 || from == Type::U8;
        case Type::U32: return from == Type::U8;
        default: return false;
    }
}

}  // namespace

/// The conversion without the type in between, where that type holds every value and only its own rule of conversion
/// can tell: integers wrap, but a float saturates on its way to an integer, and an infinity on its way to e5m2.
Expr Simplifier::rewrite_cast(const Expr& node, const Expr& from) {
    Type to = node.type(), between = from.type();
    auto* inner = from.as<Cast>();
    if (!inner) return node;
    Type first = inner->a.type();
    bool saturates = is_integer(first) && is_float(between) && is_integer(to) && !holds_all_of(to, first);
    bool loses_infinity = first == Type::E5M2 && to == first;
    if (saturates || loses_infinity || !holds_all_of(between, first)) return node;
    return first == to ? inner->a : rewrite(cast_unchecked(to, inner->a));
}

}  // namespace tw
