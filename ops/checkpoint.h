// Parts of a network whose activations are made again by the backward pass, not kept for it (Chen et al., Training Deep
// Nets with Sublinear Memory Cost, 2016).
//
//   h = nn::checkpoint(block, h);   // of each block, its input and its result are kept
#pragma once
#include <concepts>
#include <functional>
#include <source_location>
#include <type_traits>
#include <vector>

#include "dsl/schedule_options.h"
#include "ops/autograd.h"

namespace tw::nn {

/// f(inputs). In a step of nn::compile(), what f makes on the way to its result is made a second time where the
/// backward pass needs it, and has no memory between; parameters, tensors made before, and the result are kept. What
/// is made again has the same bits. One may stand inside of another one. Called by itself or recorded, it keeps no
/// tape: the way back calls f again, with what is overwritten or drawn inside (running moments, dropout) as it was the
/// first time. f and what it refers to live until then, and its second call has to do what the first one did. Throws
/// Error if `f` is no function or its result undefined, there are no inputs, and what f throws.
Tensor checkpoint(const std::function<Tensor(const std::vector<Tensor>& inputs)>& f, const std::vector<Tensor>& inputs,
                  TW_HERE);
/// The same of a function of several results. Called by itself, backward() calls f again once for all of them; a result
/// that the loss does not need costs nothing. Throws Error too if there are none.
std::vector<Tensor> checkpoint(const std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)>& f,
                               const std::vector<Tensor>& inputs, TW_HERE);
/// The same of one input: of a module, say. What f returns, a tensor or several.
template <std::invocable<const Tensor&> F>
std::invoke_result_t<const F&, const Tensor&> checkpoint(const F& f, const Tensor& input, TW_HERE) {
    using Made = std::invoke_result_t<const F&, const Tensor&>;
    return checkpoint(std::function<Made(const std::vector<Tensor>&)>([f](const auto& in) -> Made { return f(in[0]); }),
                      std::vector{input}, where);
}

}  // namespace tw::nn
