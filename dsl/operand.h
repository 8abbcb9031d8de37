// What a step is given as an operand: an input, or a stage's elements. Inside of dsl/.
#pragma once
#include <memory>
#include <string>

#include "dsl/edit.h"

namespace tw {

struct OperandOf {
    std::shared_ptr<const Operation> operation;
    int output;
};
OperandOf operand_of(const Edit& edit, const StageRef& ref);

/// "Memory::Shared"
std::string memory_text(Memory memory);
std::string saved_tensor(const Tensor& tensor);
/// An operand in a trace as C++.
std::string operand_as_cpp(Edit& edit, const StageRef& ref);
/// "t:a 0" for a tensor by its name, "s 3" for a copy's stage: how a trace names an operand.
std::string saved_operand(const Edit& edit, const StageRef& ref);

}  // namespace tw
