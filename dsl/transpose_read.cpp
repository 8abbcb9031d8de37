// From "point (i, k) reads element f(i, k)" to "element t is read by the points that solve f(i, k) = t".
#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string>

#include "dsl/adjoints.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {
namespace {

const Expr& extent_of(const Expr& variable) { return variable.as<Variable>()->extent; }
/// A reduce axis in the place of a loop: `i`, which names a dimension of the result, becomes `ri`.
Expr fresh(const Expr& like, const Expr& extent) {
    const std::string& name = like.as<Variable>()->name;
    bool names_dimension = name.size() == 1 && std::string("ijpquv").find(name) != std::string::npos;
    return reduce_axis(names_dimension ? "r" + name : name, extent).variable;
}

/// Reads below a condition that keeps them inside.
Expr guard_reads(const Expr& expr) {
    return transform(expr, [](const Expr& e) -> Expr {
        auto* read = e.as<Read>();
        if (!read || read->guarded) return {};
        Read guarded = *read;
        guarded.guarded = true;
        return make_expr(e.type(), std::move(guarded));
    });
}

void collect_parts(const Expr& condition, std::vector<Expr>& parts) {
    auto* both = condition.as<Binary>();
    if (!both || both->op != BinaryOp::And) return parts.push_back(condition);
    collect_parts(both->a, parts);
    collect_parts(both->b, parts);
}

/// The variable that the condition allows a single value, and that value; undefined if it is no such condition.
std::pair<Expr, Expr> point_of(const Expr& condition, const std::vector<Expr>& variables) {
    auto* node = condition.as<Binary>();
    if (!node || node->op != BinaryOp::Equal || !is_integer(node->a.type())) return {};
    Affine difference = affine_of(node->a) - affine_of(node->b);
    for (const Expr& variable : variables) {
        int64_t factor = coefficient(difference, variable).value_or(0);
        if (factor != 1 && factor != -1) continue;
        Expr rest = to_expr(difference) - factor * variable;
        return {variable, simplify(factor == 1 ? -rest : rest)};
    }
    return {};
}

/// The points that meet the target: loop variables as expressions of the target's and of the free ones.
class Solution {
public:
    Solution(const Expr& read, const std::vector<Expr>& loops, const std::vector<Expr>& target) {
        for (const Expr& loop : loops) {
            free_.push_back(fresh(loop, extent_of(loop)));
            solved_.emplace_back(loop, free_.back());
        }
        const std::vector<Expr>& indices = read.as<Read>()->indices;
        for (const Expr& index : indices) split_divided(index);
        std::vector<size_t> open;
        for (size_t d = 0; d < indices.size(); ++d)
            if (!solve(apply(indices[d]), target[d])) open.push_back(d);
        for (size_t d : open) require(apply(indices[d]) == target[d]);  // gathers, diagonals
    }

    Expr apply(const Expr& expr) const { return simplify(substitute(expr, solved_)); }
    /// Sums over what is left free, where the conditions hold.
    Expr sum_of(const Expr& adjoint) const;

private:
    /// v / c and v % c become variables of their own, v = q * c + r.
    void split_divided(const Expr& index) {
        std::vector<std::pair<Expr, int64_t>> found;
        visit(apply(index), [&](const Expr& e) {
            auto* node = e.as<Binary>();
            if (!node || (node->op != BinaryOp::Div && node->op != BinaryOp::Mod)) return;
            int64_t divisor = as_constant(node->b).value_or(0);
            if (divisor > 1 && is_free(node->a)) found.emplace_back(node->a, divisor);
        });
        if (found.empty()) return;
        auto [variable, divisor] = found[0];
        Expr extent = extent_of(variable);
        Expr outer = fresh(variable, simplify((extent + (divisor - 1)) / divisor));
        Expr inner = fresh(variable, integer(divisor));
        eliminate(variable, outer * divisor + inner);
        require(outer * divisor + inner < extent);
        free_.push_back(outer);
        free_.push_back(inner);
        split_divided(index);
    }

    bool is_free(const Expr& e) const {
        return std::any_of(free_.begin(), free_.end(), [&](const Expr& v) { return v.same(e); });
    }

    /// Solves index = target for the largest free variable that stands there affinely; false if there is none.
    bool solve(const Expr& index, const Expr& target) {
        Affine affine = affine_of(index);
        Expr best;
        for (const Expr& variable : free_) {
            int64_t factor = coefficient(affine, variable).value_or(0);
            if (factor != 0 && (!best.defined() || is_larger(variable, best))) best = variable;
        }
        if (!best.defined()) return false;
        int64_t factor = *coefficient(affine, best);
        Expr rest = simplify(substitute(index, {{best, integer(0)}}));
        Expr distance = simplify(factor > 0 ? target - rest : rest - target);
        factor = std::abs(factor);
        if (factor != 1) {
            const Expr strided = with_stride(distance, factor, best);
            if (strided.defined())
                distance = strided;
            else
                require(distance % factor == 0);
        }
        Expr value = simplify(distance / factor);
        Expr extent = extent_of(best);
        eliminate(best, value);
        auto* same = value.as<Variable>();
        if (same && same->extent.defined() && equal(same->extent, extent)) return true;
        require(value >= 0);
        require(value < extent);
        return true;
    }

    /// The distance is a multiple of the factor for one value in so many of a free variable: v = v' factor + phase,
    /// a loop as short as the target's place says (the taps of a strided convolution's phase). The distance over v', or
    /// undefined if there is no such variable.
    Expr with_stride(const Expr& distance, int64_t factor, const Expr& solved) {
        const Affine affine = affine_of(distance);
        for (Expr& variable : free_) {
            if (variable.same(solved) || mentions_index(extent_of(variable))) continue;
            const int64_t step = coefficient(affine, variable).value_or(0);
            const Expr rest = simplify(substitute(distance, {{variable, integer(0)}}));
            const bool depends = std::ranges::any_of(free_, [&](const Expr& v) { return contains(rest, v); });
            if (step == 0 || std::gcd(step, factor) != 1 || depends) continue;
            int64_t opposite = 1;  // step * opposite = -1 modulo the factor
            while ((step * opposite + 1) % factor != 0) ++opposite;
            const Expr phase = simplify(rest * opposite % factor), before = variable;
            const Expr shorter = fresh(before, simplify((extent_of(before) - phase + (factor - 1)) / factor));
            const Expr value = simplify(shorter * factor + phase);
            const Substitution replaced{{before, value}};
            for (auto& [from, to] : solved_) to = simplify(substitute(to, replaced));
            for (Expr& condition : conditions_) condition = simplify(substitute(condition, replaced));
            variable = shorter;
            return simplify(substitute(distance, replaced));
        }
        return {};
    }

    static bool is_larger(const Expr& a, const Expr& b) {
        auto x = bounds_of(extent_of(a)).max, y = bounds_of(extent_of(b)).max;
        return y && (!x || *x > *y);
    }

    void require(const Expr& condition) {
        Expr simple = simplify(condition);
        if (!is_constant(simple, 1) && prove(simple) != true) conditions_.push_back(simple);
    }

    void eliminate(const Expr& variable, const Expr& value) {
        Substitution step{{variable, value}};
        for (auto& [from, to] : solved_) to = simplify(substitute(to, step));
        for (Expr& condition : conditions_) condition = simplify(substitute(condition, step));
        free_.erase(std::find_if(free_.begin(), free_.end(), [&](const Expr& v) { return v.same(variable); }));
    }

    std::vector<Expr> free_;
    Substitution solved_;  // loop variable -> its value
    std::vector<Expr> conditions_;
};

/// sum_t select(t == e, f(t), 0) = f(e), where e is one of the t: what was scattered is gathered.
Expr take_points(const Expr& value, std::vector<Expr>& free) {
    std::vector<Expr> conditions;
    Expr term = value;
    for (auto* guard = term.as<Select>(); guard && is_zero(guard->no); guard = term.as<Select>()) {
        collect_parts(guard->condition, conditions);
        term = Expr(guard->yes);
    }
    bool found = false;
    for (size_t c = 0; c < conditions.size(); ++c) {
        auto [variable, point] = point_of(conditions[c], free);
        if (!variable.defined()) continue;
        found = true;
        Substitution at{{variable, point}};
        for (Expr& condition : conditions) condition = simplify(substitute(condition, at));
        term = simplify(substitute(term, at));
        conditions[c] = simplify(point >= 0 && point < extent_of(variable));
        std::erase_if(free, [&](const Expr& v) { return v.same(variable); });
    }
    if (!found) return value;
    return where_true(simplify(all_of(conditions)), guard_reads(term));
}

Expr Solution::sum_of(const Expr& adjoint) const {
    Expr value = adjoint;
    std::vector<Expr> conditions;
    for (const Expr& condition : conditions_)
        if (!is_constant(simplify(condition), 1)) conditions.push_back(simplify(condition));
    if (!conditions.empty()) {
        Expr all = conditions[0];
        for (size_t c = 1; c < conditions.size(); ++c) all = all && guard_reads(conditions[c]);
        value = where_true(all, guard_reads(value));
    }
    std::vector<Expr> free = free_;
    value = take_points(simplify(value), free);
    std::vector<Axis> axes;
    Expr repeats = integer(1);
    for (const Expr& variable : free) {
        if (!contains(value, variable)) {
            repeats = repeats * extent_of(variable);
            continue;
        }
        Axis& axis = axes.emplace_back();
        axis.variable = variable;
        axis.extent = extent_of(variable);
    }
    if (!is_constant(simplify(repeats), 1)) value = value * cast(value.type(), simplify(repeats));
    return axes.empty() ? value : sum(value, axes);
}

}  // namespace

Expr transpose_read(const ReadAdjoint& part, const std::vector<Expr>& loops, const std::vector<Expr>& target) {
    Solution solution(part.read, loops, target);
    return solution.sum_of(solution.apply(part.adjoint));
}

}  // namespace tw
