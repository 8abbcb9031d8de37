#include "ops/autograd.h"

#include <fmt/ranges.h>

#include "support/error.h"

namespace tw::nn {
namespace {

int64_t bytes_of_shape(Type type, const std::vector<int64_t>& shape) {
    int64_t elements = 1;
    for (int64_t extent : shape) elements *= extent;
    return elements * bytes_of(type);
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
    state_->symbol = state_->unhooked = {};
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

void Tensor::upload(const PinnedBuffer& from, const Stream& stream) const {
    require_data();
    backend()->device()->copy(data(), from, stream);
}

void Tensor::require_data() const {
    if (!data())
        throw_error(Error,
                    "'{}' is made by a step that was captured, and has no data; return it from the function that "
                    "nn::compile() calls, and read it after run()",
                    name());
}

const Tensor& Tensor::set_requires_grad() const {
    if (!is_float(type()))
        throw_error(Error, "'{}' is {}: gradients are computed for floats only", name(), name_of(type()));
    state_->requires_grad = true;
    return *this;
}

Tensor::Tensor(std::shared_ptr<Backend> backend, const HostArray& host, const std::string& name)
    : Tensor(std::move(backend), host.type, host.shape, name) {
    copy_from_host(host);
}

}  // namespace tw::nn
