// What a pass over declarations gives.
#pragma once
#include <string>
#include <vector>

#include "dsl/tensor.h"

namespace tw::schedules {

/// Outputs that are declared anew.
struct Redeclared {
    std::vector<Tensor> outputs;     ///< each says what the one given in its place does, and has its name
    std::vector<std::string> notes;  ///< for explain()
};

}  // namespace tw::schedules
