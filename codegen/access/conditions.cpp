#include "codegen/access/conditions.h"

#include <algorithm>

#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

void collect(const Expr& condition, std::vector<Expr>& parts) {
    const Binary* node = condition.as<Binary>();
    if (node && node->op == BinaryOp::And) {
        collect(node->a, parts);
        collect(node->b, parts);
        return;
    }
    if (prove(condition) == true) return;
    for (const Expr& known : parts)
        if (equal(known, condition)) return;
    parts.push_back(condition);
}

/// The integer s such that the comparison says 0 <= s, if it is of that kind.
std::optional<Affine> slack(const Expr& condition) {
    const Binary* node = condition.as<Binary>();
    if (!node || !is_integer(node->a.type())) return {};
    if (node->op != BinaryOp::Less && node->op != BinaryOp::LessEqual) return {};
    Affine difference = affine_of(node->b) - affine_of(node->a);
    if (node->op == BinaryOp::Less) difference.offset -= 1;
    return difference;
}

/// As slack, of indices alone: what elements of i32 are compared with cannot be added to them.
std::optional<Affine> index_slack(const Expr& condition) {
    auto difference = slack(condition);
    if (!difference) return {};
    const bool of_indices =
        std::ranges::all_of(difference->terms, [](const auto& term) { return term.first.type() == Type::I64; });
    return of_indices ? difference : std::nullopt;
}

bool same_affine(const Affine& a, const Affine& b) {
    Affine difference = a - b;
    return difference.terms.empty() && difference.offset == 0;
}

Affine times(const Affine& value, int64_t factor) {
    Affine result = value;
    result.offset *= factor;
    for (auto& term : result.terms) term.second *= factor;
    return result;
}

/// How often `one` may stand in `all`: a few numbers, and those with which a term of both cancels.
std::vector<int64_t> multiples_to_try(const Affine& all, const Affine& one) {
    constexpr int64_t most = 1024;
    std::vector<int64_t> factors{1, 2, 3, 4, 5, 6, 7, 8, 16};
    for (const auto& [atom, own] : one.terms)
        for (const auto& [other, factor] : all.terms)
            if (factor % own == 0 && factor / own > 0 && factor / own <= most && equal(atom, other))
                factors.push_back(factor / own);
    return factors;
}

}  // namespace

std::vector<Expr> conjuncts_of(const Expr& condition) {
    std::vector<Expr> parts;
    collect(simplify(condition), parts);
    return parts;
}

bool same_condition(const Expr& a, const Expr& b) {
    auto slack_a = slack(a), slack_b = slack(b);
    if (slack_a && slack_b) return same_affine(*slack_a, *slack_b);
    return equal(simplify(a), simplify(b));
}

bool follows_from(const Expr& condition, const Expr& known) {
    auto wanted = slack(condition), given = slack(known);
    if (!wanted || !given) return equal(simplify(condition), simplify(known));
    Affine difference = *wanted - *given;
    return difference.terms.empty() && difference.offset >= 0;
}

bool follows_from_all(const Expr& condition, const std::vector<Expr>& known) {
    const auto wanted = index_slack(condition);
    if (!wanted) return false;
    auto shows = [&](const Affine& given) {
        // Of integers, 0 <= factor * s + factor - 1 says 0 <= s.
        const bool is_multiple = std::ranges::any_of(multiples_to_try(given, *wanted), [&](int64_t factor) {
            const Interval rest = bounds_of(simplify(to_expr(times(*wanted, factor) - given)));
            return rest.min && *rest.min > -factor;
        });
        // Whatever holds of so many times something that is not negative.
        return is_multiple || std::ranges::any_of(multiples_to_try(*wanted, given), [&](int64_t factor) {
                   const Interval rest = bounds_of(simplify(to_expr(*wanted - times(given, factor))));
                   return rest.min && *rest.min >= 0;
               });
    };
    for (size_t a = 0; a < known.size(); ++a) {
        const auto first = index_slack(known[a]);
        if (!first) continue;
        if (shows(*first)) return true;
        for (size_t b = 0; b < a; ++b)
            if (const auto second = index_slack(known[b]); second && shows(*first + *second)) return true;
    }
    return false;
}

std::optional<int64_t> largest_allowed(const Expr& condition, const Expr& variable) {
    auto rest = slack(condition);
    if (!rest || rest->terms.size() != 1 || !rest->terms[0].first.same(variable) || rest->terms[0].second >= 0)
        return {};
    int64_t factor = -rest->terms[0].second;
    return rest->offset < 0 ? -1 : rest->offset / factor;
}

Expr uniform_over(const Expr& condition, const Expr& variable, int64_t width) {
    if (width == 1 || !contains(condition, variable)) return condition;
    auto difference = slack(condition);
    if (!difference) return {};
    auto step = coefficient(*difference, variable);
    if (!step || (*step != 1 && *step != -1)) return {};
    // 0 <= rest - v <=> 0 <= rest for all v < width if rest = -1 modulo the width; 0 <= rest + v if rest = 0.
    Expr rest = simplify(substitute(to_expr(*difference), {{variable, constant(Type::I64, int64_t{0})}}));
    Expr aligned = *step == -1 ? rest + 1 : rest;
    if (divisor_of(simplify(aligned)) % width != 0) return {};
    return simplify(substitute(condition, {{variable, constant(Type::I64, int64_t{0})}}));
}

Expr all_over(const Expr& condition, const Expr& variable, int64_t width) {
    const auto difference = slack(condition);
    const auto step = difference ? coefficient(*difference, variable) : std::nullopt;
    if (!step) return {};
    return simplify(substitute(condition, {{variable, constant(Type::I64, *step < 0 ? width - 1 : 0)}}));
}

}  // namespace tw::codegen
