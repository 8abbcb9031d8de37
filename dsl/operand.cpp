#include "dsl/operand.h"

#include <fmt/format.h>

namespace tw {
namespace {

/// What computes it now, if axes of it were joined.
std::shared_ptr<const Operation> current(const Schedule::State& state,
                                         const std::shared_ptr<const Operation>& operation) {
    const int stage = state.stage_of(operation.get());
    const bool was_joined = stage >= 0 && state.stages[stage].definition.declared == operation;
    return was_joined ? state.stages[stage].definition.operation : operation;
}

}  // namespace

OperandOf operand_of(const Edit& edit, const StageRef& ref) {
    if (ref.tensor_.defined()) {
        const auto joined = edit.state.joined_inputs.find(ref.tensor_.operation().get());
        if (joined != edit.state.joined_inputs.end()) return {joined->second, 0};
        return {current(edit.state, ref.tensor_.operation()), ref.tensor_.output()};
    }
    return {edit.state.stages[edit.stage(ref, "stage")].definition.operation, 0};
}

std::string memory_text(Memory memory) {
    switch (memory) {
        case Memory::Auto: return "Memory::Auto";
        case Memory::Global: return "Memory::Global";
        case Memory::Shared: return "Memory::Shared";
        case Memory::Registers: return "Memory::Registers";
    }
    return "?";
}

std::string saved_tensor(const Tensor& tensor) {
    return fmt::format("t:{} {}", saved_name(tensor.operation()->name), tensor.output());
}

std::string operand_as_cpp(Edit& edit, const StageRef& ref) {
    if (ref.tensor_.defined() && edit.state.handle_names.knows(ref.tensor_.operation().get()))
        return edit.state.handle_names.tensor(ref.tensor_.operation().get(), ref.tensor_.output());
    return edit.stage_as_cpp(edit.stage(ref, "stage"));
}

std::string saved_operand(const Edit& edit, const StageRef& ref) {
    if (!ref.tensor_.defined()) return fmt::format("s {}", edit.stage(ref, "stage"));
    return saved_tensor(ref.tensor_);
}

}  // namespace tw
