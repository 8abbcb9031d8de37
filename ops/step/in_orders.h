// A step whose tensors have their dimensions in another order: the same elements at other places.
#pragma once
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "ops/step/step_graph.h"
#include "schedules/declared.h"

namespace tw {

/// Of operations, for all of their results: dimension d in memory is what is declared as dimension order[d]. Dimensions
/// of one element may be left out.
using DimensionOrders = std::map<const Operation*, std::vector<int>>;

/// Operations of which nobody outside of the step sees how they lie: neither inputs, results, views, nor operands or
/// results of parts with schedules of their own, nor read where data say. The graph is the step's.
std::set<const Operation*> movable_operations(const schedules::Declared& step, const StepGraph& graph);

/// A step as a pass leaves it, and tensors of it that lie between kernels in another type (mixed_precision.h).
struct StoredStep {
    schedules::Declared step;
    std::vector<std::pair<Tensor, Type>> stored = {};
};

/// The step in which these operations, movable ones, have their axes in those orders, and whoever reads them has
/// indices in the same: no bit of a result is another one. Names, and the order of operations, are as they were.
/// `parts` are those of the step; one that reads what has been declared anew is declared anew over it.
StoredStep in_orders(const StoredStep& step, const StepParts& parts, const DimensionOrders& orders);

}  // namespace tw
