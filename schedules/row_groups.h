// Operations along the same rows, which one kernel can make: reductions of rows, and what is made of them.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "dsl/tensor.h"
#include "schedules/split_axis.h"

namespace tw::schedules {

using OperationRef = std::shared_ptr<const Operation>;

/// A reduction as the only one of an operation, whichever of its components are read; nullptr of any other operation.
const Reduce* own_reduction(const Operation& operation);
/// Whether both are components of one reduction.
bool same_reduction(const Reduce& a, const Reduce& b);
/// The number of an element in row-major order.
Expr flat_index(const std::vector<Expr>& at, const std::vector<Expr>& extents);
/// The product of the extents, if it is a constant.
std::optional<int64_t> count_of(const std::vector<Expr>& extents);
/// Of each axis of a reduction, which has one.
std::vector<Expr> extents_of(const std::vector<Expr>& axes);

/// Which axes of an operation tell the row, and which the column: those of its reduction, or its last ones, if it has
/// such.
struct RowAxes {
    std::vector<Expr> rows, columns;

    bool has_columns() const { return !columns.empty(); }
    Expr column() const;  ///< its number in the row
};
RowAxes row_axes(const Operation& operation, size_t rank);
/// The same, with the parts of its last axis if that is split.
RowAxes row_axes(const Operation& operation, size_t rank, const SplitAxes& split);

/// An element that an operation reads: indices over the operation's axes and those of its reduction.
struct RowRead {
    Tensor tensor;
    std::vector<Expr> at;
    bool guarded = false;
};
/// Where the row begins that the element is read from, in elements: an expression of the axes of rows, which holds all
/// that have several iterations. Nothing where elements of neighbouring columns do not lie side by side.
std::optional<Expr> row_start(const RowRead& read, const RowAxes& axes);

/// What one kernel can make.
struct RowGroup {
    std::vector<Expr> rows;             ///< extents
    int64_t columns = 0;                ///< elements of a row
    std::vector<OperationRef> made;     ///< reductions along rows, and outputs; producers first
    std::vector<OperationRef> between;  ///< elements that nothing else reads, each at its reader's own place
    std::vector<OperationRef> results;  ///< of those made, outputs and what else is read elsewhere

    bool holds(const OperationRef& operation) const;
    /// With those of its split axis, if it has one.
    RowAxes axes_of(const Operation& operation) const;
    /// Of the operation, over axes_of().
    std::vector<Expr> at_axes(const Operation& operation, const std::vector<Expr>& indices) const;
    /// The row, and the column's number in it, over the operation's own axes.
    std::vector<Expr> row_of(const Operation& operation) const;
    Expr column_of(const Operation& operation) const;
    /// What those that are made read, through elements that lie in no memory, of rows and of each column.
    std::vector<std::pair<OperationRef, std::vector<RowRead>>> reads;
    /// Elements of rows that lie side by side along the operation's last dimension: x(i, group * 32 + k).
    SplitAxes split;
};

struct RowGrouping {
    /// Operations that have a schedule of their own.
    std::function<bool(const OperationRef&)> is_taken = [](const OperationRef&) { return false; };
    /// Elements that lie in memory though they are no outputs.
    std::function<bool(const OperationRef&)> is_copy = [](const OperationRef&) { return false; };
    /// Sums over all rows, whose kernel may be that of the rows: they may read what that keeps of each.
    std::function<bool(const OperationRef&)> is_sum = [](const OperationRef&) { return false; };
};

/// Reductions of rows of at least one dimension whose terms are elements that lie side by side, by reducers that are
/// commutative, over the same rows, and outputs over these rows, with or without columns, or whose last dimension is
/// that of rows and that of columns in one (SplitAxis). In a group each reads others
/// at its own row, and at its own column, or shares a row with one of them. No group needs itself through others.
std::vector<RowGroup> row_groups(const std::vector<Tensor>& outputs, const RowGrouping& how = {});
/// A thread for each of a single reduction's short rows does as well.
bool is_worth_sharing(const RowGroup& group);

}  // namespace tw::schedules
