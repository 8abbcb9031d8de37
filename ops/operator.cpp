#include "ops/operator.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "dsl/differentiate.h"
#include "dsl/simplify.h"
#include "ops/capture.h"
#include "schedules/choose.h"
#include "support/error.h"

namespace tw::nn {
namespace {

std::string input_name(size_t index) { return fmt::format("x{}", index); }

/// A tensor that a kernel can write: `derived` may be the adjoint itself, or serve two inputs.
tw::Tensor own_output(const tw::Tensor& derived, size_t index, const std::vector<tw::Tensor>& others) {
    bool taken = derived.operation()->is_input() ||
                 std::any_of(others.begin(), others.end(), [&](const tw::Tensor& t) { return t.same(derived); });
    if (!taken) return derived;
    Shape shape(derived.shape().begin(), derived.shape().end());
    return compute("own_d_" + input_name(index), shape, [&](const std::vector<Expr>& at) {
        return derived.read({at.begin(), at.end()});
    });
}

/// The registry is asked in the place of the rule.
Program program_by(const ScheduleFunction& function, const std::vector<tw::Tensor>& outputs, Backend& backend,
                   const std::source_location& where) {
    if (function.target<schedules::ChooseSchedule>())
        return backend.registry().select(outputs, backend.target(), {}, where).program;
    return build(function(outputs, backend.target()));
}

}  // namespace

std::string OperatorState::key(const char* what, const std::vector<Tensor>& inputs) const {
    std::string text = fmt::format("{} {} {}", what, name, serial);
    for (const Tensor& input : inputs)
        text +=
            fmt::format(" {}{}{}", name_of(input.type()), shape_text(input.shape()), input.requires_grad() ? "'" : "");
    return text;
}

std::vector<tw::Tensor> OperatorState::declare_inputs(const std::vector<Tensor>& inputs) const {
    std::vector<tw::Tensor> declared;
    for (size_t i = 0; i < inputs.size(); ++i)
        declared.push_back(
            input(input_name(i), inputs[i].type(), {inputs[i].shape().begin(), inputs[i].shape().end()}));
    return declared;
}

Tensor OperatorState::call(const std::vector<Tensor>& inputs, const std::source_location& where) const {
    const std::shared_ptr<Backend>& backend = inputs[0].backend();
    if (Capture* capture = backend->capture()) {
        CalledFrom caller(where);
        std::vector<tw::Tensor> symbols;
        for (const Tensor& input : inputs) symbols.push_back(capture->symbol_of(input));
        return capture->made(backend, expression(symbols), name);
    }
    for (const Tensor& input : inputs) input.require_data();
    const Executable& executable = backend->built(key("forward", inputs), [&](const Target&) {
        CalledFrom caller(where);
        return program_by(forward, {expression(declare_inputs(inputs))}, *backend, where);
    });
    const BufferNode& result = *executable.program().tree().outputs[0];
    std::vector<int64_t> shape;
    for (const Expr& extent : declared_shape(result)) {
        if (!as_constant(extent))
            throw_error(Error, "{}: extent {} of the result is no constant; kernels are built for each shape", name,
                        to_string(extent));
        shape.push_back(*as_constant(extent));
    }
    Tensor output(backend, result.type, shape, name);
    Arguments arguments;
    for (size_t i = 0; i < inputs.size(); ++i) arguments.buffers[input_name(i)] = inputs[i].data();
    arguments.buffers[result.name] = output.data();
    backend->run(executable, arguments);
    return output;
}

std::vector<Tensor> OperatorState::gradients_of(const std::vector<Tensor>& inputs, const Buffer& adjoint,
                                                const std::source_location& where) const {
    std::vector<size_t> wanted;
    for (size_t i = 0; i < inputs.size(); ++i)
        if (inputs[i].requires_grad()) wanted.push_back(i);
    const Executable& executable = inputs[0].backend()->built(key("backward", inputs), [&](const Target&) {
        CalledFrom caller(where);
        std::vector<tw::Tensor> declared = declare_inputs(inputs), with_respect_to, outputs;
        for (size_t i : wanted) with_respect_to.push_back(declared[i]);
        tw::Tensor output = expression(declared);
        tw::Tensor dy = input("dy", output.type(), {output.shape().begin(), output.shape().end()});
        std::vector<tw::Tensor> derived = gradients(output, dy, with_respect_to);
        for (size_t i = 0; i < derived.size(); ++i) outputs.push_back(own_output(derived[i], wanted[i], outputs));
        return program_by(backward, outputs, *inputs[0].backend(), where);
    });
    const auto& written = executable.program().tree().outputs;  // in the order of `wanted`
    Arguments arguments;
    for (size_t i = 0; i < inputs.size(); ++i) arguments.buffers[input_name(i)] = inputs[i].data();
    arguments.buffers["dy"] = adjoint;
    std::vector<Tensor> result(inputs.size());
    for (size_t w = 0; w < wanted.size(); ++w) {
        const Tensor& input = inputs[wanted[w]];
        result[wanted[w]] = Tensor(input.backend(), input.type(), input.shape(), "d_" + input.name());
        arguments.buffers[written[w]->name] = result[wanted[w]].data();
    }
    inputs[0].backend()->run(executable, arguments);
    return result;
}

Tensor OperatorState::link(const Tensor& output, std::shared_ptr<Node> creator) {
    output.state_->creator = std::move(creator);
    output.state_->requires_grad = true;
    return output;
}

Operator::Operator(std::string name, Expression expression, ScheduleFunction forward, ScheduleFunction backward) {
    static std::atomic<uint64_t> serials = 0;
    auto state = std::make_shared<OperatorState>();
    state->name = std::move(name);
    state->serial = serials++;
    state->expression = std::move(expression);
    state->forward = forward ? std::move(forward) : schedules::choose_schedule;
    state->backward = backward ? std::move(backward) : schedules::choose_schedule;
    state_ = std::move(state);
}

Tensor Operator::operator()(const std::vector<Tensor>& inputs, std::source_location where) const {
    if (inputs.empty()) throw_error(Error, "{}: no inputs; an operator needs at least one", state_->name);
    bool requires_grad = false;
    for (const Tensor& input : inputs) {
        if (input.backend() != inputs[0].backend())
            throw_error(Error, "{}: '{}' and '{}' are of different backends; make both with one", state_->name,
                        inputs[0].name(), input.name());
        requires_grad |= input.requires_grad();
    }
    Tensor output = state_->call(inputs, where);
    if (!requires_grad || !is_float(output.type())) return output;
    return OperatorState::link(output, std::make_shared<Node>(Node{state_, inputs, where}));
}

const Operator& operator_with(const std::string& name, const std::string& options, const Expression& expression) {
    static std::map<std::pair<std::string, std::string>, Operator> known;
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    return known.try_emplace({name, options}, name, expression).first->second;
}

}  // namespace tw::nn
