#include <algorithm>

#include "codegen/barriers/conflict_question.h"
#include "dsl/simplify.h"

namespace tw::codegen {

Affine scaled(Affine value, int64_t factor) {
    value.offset *= factor;
    for (auto& term : value.terms) term.second *= factor;
    return value;
}

std::optional<int64_t> largest(const Affine& sum, std::span<const Expr> conditions, const BoundsOverride& known) {
    const Expr value = simplify(to_expr(sum));
    std::optional<int64_t> most = bounds_of(value, known).max;
    for (size_t c = 0; c < conditions.size(); ++c) {
        const Binary* node = conditions[c].as<Binary>();
        if (!node || node->op != BinaryOp::Less) continue;
        const Affine below_zero = affine_of(node->a) - affine_of(node->b);
        if (below_zero.terms.empty()) continue;
        const auto& [atom, each] = below_zero.terms[0];
        const auto own = std::ranges::find_if(sum.terms, [&](const auto& term) { return equal(term.first, atom); });
        const int64_t times = own == sum.terms.end() || own->second % each != 0 ? 0 : own->second / each;
        if (times <= 0) continue;
        const auto others = largest(sum - scaled(below_zero, times), conditions.subspan(c + 1), known);
        if (others) most = std::min(most.value_or(*others - times), *others - times);
    }
    const int64_t step = std::max<int64_t>(divisor_of(value), 1);
    return most ? std::optional(*most / step * step) : most;
}

namespace {

/// An index as outer * extent + inner, where inner is one of 0 to extent - 1 whenever the access is made.
struct Separated {
    Affine outer, inner;
};

std::optional<Separated> separated(const Affine& index, int64_t extent, const Side& side, const BoundsOverride& known) {
    Separated found;
    for (const auto& [atom, factor] : index.terms) {
        if (std::abs(factor) < extent)
            found.inner.terms.emplace_back(atom, factor);
        else if (factor % extent == 0)
            found.outer.terms.emplace_back(atom, factor / extent);
        else
            return {};
    }
    found.inner.offset = (index.offset % extent + extent) % extent;
    found.outer.offset = (index.offset - found.inner.offset) / extent;
    const auto least = bounds_of(simplify(to_expr(found.inner)), known).min;
    const auto most = largest(found.inner, side.conditions, known);
    if (!least || *least < 0 || !most || *most + side.width > extent) return {};
    return found;
}

/// Factors of both, the largest first.
std::vector<int64_t> factors_of(const Affine& a, const Affine& b) {
    std::vector<int64_t> factors;
    for (const Affine* index : {&a, &b})
        for (const auto& term : index->terms)
            if (std::abs(term.second) > 1) factors.push_back(std::abs(term.second));
    std::ranges::sort(factors, std::greater());
    factors.erase(std::unique(factors.begin(), factors.end()), factors.end());
    return factors;
}

}  // namespace

bool separate_dimensions(ConflictQuestion& question) {
    Side &a = question.a, &b = question.b;
    const size_t before = a.indices.size();
    if (before != b.indices.size() || before == 0) return false;
    std::vector<Affine> outer_a(a.indices.begin(), a.indices.end() - 1),
        outer_b(b.indices.begin(), b.indices.end() - 1);
    Affine inner_a = a.indices.back(), inner_b = b.indices.back();
    for (const int64_t factor : factors_of(inner_a, inner_b)) {
        const auto own = separated(inner_a, factor, a, question.known),
                   other = separated(inner_b, factor, b, question.known);
        if (!own || !other) continue;
        outer_a.push_back(own->outer), inner_a = own->inner;
        outer_b.push_back(other->outer), inner_b = other->inner;
    }
    outer_a.push_back(inner_a), outer_b.push_back(inner_b);
    a.indices = outer_a, b.indices = outer_b;
    return a.indices.size() > before;
}

}  // namespace tw::codegen
