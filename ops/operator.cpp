#include "ops/operator.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <stdexcept>

#include <fmt/ranges.h>

#include "dsl/differentiate.h"
#include "dsl/simplify.h"
#include "ops/capture.h"
#include "ops/modules/scope.h"
#include "ops/tape/distinct_operations.h"
#include "ops/tape/forward_scope.h"
#include "schedules/choose.h"
#include "support/error.h"

namespace tw::nn {
namespace {

std::vector<std::string> texts_of(const std::vector<Expr>& exprs) {
    std::vector<std::string> texts;
    for (const Expr& expr : exprs) texts.push_back(to_string(expr));
    return texts;
}

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

/// The expression over these inputs. What it asks for by at() is there, or the call is to blame.
tw::Tensor checked(const OperatorState& state, const std::vector<tw::Tensor>& inputs) {
    try {
        return state.expression(inputs);
    } catch (const std::out_of_range&) {
        std::vector<std::string> given;
        for (const tw::Tensor& input : inputs)
            given.push_back(fmt::format("'{}' {}[{}]", input.name(), name_of(input.type()),
                                        fmt::join(texts_of(input.shape()), ", ")));
        user_error(std::source_location::current(),
                   "{}: its expression reads an input or a dimension that the call does not have, which gives {}",
                   state.name, fmt::join(given, ", "));
    }
}

/// The same; what it refuses it refuses of tensors of their users' names.
tw::Tensor expressed(const OperatorState& state, const std::vector<tw::Tensor>& declared,
                     const std::vector<Tensor>& inputs) {
    try {
        return checked(state, declared);
    } catch (const Error&) {
        std::vector<tw::Tensor> named;
        for (size_t i = 0; i < inputs.size(); ++i)
            named.push_back(input(inputs[i].name().empty() ? input_name(i) : inputs[i].name(), inputs[i].type(),
                                  {inputs[i].shape().begin(), inputs[i].shape().end()}));
        checked(state, named);
        throw;
    }
}

/// The registry is asked in the place of the rule.
Program program_by(const ScheduleFunction& function, const std::vector<tw::Tensor>& declared, Backend& backend,
                   const std::source_location& where) {
    const std::vector<tw::Tensor> outputs = with_distinct_operations(declared);
    if (function.target<schedules::ChooseSchedule>())
        return backend.registry().select(outputs, backend.target(), {}, where).program;
    return build(function(outputs, backend.target()));
}

/// Of what tells calls apart: the way, and each operand's type, shape, and whether it requires a gradient.
size_t hash_of(bool is_backward, const std::vector<Tensor>& inputs) {
    size_t hash = is_backward;
    const auto mix = [&](uint64_t part) { hash = (hash ^ part) * 0x100000001b3 + (hash >> 32); };  // FNV-1a's prime
    for (const Tensor& input : inputs) {
        mix(2 * static_cast<uint64_t>(input.type()) + input.requires_grad());
        mix(input.shape().size());
        for (const int64_t extent : input.shape()) mix(static_cast<uint64_t>(extent));
    }
    return hash;
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
        const DeclaredIn declared(Scope::path());
        std::vector<tw::Tensor> symbols;
        for (const Tensor& input : inputs) symbols.push_back(capture->symbol_of(input));
        const tw::Tensor result = checked(*this, symbols);
        const bool is_constant = !grad_enabled() && !result.operation()->is_input();
        return capture->made(backend, is_constant ? stop_gradient(result) : result, name);
    }
    for (const Tensor& input : inputs) input.require_data();
    BuiltCall& call = known_call(false, inputs, [&] { return build_forward(inputs, where); });
    const BuiltCall::Result& result = call.results()[0];
    Tensor output(backend, result.type, result.shape, name);
    std::vector<Buffer> buffers;
    buffers.reserve(inputs.size() + 1);
    for (const Tensor& input : inputs) buffers.push_back(input.data());
    buffers.push_back(output.data());
    backend->run(call, buffers);
    return output;
}

template <class Build>
BuiltCall& OperatorState::known_call(bool is_backward, const std::vector<Tensor>& inputs, const Build& build) const {
    KnownCalls& known = inputs[0].backend()->calls_of(serial);
    const size_t hash = hash_of(is_backward, inputs);
    const auto is_like = [](const KnownCall::Operand& operand, const Tensor& input) {
        return operand.type == input.type() && operand.requires_grad == input.requires_grad() &&
               operand.shape == input.shape();
    };
    for (auto [each, end] = known.equal_range(hash); each != end; ++each)
        if (each->second.is_backward == is_backward && std::ranges::equal(each->second.operands, inputs, is_like))
            return each->second.call;
    std::vector<KnownCall::Operand> operands;
    for (const Tensor& input : inputs) operands.push_back({input.type(), input.shape(), input.requires_grad()});
    return known.emplace(hash, KnownCall{is_backward, std::move(operands), build()})->second.call;
}

BuiltCall OperatorState::build_forward(const std::vector<Tensor>& inputs, const std::source_location& where) const {
    Backend& backend = *inputs[0].backend();
    const Executable& executable = backend.built(key("forward", inputs), [&](const Target&) {
        CalledFrom caller(where);
        return program_by(forward, {expressed(*this, declare_inputs(inputs), inputs)}, backend, where);
    });
    const BufferNode& result = *executable.program().tree().outputs[0];
    for (const Expr& extent : declared_shape(result))
        if (!as_constant(extent))
            throw_error(Error, "{}: extent {} of the result is no constant; kernels are built for each shape", name,
                        to_string(extent));
    std::vector<std::string> names;
    for (size_t i = 0; i < inputs.size(); ++i) names.push_back(input_name(i));
    names.push_back(result.name);
    return {executable, std::move(names)};
}

/// Of the inputs, of "dy", and of the gradients of those that require one.
BuiltCall OperatorState::build_backward(const std::vector<Tensor>& inputs, const std::source_location& where) const {
    Backend& backend = *inputs[0].backend();
    const Executable& executable = backend.built(key("backward", inputs), [&](const Target&) {
        CalledFrom caller(where);
        std::vector<tw::Tensor> declared = declare_inputs(inputs), with_respect_to, outputs;
        std::vector<size_t> wanted;
        for (size_t i = 0; i < inputs.size(); ++i)
            if (inputs[i].requires_grad()) wanted.push_back(i);
        for (size_t i : wanted) with_respect_to.push_back(declared[i]);
        tw::Tensor output = expression(declared);
        tw::Tensor dy = input("dy", output.type(), {output.shape().begin(), output.shape().end()});
        std::vector<tw::Tensor> derived = gradients(output, dy, with_respect_to);
        for (size_t i = 0; i < derived.size(); ++i) outputs.push_back(own_output(derived[i], wanted[i], outputs));
        return program_by(backward, outputs, backend, where);
    });
    std::vector<std::string> names;
    for (size_t i = 0; i < inputs.size(); ++i) names.push_back(input_name(i));
    names.emplace_back("dy");
    for (const BufferRef& written : executable.program().tree().outputs) names.push_back(written->name);
    return {executable, std::move(names)};
}

std::vector<Tensor> OperatorState::gradients_of(const std::vector<Tensor>& inputs, const Buffer& adjoint,
                                                const std::source_location& where) const {
    BuiltCall& call = known_call(true, inputs, [&] { return build_backward(inputs, where); });
    std::vector<Buffer> buffers;
    for (const Tensor& input : inputs) buffers.push_back(input.data());
    buffers.push_back(adjoint);
    std::vector<Tensor> result(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
        const Tensor& input = inputs[i];
        if (!input.requires_grad()) continue;
        result[i] = Tensor(input.backend(), input.type(), input.shape(), "d_" + input.name());
        buffers.push_back(result[i].data());
    }
    inputs[0].backend()->run(call, buffers);
    return result;
}

Tensor OperatorState::link(const Tensor& output, std::shared_ptr<Node> creator) {
    for (const Tensor& input : creator->inputs) input.state_->is_read = true;
    output.state_->creator = std::move(creator);
    output.state_->requires_grad = true;
    return output;
}

namespace {

std::shared_ptr<const OperatorState> state_of(std::string name, Expression expression, ScheduleFunction forward,
                                              ScheduleFunction backward) {
    static std::atomic<uint64_t> serials = 0;
    auto state = std::make_shared<OperatorState>();
    state->name = std::move(name);
    state->serial = serials++;
    state->expression = std::move(expression);
    state->forward = forward ? std::move(forward) : schedules::choose_schedule;
    state->backward = backward ? std::move(backward) : schedules::choose_schedule;
    return state;
}

Tensor called(const std::shared_ptr<const OperatorState>& state, const std::vector<Tensor>& inputs,
              const std::source_location& where) {
    user_check(!inputs.empty(), where, "{}: no inputs; an operator needs at least one", state->name);
    bool requires_grad = false;
    for (const Tensor& input : inputs) {
        user_check(input.backend() == inputs[0].backend(), where,
                   "{}: '{}' and '{}' are of different backends; make both with one", state->name, inputs[0].name(),
                   input.name());
        requires_grad |= input.requires_grad();
    }
    ForwardScope::require_inputs(inputs, where);
    Tensor output = state->call(inputs, where);
    if (!requires_grad || !grad_enabled() || !is_float(output.type())) return output;
    return OperatorState::link(output, std::make_shared<Node>(Node{state, inputs, where}));
}

}  // namespace

std::shared_ptr<const OperatorState> OperatorVariants::of(const Attributes& attributes) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<const OperatorState>& state = known_[attributes.text()];
    if (!state)
        state = state_of(
            name,
            [who = name, expression = expression, attributes](const std::vector<tw::Tensor>& inputs) {
                const Attributes own = attributes.of(who);
                const tw::Tensor result = expression(inputs, own);
                own.require_all_read();
                return result;
            },
            forward, backward);
    return state;
}

Operator::Operator(std::string name, Expression expression, ScheduleFunction forward, ScheduleFunction backward)
    : state_(state_of(std::move(name), std::move(expression), std::move(forward), std::move(backward))) {}

Operator::Operator(std::string name, AttributedExpression expression, ScheduleFunction forward,
                   ScheduleFunction backward)
    : variants_(std::make_shared<OperatorVariants>()) {
    variants_->name = std::move(name);
    variants_->expression = std::move(expression);
    variants_->forward = std::move(forward);
    variants_->backward = std::move(backward);
    state_ = variants_->of({});
}

Tensor Operator::operator()(const std::vector<Tensor>& inputs, std::source_location where) const {
    return called(state_, inputs, where);
}

Tensor Operator::operator()(const std::vector<Tensor>& inputs, const Attributes& attributes,
                            std::source_location where) const {
    if (attributes.empty()) return called(state_, inputs, where);
    user_check(variants_, where, "{}: its expression takes inputs alone, and no attributes; the call has {}",
               state_->name, attributes.text());
    return called(variants_->of(attributes), inputs, where);
}

const Operator& operator_with(const std::string& name, const std::string& options, const Expression& expression) {
    static std::map<std::pair<std::string, std::string>, Operator> known;
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    return known.try_emplace({name, options}, name, expression).first->second;
}

}  // namespace tw::nn
