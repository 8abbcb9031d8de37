#include <tuple>

#include "dsl/differentiate.h"
#include "support/error.h"

namespace tw {

Tensor with_gradient(const Tensor& tensor, const std::vector<Tensor>& inputs, const GradientFunction& function,
                     std::source_location where) {
    user_check(tensor.defined() && !tensor.operation()->is_input(), where,
               "with_gradient: {} is not computed, so it has no derivative to replace; leave it out of gradients()",
               tensor.defined() ? fmt::format("'{}'", tensor.name()) : "an undefined tensor");
    for (const Tensor& input : inputs)
        user_check(input.defined(), where, "with_gradient: an input of '{}' is an undefined tensor", tensor.name());
    user_check(inputs.empty() || function != nullptr, where, "with_gradient of '{}': the rule is no function",
               tensor.name());
    const Operation& operation = *tensor.operation();
    Tensor copy = compute(
        tensor.name(), {tensor.shape().begin(), tensor.shape().end()},
        [&](const std::vector<Expr>& axes) {
            Substitution rename;
            for (size_t d = 0; d < axes.size(); ++d) rename.emplace_back(operation.axes[d], axes[d]);
            return substitute(operation.outputs[tensor.output()].body, rename);
        },
        where);
    auto ruled = std::make_shared<Operation>(*copy.operation());
    ruled->gradient = std::make_shared<const GradientRule>(GradientRule{inputs, function, where});
    ruled->scope = operation.scope;
    std::tie(ruled->own_schedule, ruled->own_result) = std::tie(operation.own_schedule, operation.own_result);
    return Tensor(ruled, 0);
}

Tensor stop_gradient(const Tensor& tensor, std::source_location where) { return with_gradient(tensor, {}, {}, where); }

}  // namespace tw
