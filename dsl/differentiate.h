// Differentiation: from tensors to tensors that compute their gradients, ordinary operations like any other.
#pragma once
#include <functional>
#include <memory>
#include <ranges>
#include <source_location>
#include <vector>

#include "dsl/tensor.h"

namespace tw {

/// The gradients of a number L with respect to `inputs`, from `adjoint` = dL/d output: one tensor for each input, of
/// the input's shape and type, zeros where the output does not depend on it. `inputs` may be computed tensors.
/// Storage types are accumulated in f32 and cast once, at the end. docs/language.md gives the conventions at kinks.
/// Throws Error if the shapes of output and adjoint differ, if a type is no float, if the way from an input to the
/// output holds a reduction without a derivative, or goes through a tensor of with_gradient that does not list it.
std::vector<Tensor> gradients(const Tensor& output, const Tensor& adjoint, const std::vector<Tensor>& inputs,
                              std::source_location where = std::source_location::current());

/// An input whose extents a range tells, as an adjoint has those of its output: input("dc", f32, c.shape()).
template <std::ranges::input_range Extents>
requires(std::convertible_to<std::ranges::range_reference_t<const Extents>, Extent> && !std::same_as<Extents, Shape>)
Tensor input(const std::string& name, Type type, const Extents& extents,
             std::source_location where = std::source_location::current()) {
    return input(name, type, Shape(std::ranges::begin(extents), std::ranges::end(extents)), {}, where);
}

/// The adjoints of a rule's inputs, in their order, of their shapes; an undefined tensor stands for zeros. `adjoint`
/// has the output's type, f32 if that is a storage type.
using GradientFunction = std::function<std::vector<Tensor>(const Tensor& output, const Tensor& adjoint)>;

/// What replaces differentiation through a tensor's operation and all it is computed from, down to `inputs`.
struct GradientRule {
    std::vector<Tensor> inputs;
    GradientFunction function;
    std::source_location where;
};

/// The same computation with a gradient of the user's own: `function` gives the adjoints of `inputs`, no others
/// receive one through this tensor, and gradients() refuses to make any of others that it is computed from: what counts
/// as constant is listed, and has an undefined adjoint. Of a tuple, this component alone. Throws Error if the tensor is an input.
Tensor with_gradient(const Tensor& tensor, const std::vector<Tensor>& inputs, const GradientFunction& function,
                     std::source_location where = std::source_location::current());
/// The same computation, taken as a constant by gradients().
Tensor stop_gradient(const Tensor& tensor, std::source_location where = std::source_location::current());

}  // namespace tw
