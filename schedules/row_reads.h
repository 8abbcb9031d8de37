// What elements of rows are made of.
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "dsl/tensor.h"

namespace tw::schedules {

using RowOperation = std::shared_ptr<const Operation>;
using RowOperations = std::vector<RowOperation>;

inline bool holds_operation(const RowOperations& operations, const Operation* one) {
    return std::ranges::any_of(operations, [&](const RowOperation& each) { return each.get() == one; });
}
inline bool makes_one_of(const RowOperation& operation, const std::vector<Tensor>& tensors) {
    return std::ranges::any_of(tensors, [&](const Tensor& each) { return each.operation() == operation; });
}

/// Calls `see` with each read of what the operation's elements are made of, and the reduction that holds it; nullptr
/// outside of reductions.
void visit_row_reads(const Operation& operation, const std::function<void(const Read&, const Reduce*)>& see);

/// Whether one of the operation's expressions holds a reduction.
bool has_reduction(const Operation& operation);

}  // namespace tw::schedules
