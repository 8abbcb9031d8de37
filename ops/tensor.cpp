#include "ops/tensor.h"

#include <fmt/ranges.h>

#include "ops/autograd.h"
#include "ops/capture.h"
#include "runtime/driver/no_host_access.h"
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
    if (Capture* capture = state_->backend->capture()) capture->note_allocated(*this);
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
void Tensor::set_data(const Buffer& data, std::shared_ptr<const bool> has_run) const {
    if (state_->data) throw_error(Error, "'{}' has memory already; give it to what a captured step makes", name());
    state_->data = data;
    state_->has_run = std::move(has_run);
    state_->symbol = state_->unhooked = {};
    state_->creator = nullptr;
    state_->requires_grad = false;
}

const Tensor::State& Tensor::state() const {
    if (!state_)
        throw_error(Error,
                    "an nn::Tensor is undefined; give one that was made, of data or by a call of an operator; a "
                    "gradient is there behind backward()");
    return *state_;
}

const std::shared_ptr<Backend>& Tensor::backend() const { return state().backend; }
Type Tensor::type() const { return state().type; }
const std::vector<int64_t>& Tensor::shape() const { return state().shape; }
const std::string& Tensor::name() const { return state().name; }
const Buffer& Tensor::data() const {
    if (state().is_early()) require_data();
    return state().data;
}
bool Tensor::requires_grad() const { return state().requires_grad; }
const Tensor& Tensor::grad() const { return state().grad; }
const std::shared_ptr<Node>& Tensor::creator() const { return state().creator; }

bool Tensor::shares_memory(const Tensor& other) const {
    const Buffer &one = state().data, &two = other.state().data;
    if (!one || !two || one.device() != two.device()) return false;
    return one.pointer() < two.pointer() + static_cast<uint64_t>(two.bytes()) &&
           two.pointer() < one.pointer() + static_cast<uint64_t>(one.bytes());
}

HostArray Tensor::to_host(std::source_location where) const {
    require_data(where);
    backend()->refuse_in_step(fmt::format("'{}' is read", name()), "read it behind run()", where);
    HostArray host = host_array(type(), shape());
    data().copy_to_host(host.bytes.data(), where);
    return host;
}

void Tensor::copy_from_host(const HostArray& host, std::source_location where) const {
    user_check(host.type == type() && host.shape == shape(), where,
               "'{}' is {} {}, the host array {} {}; give one of the same type and shape", name(), name_of(type()),
               shape_text(shape()), name_of(host.type), shape_text(host.shape));
    require_data(where);
    if (!NoHostAccess::is_new(*data().device(), data().pointer(), data().bytes()))
        backend()->refuse_in_step(fmt::format("'{}' is overwritten from the host", name()), "write it before run()",
                                  where);
    data().copy_from_host(host.bytes.data(), where);
}

void Tensor::upload(const PinnedBuffer& from, const Stream& stream, std::source_location where) const {
    require_data(where);
    backend()->refuse_in_step(fmt::format("'{}' is uploaded to", name()), "upload before run()", where);
    backend()->device()->copy(data(), from, stream, where);
}

bool Tensor::State::is_early() const { return has_run && !*has_run && !backend->recording() && !backend->capture(); }

std::string Tensor::why_no_data() const {
    if (state().is_early())
        return fmt::format("'{}' is a result of a compiled step that has not run; call run() before it is read",
                           name());
    if (state().data) return "";
    return fmt::format(
        "'{}' is made by a step that was captured, and has no data; return it from the function that nn::compile() "
        "calls, and read it after run()",
        name());
}

void Tensor::require_data() const {
    if (const std::string why = why_no_data(); !why.empty()) throw_error(Error, "{}", why);
}

void Tensor::require_data(std::source_location where) const {
    if (const std::string why = why_no_data(); !why.empty()) user_error(where, "{}", why);
}

const Tensor& Tensor::set_requires_grad(bool on, std::source_location where) const {
    user_check(!on || is_float(type()), where, "'{}' is {}: gradients are computed for floats only", name(),
               name_of(type()));
    user_check(on || !creator(), where,
               "set_requires_grad: '{}' is made by a call; freeze what that reads, or call under NoGrad", name());
    state_->requires_grad = on;
    if (!on) state_->grad = {};
    return *this;
}

Tensor::Tensor(std::shared_ptr<Backend> backend, const HostArray& host, const std::string& name)
    : Tensor(std::move(backend), host.type, host.shape, name) {
    state_->data.copy_from_host(host.bytes.data());  // new, it may begin so in a step, too
}

}  // namespace tw::nn
