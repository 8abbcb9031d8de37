#include "ops/tape/tape.h"

#include <atomic>
#include <iterator>
#include <set>
#include <utility>

#include "dsl/differentiate.h"
#include "ops/capture.h"
#include "ops/tape/made_again.h"
#include "support/error.h"

namespace tw::nn {
namespace {

thread_local bool is_grad_enabled = true;
std::atomic<uint64_t> num_backward_calls = 0;

/// Throws Error if the tensor's call has been released.
void require_tape(const Tensor& tensor, const char* who, std::source_location where) {
    user_check(!tensor.creator()->released, where,
               "{}: the call that made '{}' has been released by an earlier backward(); compute it again, or have "
               "that one keep the tape, with {{.retain = true}}",
               who, tensor.name());
}

Tensor call_hooks(const GradientHooks& hooks, const std::string& name, Tensor gradient) {
    for (const auto& [number, hook] : std::map(hooks.calls)) {  // a copy: hooks may remove themselves
        const Tensor next = hook(gradient);
        if (!next.defined() || next.type() != gradient.type() || next.shape() != gradient.shape())
            throw_error(Error,
                        "on_gradient of '{}': the hook returns {}, the gradient is {} {}; return one of its type and "
                        "shape, say what the hook was given",
                        name,
                        next.defined() ? fmt::format("{} {}", name_of(next.type()), shape_text(next.shape()))
                                       : "an undefined tensor",
                        name_of(gradient.type()), shape_text(gradient.shape()));
        gradient = next;
    }
    return gradient;
}

/// All that the node holds, to the end of `open`.
void move_inputs(Node& node, std::vector<Tensor>& open) {
    const auto move = [&](std::vector<Tensor>& inputs) {
        open.insert(open.end(), std::make_move_iterator(inputs.begin()), std::make_move_iterator(inputs.end()));
        inputs.clear();
    };
    move(node.inputs);
    if (node.again && node.again.use_count() == 1) move(node.again->inputs);
}

/// A view of the symbol, whose gradient is what the hooks make of it.
tw::Tensor hooked(const tw::Tensor& symbol, const std::string& name, const std::shared_ptr<GradientHooks>& hooks,
                  const std::weak_ptr<Backend>& backend) {
    const tw::Tensor view =
        compute(name, {symbol.shape().begin(), symbol.shape().end()}, [&](const std::vector<Expr>& at) {
            return symbol.read({at.begin(), at.end()});
        });
    return with_gradient(view, {symbol}, [=](const tw::Tensor&, const tw::Tensor& adjoint) {
        const std::shared_ptr<Backend> alive = backend.lock();
        const Tensor made = call_hooks(*hooks, name, Tensor(alive, adjoint, "d_" + name));
        return std::vector{alive->capture()->symbol_of(made)};
    });
}

}  // namespace

HookHandle Tensor::on_gradient(GradientHook hook) const {
    if (!requires_grad())
        throw_error(Error, "on_gradient: '{}' requires no gradient; register hooks of what has one", name());
    if (!hook) throw_error(Error, "on_gradient of '{}': the hook is no function", name());
    if (!state_->hooks) state_->hooks = std::make_shared<GradientHooks>();
    if (symbol().defined() && creator() && !state_->unhooked.defined()) {
        if (state_->is_read)
            throw_error(Error,
                        "on_gradient: '{}' is made by a step that is captured, and has been read there; register the "
                        "hook before other calls read it",
                        name());
        Capture* capture = backend()->capture();
        if (!capture) require_data();
        state_->unhooked = symbol();
        state_->symbol = capture->made(backend(), hooked(symbol(), name(), state_->hooks, backend()), name()).symbol();
    }
    GradientHooks& hooks = *state_->hooks;
    if (is_older_than_call_again(*this)) return {};
    hooks.calls.emplace(hooks.next, std::move(hook));
    return {state_->hooks, hooks.next++};
}

void HookHandle::remove() const {
    if (const std::shared_ptr<GradientHooks> hooks = hooks_.lock()) hooks->calls.erase(number_);
}

std::vector<Tensor> Tape::behind(const Tensor& loss, const char* who, std::source_location where) {
    user_check(loss.type() == f32 && loss.shape().empty(), where,
               "{}: the loss must be an f32 scalar, '{}' is {} {}; reduce it first", who, loss.name(),
               name_of(loss.type()), shape_text(loss.shape()));
    user_check(loss.creator() || !loss.state().has_run, where,
               "{0}: '{1}' is what a compiled step has made, which leaves no tape; call {0} in the function that is "
               "compiled: its gradients are a part of the step then",
               who, loss.name());
    user_check(loss.creator(), where,
               "{}: '{}' depends on no tensor that requires a gradient; call set_requires_grad() on one, and make the "
               "loss of it outside of NoGrad",
               who, loss.name());
    return since(0, loss, who, where);
}

std::vector<Tensor> Tape::since(uint64_t first, const Tensor& last, const char* who, std::source_location where) {
    struct Visit {
        Tensor tensor;
        size_t next = 0;  // of its inputs
    };
    std::set<const Node*> seen{last.creator().get()};
    std::vector<Tensor> order;
    std::vector<Visit> open{{last}};
    while (!open.empty()) {
        const Tensor tensor = open.back().tensor;
        require_tape(tensor, who, where);
        if (open.back().next == tensor.creator()->inputs.size()) {
            order.push_back(tensor);
            open.pop_back();
            continue;
        }
        const Tensor& input = tensor.creator()->inputs[open.back().next++];
        const bool is_made = input.creator() && input.creator()->number >= first;
        if (is_made && seen.insert(input.creator().get()).second) open.push_back({input});
    }
    return order;
}

std::vector<Tensor> Tape::leaves_of(const std::vector<Tensor>& computed) {
    std::set<const void*> seen;
    std::vector<Tensor> leaves;
    for (const Tensor& output : computed)
        for (const Tensor& input : output.creator()->inputs)
            if (input.requires_grad() && !input.creator() && seen.insert(id(input)).second) leaves.push_back(input);
    return leaves;
}

void Tape::release(const std::vector<Tensor>& computed) {
    for (const Tensor& output : computed) {
        output.creator()->inputs.clear();
        output.creator()->again = nullptr;
        output.creator()->function = nullptr;
        output.creator()->released = true;
    }
}

std::vector<Tensor> Tape::read_by(const std::vector<Tensor>& computed) {
    std::set<const void*> seen;
    std::vector<Tensor> read;
    for (const Tensor& output : computed) seen.insert(id(output));
    for (const Tensor& output : computed)
        for (const Tensor& input : output.creator()->inputs)
            if (input.requires_grad() && seen.insert(id(input)).second) read.push_back(input);
    return read;
}

Tensor Tape::in_memory_of(const Tensor& tensor, const Buffer& part, const std::vector<int64_t>& shape,
                          const std::string& name) {
    Tensor result;
    result.state_ = std::make_shared<Tensor::State>();
    result.state_->backend = tensor.backend();
    result.state_->type = tensor.type();
    result.state_->shape = shape;
    result.state_->name = name;
    result.state_->data = part;
    result.state_->has_run = tensor.state_->has_run;
    return result;
}

Tensor Tape::part_of(const Tensor& whole, int64_t first, const std::vector<int64_t>& shape, const std::string& name) {
    int64_t bytes = bytes_of(whole.type());
    for (const int64_t extent : shape) bytes *= extent;
    Tensor result = in_memory_of(whole, whole.data().view(first * bytes_of(whole.type()), bytes, name), shape, name);
    result.state_->whole = whole;
    result.state_->first = first;
    return result;
}

void Tape::move_into(const Tensor& leaf, const Tensor& whole, int64_t first) {
    const Tensor part = part_of(whole, first, leaf.shape(), leaf.name());
    leaf.backend()->device()->copy(part.data(), leaf.data());
    leaf.state_->data = part.data();
    leaf.state_->whole = whole;
    leaf.state_->first = first;
}

Tensor Tape::without_tape(const Tensor& tensor) {
    return in_memory_of(tensor, memory_of(tensor), tensor.shape(), tensor.name());
}

Tensor Tape::one(const std::shared_ptr<Backend>& backend) {
    Tensor one;
    one.state_ = std::make_shared<Tensor::State>();
    one.state_->backend = backend;
    one.state_->name = "one";
    one.state_->data = backend->one();
    return one;
}

Tensor Tape::finished(const Tensor& tensor, const Tensor& gradient) {
    const std::shared_ptr<GradientHooks>& hooks = tensor.state_->hooks;
    return hooks ? call_hooks(*hooks, tensor.name(), gradient) : gradient;
}

Tensor Tape::unhooked(const Tensor& tensor) {
    const tw::Tensor& before = tensor.state_->unhooked;
    return before.defined() ? Tensor(tensor.backend(), before, tensor.name()) : tensor;
}

void Tape::take_inputs(Tensor& tensor, std::vector<Tensor>& open) {
    if (!tensor.state_ || tensor.state_.use_count() > 1 || tensor.creator().use_count() != 1) return;
    move_inputs(*tensor.creator(), open);
}

uint64_t Tape::num_backward() { return num_backward_calls; }
void Tape::count_backward() { ++num_backward_calls; }

uint64_t Node::next_number() {
    static std::atomic<uint64_t> numbers = 0;
    return numbers++;
}

Node::~Node() {
    std::vector<Tensor> open;
    move_inputs(*this, open);
    while (!open.empty()) {
        Tensor tensor = std::move(open.back());
        open.pop_back();
        Tape::take_inputs(tensor, open);
    }
}

NoGrad::NoGrad() : before_(std::exchange(is_grad_enabled, false)) {}
NoGrad::~NoGrad() { is_grad_enabled = before_; }
GradScope::GradScope(bool is_enabled) : before_(std::exchange(is_grad_enabled, is_enabled)) {}
GradScope::~GradScope() { is_grad_enabled = before_; }
bool grad_enabled() { return is_grad_enabled; }

}  // namespace tw::nn
