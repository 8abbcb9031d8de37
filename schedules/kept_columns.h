// Columns that one kernel normalises: it reads each element once, and keeps it in shared memory.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "dsl/schedule.h"

namespace tw::schedules {

/// Of elements [.., terms, .., columns] and of what is reduced along their terms, which do not lie side by side, as a
/// softmax or a layer norm along the middle of a tensor:
///
///     most[g, j] = max_k x[g, k, j],  total[g, j] = sum_k exp(x[g, k, j] - most[g, j])
///     y[g, i, j] = exp(x[g, i, j] - most[g, j]) / total[g, j]
///
/// one kernel, whose blocks have all terms of some columns in shared memory; outputs() say the same as those given,
/// under the same names. Nothing where outputs are others than such elements, of one shape, and numbers of columns, or
/// where that does not suffice. Throws Error where a step is refused.
std::optional<Schedule> kept_columns(const std::vector<Tensor>& outputs, const Target& target);

/// That, where the model of time expects it to be faster than what `otherwise` makes; else the latter. explain() says
/// which it was, if there was a choice.
Schedule with_kept_columns(const std::vector<Tensor>& outputs, const Target& target,
                           const std::function<Schedule()>& otherwise);

}  // namespace tw::schedules
