// Copies of operands and of results: stages that compute nothing.
#pragma once
#include <memory>
#include <string>

#include "dsl/schedule_state.h"

namespace tw {

/// A copy of an output of `source`, which `reader` reads; under a loop, or -1. Its axes are named as those of a
/// computed source; of an input as the reader's indices.
StageDefinition copy_definition(const Schedule::State& state, const std::shared_ptr<const Operation>& source,
                                int output, const std::string& name, const StageDefinition& reader, int under);

}  // namespace tw
