#include "schedules/split_axis.h"

#include "dsl/simplify.h"

namespace tw::schedules {
namespace {

Expr index_below(const std::string& name, int64_t extent) {
    Variable variable{.name = name, .kind = VariableKind::Index, .min = 0, .max = extent - 1};
    variable.extent = integer(extent);
    return make_expr(Type::I64, variable);
}

}  // namespace

SplitAxis split_axis(const Expr& axis, int64_t rows, int64_t columns) {
    const std::string name = axis.as<Variable>()->name;
    return {axis, index_below(name + "_row", rows), index_below(name + "_column", columns)};
}

Expr SplitAxis::in_rows(const Expr& expr) const {
    const Expr columns = column.as<Variable>()->extent;
    return simplify(substitute(expr, Substitution{{axis, row * columns + column}}));
}

std::vector<Expr> SplitAxis::in_axis(const Expr& index) const {
    const Expr columns = column.as<Variable>()->extent;
    return {simplify(index / columns), simplify(index % columns)};
}

std::vector<Expr> indices_in_rows(const Operation& operation, const std::vector<Expr>& indices,
                                  const SplitAxes& split) {
    const auto found = split.find(&operation);
    if (found == split.end()) return indices;
    std::vector<Expr> at;
    for (const Expr& index : indices) at.push_back(found->second.in_rows(index));
    return at;
}

}  // namespace tw::schedules
