// Names for tensors that a schedule adds to a declaration.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "dsl/tensor.h"

namespace tw::schedules {

/// The names that the operations of a declaration and their results have, and those given out since.
class FreeNames {
public:
    explicit FreeNames(const std::vector<Tensor>& outputs);

    /// `wanted`, or `wanted_2` and so on where it is taken; taken from now on.
    std::string take(const std::string& wanted);

private:
    std::set<std::string> taken_;
};

}  // namespace tw::schedules
