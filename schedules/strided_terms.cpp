#include "schedules/strided_terms.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "schedules/declared_as.h"
#include "schedules/joined_axes.h"
#include "schedules/replace_tensors.h"
#include "schedules/unit_product.h"
#include "schedules/whole_tiles.h"
#include "schedules/window_terms.h"

namespace tw::schedules {
namespace {

/// Terms count where the axis is `place` or `step` multiples away from it; the condition that says so.
struct Stride {
    Expr condition, axis, place;
    int64_t step;
};

bool holds_an_axis(const Expr& expr, const Reduce& sum) {
    return std::ranges::any_of(sum.axes, [&](const Expr& axis) { return contains(expr, axis); });
}

/// Of a condition place - axis, or the other way round, is a multiple.
std::optional<Stride> stride_of(const Expr& condition, const Reduce& sum) {
    const Binary* equals = condition.as<Binary>();
    if (!equals || equals->op != BinaryOp::Equal || as_constant(equals->b) != 0) return {};
    const Binary* rest = equals->a.as<Binary>();
    if (!rest || rest->op != BinaryOp::Mod) return {};
    const int64_t step = as_constant(rest->b).value_or(0);
    if (step < 2) return {};
    const Affine sides = affine_of(rest->a);
    for (const Expr& axis : sum.axes) {
        const int64_t sign = coefficient(sides, axis).value_or(0);
        if (sign != 1 && sign != -1) continue;
        const Expr place = simplify(sign < 0 ? rest->a + axis : axis - rest->a);
        if (!holds_an_axis(place, sum) && extent_of(axis) > 1) return Stride{condition, axis, place, step};
    }
    return {};
}

std::optional<Stride> stride_among(const Expr& conditions, const Reduce& sum) {
    const Binary* both = conditions.as<Binary>();
    if (!both || both->op != BinaryOp::And) return stride_of(conditions, sum);
    const auto first = stride_among(both->a, sum);
    return first ? first : stride_among(both->b, sum);
}

/// The term with `place` as so many steps and a rest, which cancel where it stands less the axis.
Expr over_steps(const Expr& term, const Stride& stride, const Expr& axis) {
    const Interval bounds = bounds_of(stride.place);
    if (!bounds.min || !bounds.max) return {};
    const Expr steps = index_variable("steps", *bounds.min / stride.step - 1, *bounds.max / stride.step),
               rest = index_variable("rest", 0, stride.step - 1);
    Substitution apart{{stride.axis, axis * stride.step + rest}};
    for (const auto& [atom, factor] : affine_of(stride.place).terms)
        if (atom.as<Variable>() && (factor == 1 || factor == -1)) {
            const Expr others = simplify(stride.place - atom * factor);
            apart.emplace_back(atom, (steps * stride.step + rest - others) * factor);
            break;
        }
    return simplify(substitute(simplify(substitute(term, apart)),
                               {{steps, stride.place / stride.step}, {rest, stride.place % stride.step}}));
}

/// The sum over terms that count alone; undefined if all may.
Expr over_strides(const Reduce& sum) {
    if (sum.values.size() != 1 || atomic_operation(*sum.reducer) != BinaryOp::Add) return {};
    const Select* counts = sum.values[0].as<Select>();
    const FloatConstant* none = counts ? counts->no.as<FloatConstant>() : nullptr;
    if (!none || none->value != 0) return {};
    const auto stride = stride_among(counts->condition, sum);
    if (!stride) return {};
    const int64_t terms = extent_of(stride->axis);
    const Expr first = stride->place % stride->step,
               count = terms % stride->step == 0 ? integer(terms / stride->step)
                                                 : simplify((terms - first + (stride->step - 1)) / stride->step);
    const Axis axis = reduce_axis(stride->axis.as<Variable>()->name, count);
    const Expr value = over_steps(sum.values[0], *stride, axis);
    if (!value.defined()) return {};
    Reduce found = sum;
    found.values = {value};
    std::ranges::replace_if(
        found.axes, [&](const Expr& each) { return each.same(stride->axis); }, Expr(axis));
    return make_expr(value.type(), found);
}

}  // namespace

Redeclared strided_terms(const std::vector<Tensor>& outputs) {
    Redeclared result;
    Replacement whole;
    for (const auto& operation : operations_of(outputs)) {
        if (operation->is_input() || operation->outputs.size() != 1) continue;
        const Tensor given(operation, 0);
        Tensor now = whole.of(given);
        int strides = 0;
        for (;; ++strides) {
            const Reduce* sum = only_reduction(body_of(now));
            const Expr found = sum ? over_strides(*sum) : Expr();
            if (!found.defined()) break;
            now = declared_as(now, with_reduction(body_of(now), found));
        }
        if (strides == 0) continue;
        whole.put(given, now);
        result.notes.push_back(
            fmt::format("'{}' sums those terms alone that count, which lie regularly", given.name()));
    }
    for (const Tensor& output : outputs) result.outputs.push_back(whole.of(output));
    return result;
}

}  // namespace tw::schedules
