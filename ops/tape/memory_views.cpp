#include "ops/tape/memory_views.h"

#include <fmt/ranges.h>

#include "ops/operator.h"
#include "ops/tape/forward_scope.h"
#include "ops/tape/tape.h"
#include "schedules/views.h"
#include "support/error.h"

namespace tw::nn {
namespace {

constexpr uint64_t Alignment = 16;  // bytes: of the widest accesses of kernels, and of tensor maps

/// Gradients of all elements, in the shape of x. What is the backend's own, the 1 of a loss, is copied: a leaf's
/// gradient is the user's.
Tensor in_shape(const Tensor& gradient, const std::vector<int64_t>& shape, std::source_location where) {
    const bool is_one = gradient.data().pointer() == gradient.backend()->one().pointer();
    if (!is_one)
        if (const auto view = all_in_memory(gradient, "reshape", shape, where)) return *view;
    return operator_with("reshape", fmt::format("{}", shape), [shape](const std::vector<tw::Tensor>& in) {
        return schedules::reshape("reshaped", in[0], shape);
    })({gradient}, where);
}

}  // namespace

std::optional<Tensor> view_in_memory(const Tensor& x, const MemoryView& view, const ViewGradient& back,
                                     std::source_location where) {
    ForwardScope::require_inputs({x}, where);
    if (x.backend()->capture()) return {};
    x.require_data(where);
    int64_t bytes = bytes_of(x.type());
    for (const int64_t extent : view.shape) bytes *= extent;
    const int64_t offset = view.first * bytes_of(x.type());
    const Buffer& whole = Tape::memory_of(x);
    if (offset != 0 && (whole.pointer() + static_cast<uint64_t>(offset)) % Alignment != 0) return {};
    const Tensor result = Tape::in_memory_of(x, whole.view(offset, bytes), view.shape, view.name);
    if (!x.requires_grad() || !grad_enabled()) return result;
    const auto node = std::make_shared<Node>(Node{{}, {x}, where});
    node->gradient_of_view = back;
    return OperatorState::link(result, node);
}

std::optional<Tensor> all_in_memory(const Tensor& x, const std::string& name, const std::vector<int64_t>& shape,
                                    std::source_location where) {
    const ViewGradient back = [own = x.shape(), where](const Tensor& gradient) {
        return in_shape(gradient, own, where);
    };
    return view_in_memory(x, {name, 0, shape}, back, where);
}

void check_apart(const Tensor& overwritten, const Tensor& other) {
    if (overwritten.shares_memory(other))
        throw_error(Error,
                    "'{}' {} is overwritten by the step that is captured, and lies in memory that '{}' {} is in, which "
                    "it uses, too; make views inside of the function, or give it a clone()",
                    overwritten.name(), shape_text(overwritten.shape()), other.name(), shape_text(other.shape()));
}

}  // namespace tw::nn
