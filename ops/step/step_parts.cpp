#include "ops/step/step_parts.h"

#include <functional>

namespace tw {

StepParts::StepParts(const std::vector<Tensor>& outputs, const OpenedParts& opened) {
    for (const auto& operation : operations_of(outputs)) {
        const auto& part = operation->own_schedule;
        if (!part || opened.contains(part.get())) continue;
        results_.emplace(operation.get(), Result{part, operation->own_result});
        for (size_t k = 0; k < part->results.size(); ++k)
            results_.emplace(part->results[k].operation().get(), Result{part, static_cast<int>(k)});
    }
    std::set<const Operation*> seen;
    std::function<void(const std::shared_ptr<const Operation>&)> add = [&](const auto& operation) {
        if (!seen.insert(operation.get()).second) return;
        if (const Result* result = result_of(*operation))
            for (const Tensor& operand : result->part->operands) add(operand.operation());
        else
            for (const Operation::Output& output : operation->outputs)
                if (output.body.defined())
                    visit_with_extents(output.body, [&](const Expr& e) {
                        if (const Read* read = e.as<Read>()) add(read->operation);
                    });
        operations_.push_back(operation);
    };
    for (const Tensor& output : outputs) add(output.operation());
}

const StepParts::Result* StepParts::result_of(const Operation& operation) const {
    const auto found = results_.find(&operation);
    return found == results_.end() ? nullptr : &found->second;
}

}  // namespace tw
