#include "ops/tape/forward_scope.h"

#include <algorithm>
#include <utility>

#include "support/error.h"

namespace tw::nn {
namespace {

thread_local const ForwardScope* forward_under_way = nullptr;

}  // namespace

ForwardScope::ForwardScope(const std::string& name, const std::vector<Tensor>& inputs)
    : name_(name), inputs_(inputs), around_(std::exchange(forward_under_way, this)) {}
ForwardScope::~ForwardScope() { forward_under_way = around_; }

void ForwardScope::require_inputs(const std::vector<Tensor>& tensors, std::source_location where) {
    if (!forward_under_way) return;
    const std::vector<Tensor>& inputs = forward_under_way->inputs_;
    for (const Tensor& tensor : tensors) {
        const bool has_way_back = !tensor.defined() || !tensor.requires_grad() ||
                                  std::ranges::any_of(inputs, [&](const Tensor& each) { return each.same(tensor); });
        user_check(has_way_back, where,
                   "{}: forward uses '{}' {} {}, which requires a gradient and is none of the inputs, so that it would "
                   "get none; give it as another input, for which backward returns a gradient, or, if it is a "
                   "constant, use what nn::clone() makes of it under NoGrad, in front of the call",
                   forward_under_way->name_, tensor.name(), name_of(tensor.type()), shape_text(tensor.shape()));
    }
}

}  // namespace tw::nn
