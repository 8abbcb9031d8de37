// One axis that stands for two: elements of several rows that lie side by side along a tensor's last dimension.
#pragma once
#include <map>
#include <vector>

#include "dsl/tensor.h"

namespace tw::schedules {

/// axis = row * columns + column, where the column has an extent.
struct SplitAxis {
    Expr axis, row, column;

    /// The expression over row and column.
    Expr in_rows(const Expr& expr) const;
    /// Row and column of an index along the axis.
    std::vector<Expr> in_axis(const Expr& index) const;
};
SplitAxis split_axis(const Expr& axis, int64_t rows, int64_t columns);

/// The last axes of operations.
using SplitAxes = std::map<const Operation*, SplitAxis>;
/// Indices over the operation's axes, over those of its split axis if it has one.
std::vector<Expr> indices_in_rows(const Operation& operation, const std::vector<Expr>& indices, const SplitAxes& split);

}  // namespace tw::schedules
