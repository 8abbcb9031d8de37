// Differentiable functions of your own, by calls: what forward keeps, backward is given.
//
//   const nn::Function clipped_exp("clipped_exp",
//       [](nn::FunctionContext& context, const std::vector<nn::Tensor>& in) {
//           const nn::Tensor y = nn::exp(nn::clamp(in[0], -10, 10));
//           context.save({y});
//           return std::vector{y};
//       },
//       [](const nn::FunctionContext& context, const std::vector<nn::Tensor>& dy) {
//           return std::vector{dy[0] * context.saved()[0]};   // also where x was clipped
//       });
//   nn::Tensor y = clipped_exp({x})[0];
#pragma once
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "ops/autograd.h"

namespace tw::nn {

/// What a call of a function keeps for its gradient.
class FunctionContext {
public:
    /// In forward, once: these are kept: inputs, results, and what lies between. Throws Error if one is undefined, and
    /// if it has been called before.
    void save(const std::vector<Tensor>& tensors, TW_HERE);
    /// In backward: what was saved, in that order, as it is now: nothing is copied.
    const std::vector<Tensor>& saved() const { return saved_; }
    /// Whether anybody asks for the gradient of this input: where not, what backward returns for it is not looked at.
    /// Throws Error if there is no input of this number.
    bool needs_gradient(size_t input, TW_HERE) const;

private:
    friend class Function;
    friend struct FunctionCall;
    std::vector<Tensor> saved_;
    bool has_saved_ = false;
    std::vector<bool> needs_;
};

/// The results of tensors. What is called inside is not on the tape.
using FunctionForward = std::function<std::vector<Tensor>(FunctionContext& context, const std::vector<Tensor>& inputs)>;
/// The gradients of the inputs, in their order, of their types and shapes; an undefined one is zeros. `gradients` are
/// those of the results, of their types and shapes: zeros of what the loss does not need, undefined of what is no
/// float. What it returns becomes the gradient, and is not copied.
using FunctionBackward =
    std::function<std::vector<Tensor>(const FunctionContext& context, const std::vector<Tensor>& gradients)>;

/// A function with a gradient of its own, made of calls, of several results. By calls, recorded and in a step of
/// nn::compile(), where both are called once, while the step is written down. Gradients of gradients are derived of the
/// calls of backward: with gradients(.., {.create_graph = true}) these are on the tape. An operator whose expression
/// has with_gradient() is the same for one result that is declared.
class Function {
public:
    /// Throws Error if one of them is no function.
    Function(std::string name, FunctionForward forward, FunctionBackward backward, TW_HERE);

    /// Calls forward. Results are on the tape if an input requires a gradient, and they are floats. Throws Error
    /// without inputs or results, if one is undefined or of another backend, if a call in forward reads, or forward
    /// returns, a tensor that requires a gradient and is no input, a parameter of a module, say, which would get none
    /// (where calls are on the tape: not under NoGrad), and what forward throws. The way back
    /// throws Error, with the line of this call, unless backward returns a gradient for each input, of its type and
    /// shape, and, with create_graph, if floats were saved that are neither inputs nor results, since what their own
    /// gradients are nobody says.
    std::vector<Tensor> operator()(const std::vector<Tensor>& inputs, TW_HERE) const;

private:
    std::string name_;
    FunctionForward forward_;
    FunctionBackward backward_;
};

}  // namespace tw::nn
