// What forward of a function with a gradient of its own (function.h) reads besides its inputs.
#pragma once
#include <source_location>
#include <string>
#include <vector>

#include "ops/autograd.h"

namespace tw::nn {

/// While it lives, calls of this thread are those of a function's forward.
class [[nodiscard]] ForwardScope {
public:
    /// Both outlive it.
    ForwardScope(const std::string& name, const std::vector<Tensor>& inputs);
    ~ForwardScope();
    ForwardScope(const ForwardScope&) = delete;
    ForwardScope& operator=(const ForwardScope&) = delete;

    /// Throws Error if a forward is under way and one of these, which it reads or returns, requires a gradient and is
    /// none of its inputs: backward returns gradients of these alone.
    static void require_inputs(const std::vector<Tensor>& tensors, std::source_location where);

private:
    const std::string& name_;
    const std::vector<Tensor>& inputs_;
    const ForwardScope* around_;
};

}  // namespace tw::nn
