// What is declared, as text that two declarations share only if they are the same.
#pragma once
#include <string>
#include <vector>

#include "dsl/tensor.h"

namespace tw::schedules {

/// Operations, producers first, with names, shapes, strides, types and every node of what they compute, shared ones
/// once; names of axes, lines of source and rules of gradients are left out. Equal for equal declarations.
std::string declaration_text(const std::vector<Tensor>& outputs);

/// The same of all declarations of its bucket: whole numbers from 16, extents among them, are told by the nearest power
/// of two and by the largest power of two that divides them, 16 at most; real numbers not at all. What would do for one
/// of a bucket is likely to do for the others: their vectors are as wide, their rows about as long.
std::string bucket_text(const std::vector<Tensor>& outputs);

/// The name of such a text: "y, mean #0f3a...": of what is declared, and 32 digits of the text's hash.
std::string declaration_name(const std::vector<Tensor>& outputs, const std::string& text);

}  // namespace tw::schedules
