#include "dsl/declare_scatter.h"

#include <algorithm>

#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {

Tensor scatter(const std::string& name, const Shape& shape, Reduction reduction, const std::vector<Operand>& index,
               const Operand& value, const std::vector<Axis>& axes, std::source_location where) {
    user_check(index.size() == shape.size(), where, "scatter '{}': {} indices for {} dimensions; give one each", name,
               index.size(), shape.size());
    user_check(reduction != nullptr, where, "scatter '{}': the reduction is no function; name one, such as sum", name);
    for (const Axis& axis : axes)
        user_check(axis.variable.defined(), where, "scatter '{}': an axis is undefined; make it with reduce_axis()",
                   name);
    for (size_t d = 0; d < index.size(); ++d)
        user_check(!is_float(index[d].expr.type()) && index[d].expr.type() != Type::Bool, where,
                   "scatter '{}': index {} is {}; indices are integers, so cast it, e.g. cast(i64, x)", name, d,
                   name_of(index[d].expr.type()));
    return compute(
        name, shape,
        [&](const std::vector<Expr>& element) {
            std::vector<Axis> left = axes;
            std::vector<Expr> conditions;
            Substitution same;
            for (size_t d = 0; d < index.size(); ++d) {
                auto axis = std::find_if(left.begin(), left.end(), [&](const Axis& a) {
                    return a.variable.same(index[d].expr) && equal(a.extent, element[d].as<Variable>()->extent);
                });
                if (axis == left.end()) {
                    conditions.push_back(Operand(index[d].expr, where) == Operand(element[d], where));
                    continue;
                }
                same.emplace_back(axis->variable, element[d]);
                left.erase(axis);
            }
            user_check(!left.empty(), where, "scatter '{}': every axis is an index of its own: nothing is reduced",
                       name);
            Expr term = substitute(value.expr, same);
            if (conditions.empty()) return reduction(Operand(term, where), left);
            Expr all = substitute(all_of(conditions), same);
            Expr identity = reduction(Operand(term, where), left).as<Reduce>()->reducer->identity[0];
            return reduction(Operand(select_unchecked(all, term, identity), where), left);
        },
        where);
}

}  // namespace tw
