// A computation of parts, some of which have schedules of their own, and of a rest, which is scheduled by rule.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "dsl/schedule.h"

namespace tw::schedules {

using ChooseRest = std::function<Schedule(const std::vector<Tensor>& outputs, const Target& target)>;

/// Tensors of a computation that have one schedule.
struct ScheduledPart {
    std::vector<Tensor> given;     ///< its results; what has several outputs, as argmax, nothing else reads
    std::vector<Tensor> operands;  ///< computed or inputs, that they are made of
    /// The schedule over tensors of the operands' shapes and types; its outputs() say what `given` do, in their order.
    std::function<Schedule(const std::vector<Tensor>& operands)> schedule;
    std::string text;  ///< for explain()
};

/// The tensors, those that are computed as inputs of their names, shapes and types: what a part is tried over.
std::vector<Tensor> as_inputs(const std::vector<Tensor>& operands);

/// What steps or passes refuse of the part by itself; empty if nothing.
std::string refusal_of(const ScheduledPart& part, const Target& target);

/// Each part as it is scheduled, and all else, in front of parts, between and behind, by `choose_rest`, which has
/// inputs in the place of their results. outputs() say the same as those given, under the same names. Parts stand in
/// the order in which they read each other. Throws Error where a step is refused in the whole.
Schedule composed_of(const std::vector<ScheduledPart>& parts, const std::vector<Tensor>& outputs, const Target& target,
                     const ChooseRest& choose_rest);

}  // namespace tw::schedules
