// What is declared, as text that two declarations share only if they are the same.
#pragma once
#include <string>
#include <vector>

#include "dsl/tensor.h"

namespace tw::schedules {

/// Operations, producers first, with names, shapes, strides, types and every node of what they compute, shared ones
/// once; names of axes, lines of source and rules of gradients are left out. Equal for equal declarations.
std::string declaration_text(const std::vector<Tensor>& outputs);

/// The name of such a text: "y, mean #0f3a...": of what is declared, and 32 digits of the text's hash.
std::string declaration_name(const std::vector<Tensor>& outputs, const std::string& text);

}  // namespace tw::schedules
