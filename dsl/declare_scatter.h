// Reductions with a data-dependent target.
#pragma once
#include <source_location>
#include <string>
#include <vector>

#include "dsl/tensor.h"

namespace tw {

/// sum, prod, reduce_max or reduce_min.
using Reduction = Expr (*)(const Operand& value, const std::vector<Axis>& axes);

/// For each point of the axes, in row-major order: y[index...] = combine(y[index...], value), from the identity on. One
/// index a dimension of `shape`; an index outside goes nowhere.
///
///     Tensor d = scatter("d", {V, D}, sum, {ids(p), j}, dy(p, j), {p, j});
///
/// It is an ordinary reduction of select(index == element, value, identity); an index that is an axis of the
/// dimension's extent is the element itself. Schedule::scatter spares the comparisons. Throws Error if the number of
/// indices is wrong, or if no axis is left to reduce over.
Tensor scatter(const std::string& name, const Shape& shape, Reduction reduction, const std::vector<Operand>& index,
               const Operand& value, const std::vector<Axis>& axes,
               std::source_location where = std::source_location::current());

}  // namespace tw
