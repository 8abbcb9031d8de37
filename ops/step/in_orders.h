// A step whose tensors have their dimensions in another order: the same elements at other places.
#pragma once
#include <map>
#include <utility>
#include <vector>

#include "ops/step/step_parts.h"
#include "schedules/declared.h"

namespace tw {

/// Of operations, for all of their results: dimension d in memory is what is declared as dimension order[d].
using DimensionOrders = std::map<const Operation*, std::vector<int>>;

/// A step as a pass leaves it, and tensors of it that lie between kernels in another type (mixed_precision.h).
struct StoredStep {
    schedules::Declared step;
    std::vector<std::pair<Tensor, Type>> stored = {};
};

/// The step in which these operations have their axes in those orders, and whoever reads them has indices in the same:
/// no bit of a result is another one. Names, and the order of operations, are as they were. `parts` are those of the
/// step; one that reads what has changed, through a view, is declared anew over it. None of the operations is an input,
/// a result, or an operand or a result of a part.
StoredStep in_orders(const StoredStep& step, const StepParts& parts, const DimensionOrders& orders);

}  // namespace tw
