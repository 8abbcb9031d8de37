#include "ops/function.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "dsl/joint_gradient.h"
#include "ops/capture.h"
#include "ops/modules/scope.h"
#include "ops/operator.h"
#include "ops/tape/forward_scope.h"
#include "ops/tape/function_call.h"
#include "ops/tape/tape.h"
#include "support/error.h"

namespace tw::nn {
namespace {

void check_inputs(const std::string& name, const std::vector<Tensor>& inputs, std::source_location where) {
    user_check(!inputs.empty(), where, "{}: no inputs; name the tensors that the function is of", name);
    for (const Tensor& input : inputs) {
        user_check(input.defined(), where, "{}: an input is an undefined tensor; give what has been made", name);
        user_check(input.backend() == inputs[0].backend(), where,
                   "{}: '{}' and '{}' are of different backends; make both with one", name, inputs[0].name(),
                   input.name());
    }
}

void check_results(const std::string& name, const std::vector<Tensor>& results, const Tensor& input,
                   std::source_location where) {
    user_check(!results.empty(), where, "{}: forward returns no tensors; return its results", name);
    ForwardScope::require_inputs(results, where);
    for (const Tensor& result : results) {
        user_check(result.defined(), where, "{}: forward returns an undefined tensor; return its results", name);
        user_check(result.backend() == input.backend(), where,
                   "{}: forward returns '{}', of another backend than '{}'; make both with one", name, result.name(),
                   input.name());
    }
}

int place_in(const std::vector<Tensor>& tensors, const Tensor& tensor) {
    const auto found = std::ranges::find_if(tensors, [&](const Tensor& each) { return each.same(tensor); });
    return found == tensors.end() ? -1 : static_cast<int>(found - tensors.begin());
}

FunctionCall called(FunctionCall call, const std::vector<Tensor>& saved, const std::vector<Tensor>& inputs,
                    const std::vector<Tensor>& results) {
    for (const Tensor& result : results) call.results.push_back({result.type(), result.shape()});
    for (const Tensor& tensor : saved) {
        const int input = place_in(inputs, tensor), result = input < 0 ? place_in(results, tensor) : -1;
        call.saved.push_back({input < 0 ? tensor : Tensor(), input, result});
    }
    return call;
}

/// The same values and no more: a rule in a step's graph is not to hold tensors whose gradients are made in that graph.
Tensor as_value(const Tensor& tensor, std::source_location where) {
    const Tensor value(tensor.backend(), tensor.backend()->capture()->symbol_of(tensor), tensor.name());
    return tensor.requires_grad() ? OperatorState::link(value, std::make_shared<Node>(Node{{}, {}, where})) : value;
}

/// The results, whose gradients a rule for all of them has, which calls backward while gradients are derived.
std::vector<Tensor> written_down(const FunctionCall& made, const std::vector<Tensor>& inputs,
                                 const std::vector<Tensor>& results) {
    const std::shared_ptr<Backend>& backend = inputs[0].backend();
    Capture& capture = *backend->capture();
    const std::source_location where = made.where;
    CalledFrom caller(where);
    const DeclaredIn declared(Scope::path());
    std::vector<tw::Tensor> symbols, operands;
    std::vector<Tensor> values;
    for (const Tensor& result : results) symbols.push_back(capture.symbol_of(result));
    for (const Tensor& input : inputs) {
        values.push_back(as_value(input, where));
        if (input.requires_grad()) operands.push_back(values.back().symbol());
    }
    FunctionCall call = made;
    for (FunctionCall::Saved& each : call.saved)
        if (each.tensor.defined()) each.tensor = as_value(each.tensor, where);
    const auto rule = [call, values, alive = std::weak_ptr(backend), path = Scope::path()](
                          const JointGradient& own, const std::vector<std::vector<tw::Tensor>>& adjoints) {
        const std::shared_ptr<Backend> there = alive.lock();
        std::optional<Scope> scope;
        if (Scope::path().empty() && !path.empty()) scope.emplace(path);
        std::vector<std::vector<Tensor>> given(adjoints.size());
        for (size_t k = 0; k < adjoints.size(); ++k)
            for (const tw::Tensor& adjoint : adjoints[k]) given[k].emplace_back(there, adjoint, adjoint.name());
        const auto on_tape = [&](const Tensor& tensor, size_t result) {
            return there->capture()->made(there, own.output(result), tensor.name());
        };
        std::vector<tw::Tensor> parts;
        for (const Tensor& part : call.gradients_of(values, given, on_tape))
            if (part.defined()) parts.push_back(there->capture()->symbol_of(part));
        return parts;
    };
    const JointGradient joint(call.name, symbols, operands, rule, where);
    std::vector<Tensor> linked;
    for (size_t k = 0; k < results.size(); ++k) {
        linked.push_back(results[k]);
        if (!is_float(results[k].type())) continue;
        linked.back() = capture.made(backend, joint.output(k), results[k].name());
        OperatorState::link(linked.back(), std::make_shared<Node>(Node{{}, inputs, where}));
    }
    return linked;
}

}  // namespace

void FunctionContext::save(const std::vector<Tensor>& tensors, std::source_location where) {
    for (const Tensor& tensor : tensors)
        user_check(tensor.defined(), where, "save: an undefined tensor; save what has been made");
    user_check(!has_saved_, where,
               "save: called again, which would replace the {} tensors that were saved; save all of them in one call",
               saved_.size());
    saved_ = tensors;
    has_saved_ = true;
}

bool FunctionContext::needs_gradient(size_t input, std::source_location where) const {
    user_check(input < needs_.size(), where,
               "needs_gradient({}): the function was called with {} inputs, counted from 0; ask for one of these",
               input, needs_.size());
    return needs_[input];
}

Function::Function(std::string name, FunctionForward forward, FunctionBackward backward, std::source_location where)
    : name_(std::move(name)), forward_(std::move(forward)), backward_(std::move(backward)) {
    user_check(forward_ && backward_, where, "{}: {} is no function; give one of the context and of tensors", name_,
               forward_ ? "backward" : "forward");
}

std::vector<Tensor> Function::operator()(const std::vector<Tensor>& inputs, std::source_location where) const {
    check_inputs(name_, inputs, where);
    const bool is_on_tape = grad_enabled() && std::ranges::any_of(inputs, &Tensor::requires_grad);
    FunctionContext context;
    for (const Tensor& input : inputs) context.needs_.push_back(is_on_tape && input.requires_grad());
    std::vector<Tensor> results;
    {
        std::optional<ForwardScope> scope;
        if (grad_enabled()) scope.emplace(name_, inputs);
        const NoGrad constant;
        results = forward_(context, inputs);
        check_results(name_, results, inputs[0], where);
    }
    if (!is_on_tape) return results;
    const FunctionCall made = called({.name = name_, .backward = backward_, .results = {}, .saved = {}, .where = where},
                                     context.saved_, inputs, results);
    if (inputs[0].backend()->capture()) return written_down(made, inputs, results);
    const auto call = std::make_shared<const FunctionCall>(made);
    for (size_t k = 0; k < results.size(); ++k)
        if (is_float(results[k].type())) results[k] = FunctionCall::linked(results[k], call, k, inputs);
    return results;
}

}  // namespace tw::nn
