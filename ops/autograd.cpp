#include "ops/autograd.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/ranges.h>

#include "ops/capture.h"
#include "ops/operator.h"
#include "schedules/choose_in_place.h"
#include "support/error.h"

namespace tw::nn {
namespace {

int64_t bytes_of_shape(Type type, const std::vector<int64_t>& shape) {
    int64_t elements = 1;
    for (int64_t extent : shape) elements *= extent;
    return elements * bytes_of(type);
}

/// grad += part.
void accumulate(const Tensor& grad, const Tensor& part) {
    Backend& backend = *grad.backend();
    const Executable& add = backend.built("accumulate " + shape_text(grad.shape()), [&](const Target& target) {
        Shape shape(grad.shape().begin(), grad.shape().end());
        tw::Tensor old = input("grad", f32, shape), term = input("part", f32, shape);
        tw::Tensor total = compute("total", shape, [&](const std::vector<Expr>& at) {
            return old.read({at.begin(), at.end()}) + term.read({at.begin(), at.end()});
        });
        return schedules::choose_in_place({{total}, {{total, old}}}, target);
    });
    backend.run(add, {.buffers = {{"grad", grad.data()}, {"part", part.data()}}, .sizes = {}, .scalars = {}});
}

/// Computed tensors that the loss depends on, producers first.
void visit_tape(const Tensor& tensor, std::set<const Node*>& seen, std::vector<Tensor>& order) {
    const Node* node = tensor.creator().get();
    if (!node || !seen.insert(node).second) return;
    if (node->released)
        throw_error(Error,
                    "backward: the call that made '{}' has been released by an earlier backward(); compute it again",
                    tensor.name());
    for (const Tensor& input : node->inputs) visit_tape(input, seen, order);
    order.push_back(tensor);
}

bool holds(const std::vector<Tensor>& tensors, const Tensor& tensor) {
    return std::ranges::any_of(tensors, [&](const Tensor& each) { return each.same(tensor); });
}

void release(const std::vector<Tensor>& computed) {
    for (const Tensor& output : computed) {
        output.creator()->inputs.clear();
        output.creator()->released = true;
    }
}

}  // namespace

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

Tensor::Tensor(std::shared_ptr<Backend> backend, Type type, std::vector<int64_t> shape, const std::string& name)
    : state_(std::make_shared<State>()) {
    state_->data = backend->device()->allocate(bytes_of_shape(type, shape), name);
    state_->backend = std::move(backend);
    state_->type = type;
    state_->shape = std::move(shape);
    state_->name = name;
}

Tensor::Tensor(std::shared_ptr<Backend> backend, const tw::Tensor& symbol, const std::string& name)
    : state_(std::make_shared<State>()) {
    state_->backend = std::move(backend);
    state_->type = symbol.type();
    for (const Expr& extent : symbol.shape()) state_->shape.push_back(require_constant(extent));
    state_->name = name;
    state_->symbol = symbol;
}

const tw::Tensor& Tensor::symbol() const { return state().symbol; }
void Tensor::set_data(const Buffer& data) const {
    if (state_->data) throw_error(Error, "'{}' has memory already; give it to what a captured step makes", name());
    state_->data = data;
    state_->symbol = {};
    state_->creator = nullptr;
}

const Tensor::State& Tensor::state() const {
    if (!state_)
        throw_error(Error, "an nn::Tensor is undefined; give one that was made, of data or by a call of an operator");
    return *state_;
}

const std::shared_ptr<Backend>& Tensor::backend() const { return state().backend; }
Type Tensor::type() const { return state().type; }
const std::vector<int64_t>& Tensor::shape() const { return state().shape; }
const std::string& Tensor::name() const { return state().name; }
const Buffer& Tensor::data() const { return state().data; }
bool Tensor::requires_grad() const { return state().requires_grad; }
const Tensor& Tensor::grad() const { return state().grad; }
const std::shared_ptr<Node>& Tensor::creator() const { return state().creator; }

HostArray Tensor::to_host() const {
    if (backend()->recording())
        throw_error(Error, "'{}' is read while a step is recorded: nothing has run yet; read it after the graph",
                    name());
    require_data();
    HostArray host = host_array(type(), shape());
    data().copy_to_host(host.bytes.data());
    return host;
}

void Tensor::copy_from_host(const HostArray& host) const {
    if (host.type != type() || host.shape != shape())
        throw_error(Error, "'{}' is {} {}, the host array {} {}; give one of the same type and shape", name(),
                    name_of(type()), shape_text(shape()), name_of(host.type), shape_text(host.shape));
    require_data();
    data().copy_from_host(host.bytes.data());
}

void Tensor::require_data() const {
    if (!data())
        throw_error(Error,
                    "'{}' is made by a step that was captured, and has no data; return it from the function that "
                    "nn::compile() calls, and read it after run()",
                    name());
}

const Tensor& Tensor::set_requires_grad() const {
    if (type() != f32)
        throw_error(Error, "'{}' is {}: gradients are computed for f32 tensors only", name(), name_of(type()));
    state_->requires_grad = true;
    return *this;
}

Tensor::Tensor(std::shared_ptr<Backend> backend, const HostArray& host, const std::string& name)
    : Tensor(std::move(backend), host.type, host.shape, name) {
    copy_from_host(host);
}

void backward(const Tensor& loss) {
    if (loss.type() != f32 || !loss.shape().empty())
        throw_error(Error, "backward: the loss must be an f32 scalar, '{}' is {} {}; reduce it first", loss.name(),
                    name_of(loss.type()), shape_text(loss.shape()));
    if (!loss.creator())
        throw_error(Error,
                    "backward: '{}' depends on no tensor that requires a gradient; call set_requires_grad() on one",
                    loss.name());
    std::set<const Node*> seen;
    std::vector<Tensor> order;
    visit_tape(loss, seen, order);
    if (Capture* capture = loss.backend()->capture()) {
        std::vector<Tensor> leaves;
        for (const Tensor& output : order)
            for (const Tensor& input : output.creator()->inputs)
                if (input.requires_grad() && !input.creator() && !holds(leaves, input)) leaves.push_back(input);
        const std::vector<Tensor> found = capture->gradients_of(loss, leaves);
        for (size_t k = 0; k < leaves.size(); ++k) leaves[k].state_->grad = found[k];
        return release(order);
    }
    std::map<const void*, Tensor> grads;  // by tensor
    for (auto output = order.rbegin(); output != order.rend(); ++output) {
        Node& node = *output->creator();
        const Buffer& adjoint = output->same(loss) ? loss.backend()->one() : grads.at(output->state_.get()).data();
        std::vector<Tensor> parts = node.operation->gradients_of(node.inputs, adjoint, node.where);
        for (size_t i = 0; i < parts.size(); ++i) {
            if (!parts[i].defined()) continue;
            auto [place, first] = grads.emplace(node.inputs[i].state_.get(), parts[i]);
            if (!first) accumulate(place->second, parts[i]);
            if (!node.inputs[i].creator()) node.inputs[i].state_->grad = place->second;
        }
        grads.erase(output->state_.get());
    }
    release(order);
}

}  // namespace tw::nn
