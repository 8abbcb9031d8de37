// The range of values that an expression takes while some of its variables run, in terms of the others.
#include <algorithm>
#include <numeric>

#include "dsl/deep.h"
#include "dsl/simplifier.h"
#include "dsl/walk.h"

namespace tw {
namespace {

class Spans {
public:
    explicit Spans(const BoundsOverride& ranged) : ranged_(ranged), simplifier_(&ranged) {}

    std::optional<Span> of(const Expr& expr) {
        return with_room_for(expr, [&] { return of_simple(simplifier_.simplify(expr)); });
    }

private:
    std::optional<Span> of_simple(const Expr& expr) {
        if (!runs(expr)) return Span{expr, 1};
        if (!is_linear(expr) && !simplifier_.is_exact(expr)) return of_bounds(expr);
        std::optional<Span> structural =
            is_linear(expr) && !as_binary(expr, BinaryOp::Mul) ? of_sum(expr) : of_atom(expr);
        std::optional<Span> constant = of_bounds(expr);
        if (!structural || (constant && constant->extent < structural->extent)) return constant;
        return structural;
    }

    bool runs(const Expr& expr) {
        if (expr.as<Variable>()) return ranged_.count(expr.id()) != 0;
        auto [known, is_new] = runs_.try_emplace(expr.id(), std::pair(expr, false));
        if (!is_new) return known->second.second;
        bool result = false;
        for_each_child(*expr, [&](const Expr& kid) { result = result || runs(kid); });
        return runs_[expr.id()].second = result;
    }

    /// A span of constants.
    std::optional<Span> of_bounds(const Expr& expr) {
        Interval bounds = simplifier_.bounds(expr);
        if (!bounds.min || !bounds.max) return {};
        int64_t last = checked_add(*bounds.max, checked_mul(*bounds.min, -1));
        return Span{constant(expr.type(), *bounds.min), checked_add(last, 1)};
    }

    std::optional<Span> of_sum(const Expr& expr) {
        Affine lo;
        int64_t last = 0;  // the distance of the largest value from lo
        Affine sum = decompose(expr);
        lo.offset = sum.offset;
        for (const auto& [atom, coefficient] : sum.terms) {
            auto term = of_simple(atom);
            if (!term) return {};
            int64_t reach = checked_mul(coefficient, term->extent - 1);
            add_scaled(lo, decompose(term->lo), coefficient);
            if (coefficient < 0) lo.offset = checked_add(lo.offset, reach);
            last = checked_add(last, std::abs(reach));
        }
        return Span{simple(lo, expr.type()), checked_add(last, 1)};
    }

    std::optional<Span> of_atom(const Expr& expr) {
        if (auto* select = expr.as<Select>()) return of_select(*select);
        if (auto* cast = expr.as<Cast>()) return of_cast(*cast, expr.type());
        auto* node = expr.as<Binary>();
        if (!node) return {};
        switch (node->op) {
            case BinaryOp::Mul: return of_product(expr);
            case BinaryOp::Div: return of_quotient(*node);
            case BinaryOp::Mod: return of_remainder(*node);
            case BinaryOp::Min:
            case BinaryOp::Max: return of_min_or_max(*node);
            default: return {};
        }
    }

    /// lo..lo + last of one factor, times fixed factors that are not negative and bounded.
    std::optional<Span> of_product(const Expr& expr) {
        std::vector<Expr> factors = factors_of(expr), fixed;
        std::copy_if(factors.begin(), factors.end(), std::back_inserter(fixed),
                     [&](const Expr& f) { return !runs(f); });
        if (fixed.size() + 1 != factors.size()) return {};
        auto running = std::find_if(factors.begin(), factors.end(), [&](const Expr& f) { return runs(f); });
        auto span = of_simple(*running);
        Interval scale = simplifier_.bounds(product_of(fixed));
        if (!span || !scale.max || !scale.min || *scale.min < 0) return {};
        fixed.push_back(span->lo);
        int64_t last = checked_mul(span->extent - 1, *scale.max);
        return Span{simplifier_.simplify(product_of(fixed)), checked_add(last, 1)};
    }

    /// The largest remainder that lo can have.
    int64_t largest_remainder(const Expr& lo, int64_t divisor) {
        Affine form = decompose(lo);
        int64_t step = divisor;  // the terms are multiples of it
        for (const auto& [atom, coefficient] : form.terms)
            step = std::gcd(step, checked_mul(coefficient, divisor_of(atom)));
        return divisor - step + floor_mod(form.offset, step);
    }

    std::optional<Span> of_quotient(const Binary& node) {
        auto divisor = as_constant(node.b);
        auto span = of_simple(node.a);
        if (!span || !divisor || *divisor <= 0) return {};
        int64_t last = checked_add(largest_remainder(span->lo, *divisor), span->extent - 1);
        return Span{simplifier_.simplify(binary(BinaryOp::Div, span->lo, node.b)), last / *divisor + 1};
    }

    std::optional<Span> of_remainder(const Binary& node) {
        auto divisor = as_constant(node.b);
        auto span = of_simple(node.a);
        if (!span || !divisor || *divisor <= 0) return {};
        if (checked_add(largest_remainder(span->lo, *divisor), span->extent - 1) >= *divisor) return {};
        return Span{simplifier_.simplify(binary(BinaryOp::Mod, span->lo, node.b)), span->extent};
    }

    std::optional<Span> of_min_or_max(const Binary& node) {
        auto a = of_simple(node.a), b = of_simple(node.b);
        if (!a || !b) return {};
        return Span{simplifier_.simplify(binary(node.op, a->lo, b->lo)), std::max(a->extent, b->extent)};
    }

    std::optional<Span> of_select(const Select& node) {
        auto yes = of_simple(node.yes), no = of_simple(node.no);
        if (!yes || !no) return {};
        if (runs(node.condition)) return unite(*yes, *no);
        Expr lo = simplifier_.simplify(select_unchecked(node.condition, yes->lo, no->lo));
        return Span{lo, std::max(yes->extent, no->extent)};
    }

    std::optional<Span> of_cast(const Cast& node, Type type) {
        if (!is_index(type) || !is_index(node.a.type())) return {};
        if (!simplifier_.is_within(node.a, type)) return {};
        auto span = of_simple(node.a);
        if (span) span->lo = simplifier_.simplify(cast_unchecked(type, span->lo));
        return span;
    }

    Expr simple(Affine& affine, Type type) {
        sort_terms(affine);
        return simplifier_.simplify(to_expr(affine, type));
    }

    const BoundsOverride& ranged_;
    Simplifier simplifier_;
    std::unordered_map<const ExprNode*, std::pair<Expr, bool>> runs_;
};

}  // namespace

std::optional<Span> span_of(const Expr& expr, const BoundsOverride& ranged) {
    try {
        return Spans(ranged).of(expr);
    } catch (const Overflow&) {
        return {};
    }
}

std::optional<Span> unite(const Span& a, const Span& b) {
    try {
        Simplifier simplifier;
        Affine distance = simplifier.linear(binary(BinaryOp::Sub, b.lo, a.lo));
        auto most = simplifier.upper(distance), least = simplifier.lower(distance);
        if (!most || !least) return {};
        int64_t with_a_first = checked_add(b.extent, std::max<int64_t>(*most, 0));
        int64_t with_b_first = checked_add(a.extent, std::max<int64_t>(checked_mul(*least, -1), 0));
        Expr lo = simplifier.simplify(binary(BinaryOp::Min, a.lo, b.lo));
        return Span{lo, std::max(with_a_first, with_b_first)};
    } catch (const Overflow&) {
        return {};
    }
}

}  // namespace tw
