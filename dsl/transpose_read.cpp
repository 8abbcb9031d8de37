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
        const auto [digit, is_whole] = leading_digit(index, affine);
        if (digit.defined() && (is_whole || !digit.same(best)))
            return solve_digits(index, digit, *coefficient(affine, digit), target);
        Expr rest = simplify(substitute(index, {{best, integer(0)}}));
        Expr distance = simplify(factor > 0 ? target - rest : rest - target);
        factor = std::abs(factor);
        if (factor != 1) {
            const Expr strided = with_stride(distance, factor, best);
            if (digit.defined() && !strided.defined()) return solve_digits(index, digit, factor, target);
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

    struct Digit {
        Expr variable = {};
        bool is_whole = false;  ///< the rest takes all values below the factor, not only some
    };
    /// The free variable of index = variable * factor + rest whose rest has free variables, too, and takes no more
    /// values than the factor: a digit in front of others. Undefined if there is none.
    Digit leading_digit(const Expr& index, const Affine& affine) const {
        for (const Expr& variable : free_) {
            const int64_t factor = coefficient(affine, variable).value_or(0);
            if (factor < 2) continue;
            const Expr rest = simplify(substitute(index, {{variable, integer(0)}}));
            const Interval bounds = bounds_of(rest);
            const bool goes_on = std::ranges::any_of(free_, [&](const Expr& v) { return contains(rest, v); });
            if (goes_on && bounds.min && bounds.max && *bounds.max - *bounds.min < factor)
                return {variable, *bounds.max - *bounds.min == factor - 1};
        }
        return {};
    }

    /// index = digit * factor + rest: quotient and remainder of the target, so that no loop remains (channels of a
    /// group, elements of a tile).
    bool solve_digits(const Expr& index, const Expr& digit, int64_t factor, const Expr& target) {
        const Expr rest = simplify(substitute(index, {{digit, integer(0)}}));
        const int64_t least = *bounds_of(rest).min;
        const Expr distance = simplify(target - least), value = simplify(distance / factor), extent = extent_of(digit);
        eliminate(digit, value);
        require(value >= 0);
        require(value < extent);
        const Expr inner = simplify(rest - least), left = simplify(distance % factor);
        if (!solve(inner, left)) require(inner == left);
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

/// Loops that conditions with constants allow a part of become as short as that.
Expr shorten_loops(const Expr& value, std::vector<Expr>& free) {
    std::vector<Expr> conditions;
    Expr term = value;
    for (auto* guard = term.as<Select>(); guard && is_zero(guard->no); guard = term.as<Select>()) {
        collect_parts(guard->condition, conditions);
        term = Expr(guard->yes);
    }
    Substitution shorter;
    std::vector<Expr> left;
    for (const Expr& variable : free) {
        left.push_back(variable);
        const auto extent = as_constant(extent_of(variable));
        int64_t low = 0, high = extent.value_or(0);
        for (const Expr& condition : conditions) {
            auto* node = condition.as<Binary>();
            const bool orders = node && (node->op == BinaryOp::Less || node->op == BinaryOp::LessEqual);
            if (!extent || !orders || !is_integer(node->a.type())) continue;
            const Affine less = affine_of(node->a) - affine_of(node->b);  // below 1, or below 0
            const int64_t most = node->op == BinaryOp::Less ? -1 : 0, factor = coefficient(less, variable).value_or(0);
            if (less.terms.size() != 1) continue;
            if (factor == 1) high = std::min(high, most - less.offset + 1);
            if (factor == -1) low = std::max(low, less.offset - most);
        }
        if (low == 0 && high == extent.value_or(0)) continue;
        left.pop_back();
        if (high - low != 1) left.push_back(fresh(variable, integer(std::max<int64_t>(high - low, 0))));
        shorter.emplace_back(variable, high - low == 1 ? integer(low) : simplify(left.back() + low));
    }
    if (shorter.empty()) return value;
    free = left;
    for (Expr& condition : conditions) condition = simplify(substitute(condition, shorter));
    const Expr all = simplify(all_of(conditions)), shortened = simplify(substitute(term, shorter));
    return is_constant(all, 1) ? shortened : where_true(all, guard_reads(shortened));
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
    value = shorten_loops(take_points(simplify(value), free), free);
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
