// Inputs of a step that lie in the memory of another one.
#pragma once
#include <cstdint>

#include "dsl/tensor.h"

namespace tw {

/// Elements of a dense, one-dimensional input, side by side, that are an input by themselves: a parameter of those that
/// are updated together. Who reads the part comes before what overwrites the whole.
struct InputPart {
    Tensor part, whole;
    int64_t first = 0;  ///< the element of the whole that is the part's first
};

}  // namespace tw
