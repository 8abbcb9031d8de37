// How an operation of a step reads tensors, as text.
#pragma once
#include <map>
#include <string>

#include "ops/step/step_graph.h"

namespace tw {

/// Of each tensor that the node reads, itself or through views: the places that it reads there, as text in which all
/// whole numbers are alike. What reads many tensors in the same way, each from another place on, has equal texts.
std::map<TensorKey, std::string> read_texts(const StepNode& node);

}  // namespace tw
