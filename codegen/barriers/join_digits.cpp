#include <algorithm>

#include "codegen/barriers/conflict_question.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

/// A digit of `number`: number / low, or, with a modulus, number / low % modulus.
struct Digit {
    Affine number;
    int64_t low = 1, modulus = 0;
    Expr atom = {};
    int64_t factor = 0;
};

std::optional<Digit> quotient_of(const Expr& atom) {
    const Binary* node = atom.as<Binary>();
    const auto divisor = node && node->op == BinaryOp::Div ? as_constant(node->b) : std::nullopt;
    if (!divisor || *divisor <= 1) return {};
    // x / a / b
    if (const auto inner = quotient_of(node->a)) return Digit{inner->number, inner->low * *divisor};
    return Digit{affine_of(node->a), *divisor};
}

std::optional<Digit> digit_of(const Expr& atom, int64_t factor) {
    std::optional<Digit> digit = quotient_of(atom);
    const Binary* node = atom.as<Binary>();
    const auto modulus = node && node->op == BinaryOp::Mod ? as_constant(node->b) : std::nullopt;
    if (modulus && *modulus > 1) {
        digit = quotient_of(node->a);
        if (!digit) digit = Digit{affine_of(node->a)};
        digit->modulus = *modulus;
    }
    if (digit) digit->atom = atom, digit->factor = factor;
    return digit;
}

bool is_multiple(const Affine& value, int64_t of) {
    return value.offset % of == 0 &&
           std::ranges::all_of(value.terms, [&](const auto& term) { return term.second % of == 0; });
}

/// A number, whose digits are an index together with `rest`.
struct Digits {
    Affine number, rest;
    std::vector<Digit> digits;  ///< lowest factor first
};

/// Whether the term counts whole values of the top digit.
bool is_whole(const Expr& atom, int64_t factor, const Digit& top) {
    const auto digit = digit_of(atom, factor);
    return factor % top.factor == 0 && !(digit && digit->modulus > 0);
}

/// The number of which top is a digit, and with it whole ones: (8 m + x) / 7 * 5 stands as m * 5 + (m + x) / 7 * 5.
Affine whole_number(const Affine& index, const Digit& top) {
    Affine whole = top.number;
    whole.offset += index.offset / top.factor * top.low;
    for (const auto& [atom, factor] : index.terms) {
        if (atom.same(top.atom) || !is_whole(atom, factor, top)) continue;
        Affine one;
        one.terms.emplace_back(atom, factor / top.factor);
        whole = whole + scaled(one, top.low);
    }
    return whole;
}

/// Those of the number that is divided, down to its last one.
std::optional<Digits> digits_of(const Affine& index, const Digit& top) {
    std::vector<Digit> open;
    for (const auto& [atom, factor] : index.terms)
        if (const auto digit = digit_of(atom, factor); digit && digit->modulus > 0) open.push_back(*digit);
    Digits found{whole_number(index, top), index, {top}};
    for (int64_t low = top.low; low > 1; low = found.digits.back().low) {
        const auto next = std::ranges::find_if(open, [&](const Digit& digit) {
            return digit.low * digit.modulus == low && is_multiple(digit.number - top.number, low);
        });
        if (next == open.end()) return {};
        found.digits.push_back(*next);
    }
    found.rest.offset %= top.factor;
    erase_terms(found.rest, [&](const auto& term) {
        if (is_whole(term.first, term.second, top)) return true;
        return std::ranges::any_of(found.digits, [&](const Digit& digit) { return digit.atom.same(term.first); });
    });
    std::ranges::sort(found.digits, {}, &Digit::factor);
    return found;
}

std::optional<Digits> digits_of(const Affine& index) {
    for (const auto& [atom, factor] : index.terms)
        if (const auto top = digit_of(atom, factor); top && top->modulus == 0)
            if (auto digits = digits_of(index, *top)) return digits;
    return {};
}

/// Of its values, as far as its modulus and the conditions `digit < number` say.
std::optional<int64_t> largest_digit(const Digit& digit, const Side& side) {
    std::optional<int64_t> most;
    if (digit.modulus > 0) most = digit.modulus - 1;
    for (const Expr& condition : side.conditions) {
        const Binary* node = condition.as<Binary>();
        if (!node || node->op != BinaryOp::Less || !equal(node->a, digit.atom)) continue;
        if (const auto bound = as_constant(node->b)) most = std::min(most.value_or(*bound - 1), *bound - 1);
    }
    return most;
}

/// What stands below a digit, digit after digit.
class Below {
public:
    Below(const Affine& rest, const Side& side, const BoundsOverride& known)
        : side_(side), known_(known), sum_(rest), most_(largest(rest, side.conditions, known)) {}
    std::optional<int64_t> least() const { return bounds_of(simplify(to_expr(sum_)), known_).min; }
    std::optional<int64_t> most() const { return most_; }
    void add(const Digit& digit) {
        Affine term;
        term.terms.emplace_back(digit.atom, digit.factor);
        sum_ = sum_ + term;
        const auto own = largest_digit(digit, side_), all = largest(sum_, side_.conditions, known_);
        most_ = most_ && own ? std::optional(*most_ + digit.factor * *own) : std::nullopt;
        if (all) most_ = std::min(most_.value_or(*all), *all);
    }

private:
    const Side& side_;
    const BoundsOverride& known_;
    Affine sum_;
    std::optional<int64_t> most_;
};

/// Whether equal indices have equal digits, and equal rests: each digit begins above what is below it.
bool is_mixed_radix(const Digits& a, const Digits& b, const ConflictQuestion& q) {
    if (a.digits.size() != b.digits.size()) return false;
    Below below(a.rest, q.a, q.known), others(b.rest, q.b, q.known);
    const auto low = below.least(), other_low = others.least();
    if (!low || !other_low || *low < 0 || *other_low < 0) return false;
    for (size_t d = 0; d < a.digits.size(); ++d) {
        if (!below.most() || !others.most()) return false;
        const int64_t reach =
            std::max(*below.most(), *others.most()) - std::min(*low, *other_low) + std::max(q.a.width, q.b.width) - 1;
        const Digit &own = a.digits[d], &other = b.digits[d];
        if (own.factor != other.factor || own.low != other.low || own.modulus != other.modulus || own.factor <= reach)
            return false;
        const bool is_top = own.modulus == 0;
        if (d + 1 == a.digits.size()) return is_top;  // it may be of any size
        if (is_top) return false;                     // whole ones of it may be more than bounds of its digit say
        below.add(own);
        others.add(other);
    }
    return true;
}

}  // namespace

void join_digits(ConflictQuestion& question) {
    if (question.a.indices.size() != 1 || question.b.indices.size() != 1) return;
    const auto a = digits_of(question.a.indices[0]), b = digits_of(question.b.indices[0]);
    if (!a || !b || !is_mixed_radix(*a, *b, question)) return;
    question.a.indices = {a->number, a->rest};
    question.b.indices = {b->number, b->rest};
}

}  // namespace tw::codegen
