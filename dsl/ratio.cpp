#include "dsl/ratio.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include <fmt/format.h>

#include "dsl/signs.h"
#include "dsl/simplify.h"
#include "dsl/tensor.h"

namespace tw {
namespace {

using Kind = Correction::Kind;

/// A factor or a difference: of an accumulator whose own is not known yet, of an expression, or none if undefined.
struct Change {
    Expr by = {};
    int unknown = -1;
};

/// In a type that can be calculated with: what is stored as bf16 is corrected before it is rounded.
Expr computed(const Expr& a) {
    return unit_roundoff(a.type()) > unit_roundoff(Type::F32) ? cast_unchecked(Type::F32, a) : a;
}
Expr as_wide(const Expr& a, const Expr& b) {
    return unit_roundoff(a.type()) > unit_roundoff(b.type()) ? cast_unchecked(b.type(), a) : a;
}

// Arithmetic on what may be undefined: 1 of factors, 0 of differences.
Expr times(const Expr& a, const Expr& b) { return !a.defined() ? b : !b.defined() ? a : as_wide(a, b) * as_wide(b, a); }
Expr negated(const Expr& a) {
    if (!a.defined()) return a;
    if (auto two = a.as<Binary>(); two && two->op == BinaryOp::Sub) return two->b - two->a;
    if (auto two = a.as<Binary>(); two && two->op == BinaryOp::Mul) return negated(two->a) * two->b;
    return -a;
}
Expr plus(const Expr& a, const Expr& b) { return !a.defined() ? b : !b.defined() ? a : as_wide(a, b) + as_wide(b, a); }

/// Tries one kind of correction on all accumulators together.
class Rules {
public:
    /// `unknown`: accumulators whose corrections are looked for, or are `known`, one each.
    Rules(Kind kind, const std::vector<Expr>& unknown, const Changing& changing,
          std::vector<std::optional<Expr>> known = {})
        : kind_(kind), unknown_(unknown), changing_(changing), known_(std::move(known)) {
        known_.resize(unknown_.size());
    }

    /// Whether the results change as the accumulators in front of them do.
    bool hold(const std::vector<Expr>& results) {
        for (size_t c = 0; c < results.size(); ++c) {
            auto change = kind_ == Kind::Scale ? scale(results[c]) : shift(results[c]);
            if (!change) return false;
            if (!agree(*change, Change{{}, static_cast<int>(c)}))
                return refuse(results[c], "changes otherwise than the accumulator");
        }
        return true;
    }

    Correction correction(size_t c) const {
        const Expr by = known_[c].value_or(Expr());
        return by.defined() ? Correction{kind_, simplify(by)} : Correction{};
    }
    const std::vector<Invertible>& inverted() const { return inverted_; }
    bool rounds() const { return rounds_; }
    const std::string& reason() const { return reason_; }

private:
    bool touched(const Expr& expr) {
        auto [place, is_new] = touched_.try_emplace(expr.id(), false);
        if (!is_new) return place->second;
        bool found = accumulator(expr) >= 0;
        for (const auto& [before, now] : changing_.later) found = found || before.same(expr);
        for (const Expr& kid : children(expr)) found = touched(kid) || found;
        return touched_[expr.id()] = found;
    }
    int accumulator(const Expr& expr) const {
        auto found = std::ranges::find_if(unknown_, [&](const Expr& a) { return a.same(expr); });
        return found == unknown_.end() ? -1 : static_cast<int>(found - unknown_.begin());
    }
    /// Whether it is the same for all terms, so that a ratio may hold it.
    bool is_common(const Expr& expr) const {
        auto stands_in = [&](const Expr& v) { return contains(expr, v); };
        return std::ranges::none_of(changing_.differs, stands_in) && std::ranges::none_of(unknown_, stands_in);
    }
    bool refuse(const Expr& expr, const std::string& why) {
        if (reason_.empty()) reason_ = fmt::format("'{}' {}", to_string(expr), why);
        return false;
    }
    std::nullopt_t fail(const Expr& expr, const std::string& why) {
        refuse(expr, why);
        return std::nullopt;
    }

    Expr value(const Change& change) const {
        return change.unknown >= 0 ? known_[change.unknown].value_or(Expr()) : change.by;
    }
    bool is_open(const Change& change) const { return change.unknown >= 0 && !known_[change.unknown]; }
    bool is_none(const Change& change) const { return !is_open(change) && !value(change).defined(); }

    /// Whether both are one; what is open becomes so.
    bool agree(const Change& a, const Change& b) {
        if (is_open(a) && is_open(b)) return a.unknown == b.unknown;
        if (is_open(a)) known_[a.unknown] = value(b);
        if (is_open(b)) known_[b.unknown] = value(a);
        const Expr x = value(a), y = value(b);
        if (!x.defined() || !y.defined()) return x.defined() == y.defined();
        return equal(simplify(as_wide(x, y)), simplify(as_wide(y, x)));
    }

    std::optional<Change> both(const Expr& expr, const std::optional<Change>& a, const std::optional<Change>& b) {
        if (!a || !b) return {};
        if (!agree(*a, *b)) return fail(expr, "has two parts that do not change alike");
        return is_open(*a) ? *b : *a;
    }

    /// f(now) / f(before) of what all terms have in common.
    std::optional<Change> scale_alone(const Expr& expr) {
        if (!is_common(expr) || !is_of_one_value(expr)) return {};
        inverted_.push_back({computed(expr), true});
        return Change{computed(later(expr)) / computed(expr)};
    }
    std::optional<Change> shift_alone(const Expr& expr) {
        if (!is_common(expr) || !is_of_one_value(expr)) return {};
        if (!expr.as<Variable>()) inverted_.push_back({computed(expr), false});
        return Change{computed(later(expr)) - computed(expr)};
    }
    /// Integers have no exact quotient, and their identities no infinity that a shift leaves as it is.
    bool is_of_one_value(const Expr& expr) const {
        if (!is_float(expr.type())) return false;
        auto stands_in = [&](const auto& change) { return contains(expr, change.first); };
        return std::ranges::count_if(changing_.later, stands_in) == 1;
    }
    Expr later(const Expr& expr) const { return simplify(substitute(expr, changing_.later)); }

    std::optional<Change> scale(const Expr& expr) {
        if (!touched(expr)) return Change{};
        if (int c = accumulator(expr); c >= 0) {
            if (kind_ == Kind::Scale || (known_[c] && !known_[c]->defined())) return Change{{}, c};
            return fail(expr, "is shifted, not scaled");
        }
        const std::string before = reason_;
        const size_t inverted = inverted_.size();
        std::optional<Change> found = std::visit([&](const auto& node) { return scale_of(expr, node); }, (*expr).kind);
        if (found) return found;
        inverted_.resize(inverted);
        auto alone = scale_alone(expr);
        if (alone) reason_ = before;
        if (!alone) refuse(expr, "has no factor that changes alone");
        return alone;
    }
    std::optional<Change> shift(const Expr& expr) {
        if (!touched(expr)) return Change{};
        if (int c = accumulator(expr); c >= 0) {
            if (kind_ == Kind::Shift || (known_[c] && !known_[c]->defined())) return Change{{}, c};
            return fail(expr, "is scaled, not shifted");
        }
        const std::string before = reason_;
        const size_t inverted = inverted_.size();
        std::optional<Change> found = std::visit([&](const auto& node) { return shift_of(expr, node); }, (*expr).kind);
        if (found) return found;
        inverted_.resize(inverted);
        auto alone = shift_alone(expr);
        if (alone) reason_ = before;
        if (!alone) refuse(expr, "has no summand that changes alone");
        return alone;
    }

    std::optional<Change> product(const Expr& expr, const std::optional<Change>& a, const std::optional<Change>& b) {
        if (!a || !b) return {};
        if (is_none(*b)) return a;
        if (is_none(*a)) return b;
        if (is_open(*a) || is_open(*b)) return fail(expr, "multiplies what has been reduced");
        return Change{times(value(*a), value(*b))};
    }
    /// Both sides keep their order, and with it which one is chosen.
    std::optional<Change> chosen(const Expr& expr, const std::optional<Change>& found) {
        if (!found || is_none(*found) || is_open(*found) || is_positive(value(*found))) return found;
        return fail(expr, "changes its order if a factor is negative");
    }

    template <class Node>
    std::optional<Change> scale_of(const Expr&, const Node&) {
        return {};
    }
    std::optional<Change> scale_of(const Expr& expr, const Unary& node) {
        if (node.op == UnaryOp::Exp || node.op == UnaryOp::Exp2) {
            auto inside = shift(node.a);
            if (!inside) return {};
            if (is_open(*inside)) return fail(expr, "is no linear function of what has been reduced");
            return value(*inside).defined() ? Change{unary(node.op, value(*inside))} : Change{};
        }
        const bool roots = node.op == UnaryOp::Sqrt || node.op == UnaryOp::Rsqrt;
        if (node.op != UnaryOp::Negate && node.op != UnaryOp::Abs && !roots) return {};
        auto inside = scale(node.a);
        if (!inside || node.op == UnaryOp::Negate || is_none(*inside)) return inside;
        if (is_open(*inside)) return fail(expr, "is no linear function of what has been reduced");
        if (is_positive(value(*inside)))
            return node.op == UnaryOp::Abs ? inside : Change{unary(node.op, value(*inside))};
        return node.op == UnaryOp::Abs ? Change{abs(value(*inside))} : std::optional<Change>();
    }
    std::optional<Change> scale_of(const Expr& expr, const Binary& node) {
        switch (node.op) {
            case BinaryOp::Mul: return product(expr, scale(node.a), scale(node.b));
            case BinaryOp::Div: {
                auto over = scale(node.b), of = scale(node.a);
                if (!of || !over || is_none(*over)) return over ? of : over;
                if (is_open(*of) || is_open(*over)) return fail(expr, "divides by what changes");
                Expr above = value(*of);
                const Expr below = value(*over);
                return Change{above.defined() ? as_wide(above, below) / as_wide(below, above)
                                              : constant(below.type(), 1.0) / below};
            }
            case BinaryOp::Add:
            case BinaryOp::Sub: return both(expr, scale(node.a), scale(node.b));
            case BinaryOp::Min:
            case BinaryOp::Max: return chosen(expr, both(expr, scale(node.a), scale(node.b)));
            default: return {};
        }
    }
    std::optional<Change> scale_of(const Expr& expr, const Fma& node) {
        return both(expr, product(expr, scale(node.a), scale(node.b)), scale(node.c));
    }
    std::optional<Change> scale_of(const Expr& expr, const Select& node) {
        if (!is_invariant(node.condition)) return {};
        if (is_zero(node.yes)) return scale(node.no);
        if (is_zero(node.no)) return scale(node.yes);
        return both(expr, scale(node.yes), scale(node.no));
    }
    std::optional<Change> scale_of(const Expr& expr, const Cast& node) {
        return converted(expr, node, [&] { return scale(node.a); });
    }

    template <class Node>
    std::optional<Change> shift_of(const Expr&, const Node&) {
        return {};
    }
    std::optional<Change> shift_of(const Expr& expr, const Unary& node) {
        if (node.op == UnaryOp::Negate) {
            auto inside = shift(node.a);
            if (!inside || is_none(*inside)) return inside;
            if (is_open(*inside)) return fail(expr, "is no linear function of what has been reduced");
            return Change{negated(value(*inside))};
        }
        if (node.op != UnaryOp::Log && node.op != UnaryOp::Log2) return {};
        auto inside = scale(node.a);
        if (!inside || is_none(*inside)) return inside;
        if (is_open(*inside) || !is_positive(value(*inside))) return {};
        return Change{unary(node.op, value(*inside))};
    }
    std::optional<Change> summed(const Expr& expr, const std::optional<Change>& a, std::optional<Change> b,
                                 bool minus) {
        if (!a || !b) return {};
        if (is_none(*b)) return a;
        if (is_none(*a) && !minus) return b;
        if (is_open(*a) || is_open(*b)) return fail(expr, "is no linear function of what has been reduced");
        const Expr right = minus ? negated(value(*b)) : value(*b);
        if (minus && value(*a).defined() && agree(*a, *b)) return Change{};
        return Change{plus(value(*a), right)};
    }
    /// Times what neither changes nor differs from term to term.
    std::optional<Change> shift_of_product(const Expr& a, const Expr& b) {
        if (!touched(a) && is_common(a)) return shift_of_product(b, a);
        if (touched(b) || !is_common(b)) return {};
        auto inside = shift(a);
        if (!inside || is_none(*inside)) return inside;
        if (is_open(*inside)) return {};
        return Change{times(value(*inside), computed(b))};
    }
    std::optional<Change> shift_of(const Expr& expr, const Binary& node) {
        switch (node.op) {
            case BinaryOp::Add: return summed(expr, shift(node.a), shift(node.b), false);
            case BinaryOp::Sub: return summed(expr, shift(node.a), shift(node.b), true);
            case BinaryOp::Mul:
                return touched(node.a) && touched(node.b) ? std::optional<Change>() : shift_of_product(node.a, node.b);
            case BinaryOp::Div: {
                if (touched(node.b) || !is_common(node.b)) return {};
                auto inside = shift(node.a);
                if (!inside || is_none(*inside)) return inside;
                if (is_open(*inside)) return {};
                return Change{as_wide(value(*inside), computed(node.b)) / as_wide(computed(node.b), value(*inside))};
            }
            case BinaryOp::Min:
            case BinaryOp::Max: return both(expr, shift(node.a), shift(node.b));
            default: return {};
        }
    }
    std::optional<Change> shift_of(const Expr& expr, const Fma& node) {
        const Expr a = node.a, b = node.b;
        auto of_product = [&]() -> std::optional<Change> {
            if (!touched(a) && !touched(b)) return Change{};
            if (touched(a) && touched(b)) return shift_alone(a * b);
            auto found = shift_of_product(a, b);
            return found ? found : shift_alone(a * b);
        };
        return summed(expr, of_product(), shift(node.c), false);
    }
    std::optional<Change> shift_of(const Expr& expr, const Select& node) {
        if (!is_invariant(node.condition)) return {};
        if (is_infinite(node.yes)) return shift(node.no);
        if (is_infinite(node.no)) return shift(node.yes);
        return both(expr, shift(node.yes), shift(node.no));
    }
    std::optional<Change> shift_of(const Expr& expr, const Cast& node) {
        return converted(expr, node, [&] { return shift(node.a); });
    }

    template <class Find>
    std::optional<Change> converted(const Expr& expr, const Cast& node, Find&& find) {
        if (!is_float(expr.type()) || !is_float(node.a.type())) return {};
        auto inside = find();
        if (!inside || is_none(*inside)) return inside;
        rounds_ = rounds_ || unit_roundoff(expr.type()) > unit_roundoff(node.a.type());
        if (is_open(*inside)) return fail(expr, "converts what has been reduced");
        return inside;  // what is narrow for the terms need not be for their ratio
    }

    /// Whether the condition stays true or false.
    bool is_invariant(const Expr& condition) {
        if (!touched(condition)) return true;
        if (auto one = condition.as<Unary>(); one && one->op == UnaryOp::Not) return is_invariant(one->a);
        auto two = condition.as<Binary>();
        if (!two) return refuse(condition, "may change");
        if (two->op == BinaryOp::And || two->op == BinaryOp::Or) return is_invariant(two->a) && is_invariant(two->b);
        auto found = kind_ == Kind::Shift ? both(condition, shift(two->a), shift(two->b))
                                          : chosen(condition, both(condition, scale(two->a), scale(two->b)));
        return found || refuse(condition, "may change");
    }

    Kind kind_;
    std::vector<Expr> unknown_;
    const Changing& changing_;
    std::vector<std::optional<Expr>> known_;  // an undefined expression: no correction
    std::unordered_map<const ExprNode*, bool> touched_;
    std::vector<Invertible> inverted_;
    bool rounds_ = false;
    std::string reason_;
};

/// Whether the identity, corrected, is the identity.
bool is_absorbing(const Correction& correction, const Expr& identity) {
    if (correction.kind == Kind::None || is_infinite(identity)) return true;
    return correction.kind == Kind::Scale && is_zero(identity);
}

/// Whether parts that are both corrected combine to the whole, corrected.
bool distributes(Kind kind, const std::vector<Correction>& corrections, const ReducerNode& reducer,
                 std::string& reason) {
    for (size_t c = 0; c < corrections.size(); ++c)
        if (!is_absorbing(corrections[c], reducer.identity[c])) {
            reason = fmt::format("the identity of the reducer '{}' would be corrected, too", reducer.name);
            return false;
        }
    std::vector<Expr> operands = reducer.left;
    operands.insert(operands.end(), reducer.right.begin(), reducer.right.end());
    std::vector<std::optional<Expr>> known;
    for (int side = 0; side < 2; ++side)
        for (const Correction& correction : corrections) known.push_back(correction.by);
    const Changing nothing;
    Rules rules(kind, operands, nothing, known);
    if (rules.hold(reducer.combined)) return true;
    if (reason.empty())
        reason =
            fmt::format("the correction does not distribute over the reducer '{}': {}", reducer.name, rules.reason());
    return false;
}

}  // namespace

Law law_of(const std::vector<Expr>& update, const std::vector<Expr>& accumulators, const ReducerNode& reducer,
           const Changing& changing) {
    Law law;
    for (Kind kind : {Kind::Scale, Kind::Shift}) {
        Rules rules(kind, accumulators, changing);
        if (rules.hold(update)) {
            std::vector<Correction> corrections;
            for (size_t c = 0; c < update.size(); ++c) corrections.push_back(rules.correction(c));
            if (distributes(kind, corrections, reducer, law.reason))
                return {corrections, rules.inverted(), rules.rounds(), ""};
        } else if (law.reason.empty()) {
            law.reason = rules.reason();
        }
    }
    return law;
}

}  // namespace tw
