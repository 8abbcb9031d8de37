#include <fmt/ranges.h>

#include "dsl/check_sizes.h"
#include "ops/step/step_parts.h"
#include "ops/step/step_plan.h"

namespace tw {
namespace {

std::string input_text(const Tensor& input) {
    return fmt::format("{} {} {}", input.name(), name_of(input.type()), shape_text(input.shape()));
}

std::string result_text(const Operation& operation, const StepParts::Result& of) {
    std::vector<std::string> operands;
    for (const Tensor& operand : of.part->operands) operands.push_back(operand.name());
    return fmt::format("{}{} = result {} of the part '{}' of {}", operation.name, shape_text(operation.shape), of.index,
                       of.part->name, fmt::join(operands, ", "));
}

std::string declared_text(const schedules::Declared& step) {
    const StepParts parts(step.outputs);
    std::string text;
    for (const auto& operation : parts.operations()) {
        const StepParts::Result* result = parts.result_of(*operation);
        text += operation->is_input() ? input_text({operation, 0})
                : result              ? result_text(*operation, *result)
                                      : to_string(*operation);
        text += '\n';
    }
    std::vector<std::string> names;
    for (const Tensor& output : step.outputs) names.push_back(output.name());
    text += fmt::format("results: {}\n", fmt::join(names, ", "));
    for (const auto& [out, in] : step.in_place) text += fmt::format("{} overwrites {}\n", out.name(), in.name());
    return text;
}

}  // namespace

std::string StepStage::text() const { return plan ? plan->text() : declared_text(step); }

}  // namespace tw
