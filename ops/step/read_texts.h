// How an operation of a step reads tensors.
#pragma once
#include <map>
#include <set>
#include <string>

#include "ops/step/step_graph.h"

namespace tw {

/// Of each tensor that the node reads, itself or through views: the places that it reads there, as text in which all
/// whole numbers are alike. What reads many tensors in the same way, each from another place on, has equal texts.
std::map<TensorKey, std::string> read_texts(const StepNode& node);

/// Operations of which the node reads elements, itself or through views, also where no condition has to hold. Of all
/// others it reads guarded ones alone.
std::set<const Operation*> read_unguarded(const StepNode& node);

}  // namespace tw
