#include "ops/tape/function_call.h"

#include <fmt/ranges.h>

#include "ops/elementwise.h"
#include "ops/operator.h"
#include "ops/tape/tape.h"
#include "ops/views.h"
#include "support/error.h"

namespace tw::nn {
namespace {

/// Zeros of that shape, on the backend of `of`.
Tensor zeros(const Tensor& of, Type type, const std::vector<int64_t>& shape) {
    const NoGrad constant;
    return operator_with("zeros", fmt::format("{} {}", name_of(type), shape), [=](const std::vector<tw::Tensor>&) {
        return compute("zeros", {shape.begin(), shape.end()},
                       [&](const std::vector<Expr>&) { return tw::constant(type, 0.0); });
    })({of});
}

std::string text_of(const Tensor& tensor) {
    return fmt::format("{} {}", name_of(tensor.type()), shape_text(tensor.shape()));
}

}  // namespace

Tensor FunctionCall::linked(const Tensor& tensor, std::shared_ptr<const FunctionCall> call, size_t result,
                            const std::vector<Tensor>& inputs) {
    const auto node = std::make_shared<Node>(Node{{}, inputs, call->where});
    node->function = std::move(call);
    node->result = result;
    return OperatorState::link(Tape::without_tape(tensor), node);
}

/// What the loss makes nothing of is zeros. In a captured step adjoints of 16 bits are f32.
std::vector<Tensor> FunctionCall::whole_adjoints(const std::vector<Tensor>& inputs,
                                                 const std::vector<std::vector<Tensor>>& adjoints) const {
    std::vector<Tensor> whole(results.size());
    for (size_t k = 0; k < results.size(); ++k) {
        if (!is_float(results[k].type)) continue;
        for (const Tensor& part : adjoints[k]) whole[k] = whole[k].defined() ? add(whole[k], part) : part;
        if (!whole[k].defined()) whole[k] = zeros(inputs[0], results[k].type, results[k].shape);
        if (whole[k].type() != results[k].type) whole[k] = cast(whole[k], results[k].type);
        const bool is_backends = whole[k].data() && whole[k].data().pointer() == whole[k].backend()->one().pointer();
        if (is_backends) whole[k] = clone(whole[k]);  // the 1 of a loss, which may be passed on to a leaf
    }
    return whole;
}

FunctionContext FunctionCall::context_of(const std::vector<Tensor>& inputs, const OnTape& on_tape) const {
    FunctionContext context;
    for (const Tensor& input : inputs) context.needs_.push_back(input.requires_grad());
    for (const Saved& each : saved) {
        const bool is_between = each.input < 0 && each.result < 0 && is_float(each.tensor.type());
        user_check(!is_between || !grad_enabled(), where,
                   "{}: gradients of its gradients would need that of '{}' {}, which forward saved, and which is "
                   "neither an input nor a result; return it as another result, or make it anew in backward",
                   name, each.tensor.name(), text_of(each.tensor));
        context.saved_.push_back(each.input >= 0 ? inputs[static_cast<size_t>(each.input)]
                                 : each.result >= 0 && grad_enabled() && is_float(each.tensor.type())
                                     ? on_tape(each.tensor, static_cast<size_t>(each.result))
                                     : each.tensor);
    }
    return context;
}

void FunctionCall::check(const std::vector<Tensor>& parts, const std::vector<Tensor>& inputs) const {
    user_check(parts.size() == inputs.size(), where,
               "{}: backward returns {} gradients for {} inputs; return one for each, in their order, an undefined "
               "Tensor for zeros",
               name, parts.size(), inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
        if (!inputs[i].requires_grad() || !parts[i].defined()) continue;
        const bool fits = parts[i].type() == inputs[i].type() && parts[i].shape() == inputs[i].shape();
        user_check(fits, where,
                   "{}: backward returns {} as the gradient of input {}, '{}', which is {}; return one of its type "
                   "and shape",
                   name, text_of(parts[i]), i, inputs[i].name(), text_of(inputs[i]));
        user_check(parts[i].backend() == inputs[i].backend(), where,
                   "{}: backward returns a tensor of another backend as the gradient of '{}'; make both with one", name,
                   inputs[i].name());
    }
}

std::vector<Tensor> FunctionCall::gradients_of(const std::vector<Tensor>& inputs,
                                               const std::vector<std::vector<Tensor>>& adjoints,
                                               const OnTape& on_tape) const {
    const FunctionContext context = context_of(inputs, on_tape);
    std::vector<Tensor> parts = backward(context, whole_adjoints(inputs, adjoints));
    check(parts, inputs);
    for (size_t i = 0; i < inputs.size(); ++i) {
        if (!inputs[i].requires_grad())
            parts[i] = {};
        else if (!parts[i].defined())
            parts[i] = zeros(inputs[0], inputs[i].type(), inputs[i].shape());
    }
    return parts;
}

std::vector<Tensor> FunctionCall::gradients_of_results(const std::vector<Tensor>& outputs,
                                                       const std::function<Tensor(const Tensor&)>& adjoint_of) {
    const Node& node = *outputs[0].creator();
    std::vector<std::vector<Tensor>> adjoints(node.function->results.size());
    for (const Tensor& output : outputs) adjoints[output.creator()->result].push_back(adjoint_of(output));
    const auto on_tape = [&](const Tensor& tensor, size_t result) {
        return linked(tensor, node.function, result, node.inputs);
    };
    return node.function->gradients_of(node.inputs, adjoints, on_tape);
}

}  // namespace tw::nn
