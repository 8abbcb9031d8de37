// Sums whose terms depend on where an element stands in a period, as a tensor for each place of it.
#pragma once
#include <functional>
#include <vector>

#include "dsl/schedule.h"
#include "schedules/redeclared.h"

namespace tw::schedules {

/// Large sums of products of f32 of which an element's place in a period, `i % 2`, says which terms count, and how
/// many, as strided_terms() makes them of gradients of strided windows,
///
///     dx[i] = sum_r (dy[(i + 1) / 2 - r] * w[2 * r + (i + 1) % 2])                   with r < 2 - (i + 1) % 2
///
/// are a tensor of each place, whose terms are the same for all elements, and what lies between one another's elements:
///
///     dx_phase[i] = sum_r (dy[i - r] * w[2 * r + 1]);   dx[i] = select(i % 2 == 0, dx_phase[i / 2], dx_phase_2[i / 2])
///
/// Axes whose extents the period does not divide, and more than 8 places of all axes together, stay as they are, and so
/// do sums of fewer terms in all: their launches take longer.
Redeclared sums_by_phase(const std::vector<Tensor>& outputs, double least_terms = 1 << 24);

/// What `choose` makes of the outputs, or of these declared by phases, if the model of time expects that to be faster.
Schedule with_sums_by_phase(const std::vector<Tensor>& outputs, const Target& target,
                            const std::function<Schedule(const std::vector<Tensor>&)>& choose);

}  // namespace tw::schedules
