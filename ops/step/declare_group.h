// A part of a step as a declaration of its own.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "ops/step/step_graph.h"

namespace tw {

struct GroupDeclaration {
    schedules::Declared declared;    ///< over inputs alone
    std::vector<Tensor> writes;      ///< what its outputs are in the step
    std::vector<Tensor> inputs;      ///< of the declaration
    std::vector<Tensor> reads;       ///< what these are in the step
    std::vector<std::string> names;  ///< of the nodes' operations in it; of a part empty
    /// Of a part, which is a group by itself: its own, and what it gets.
    std::shared_ptr<const OwnSchedule> own_schedule = {};
    std::vector<Tensor> operands = {};

    /// Equal for equal declarations that are scheduled alike.
    std::string text() const;
};

/// Of the nodes, in the graph's order: its outputs are the tensors that others read or the step returns. Names are
/// those of the step without numbers, so that equal parts of several layers are equal declarations: "layer3_h" is
/// "layer_h".
GroupDeclaration declare_group(const StepGraph& graph, const std::vector<int>& nodes);

}  // namespace tw
