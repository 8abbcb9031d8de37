// Schedules of computations in which attention stands: its part is one kernel, in one pass over the keys.
#pragma once
#include <optional>
#include <vector>

#include "schedules/composed_parts.h"

namespace tw::schedules {

/// What find_attention() finds, on targets with wgmma and the tensor memory accelerator, by attention_schedule(), and
/// all else, in front of it and behind, by `choose_rest`: outputs() say the same as those given, under the same names,
/// attention as declare_attention() declares it. Nothing if there is none, or none that can be built. explain() says
/// what was found, and what was refused.
std::optional<Schedule> with_streamed_attention(const std::vector<Tensor>& outputs, const Target& target,
                                                const ChooseRest& choose_rest);

}  // namespace tw::schedules
