// Parts of a network that the way back makes again, with their tape (checkpoint.h).
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "ops/autograd.h"

namespace tw::nn {

/// What has been called, and what its calls of made_once() have made.
struct MadeAgain {
    std::function<Tensor(const std::vector<Tensor>& inputs)> f;
    std::vector<Tensor> inputs;
    std::vector<std::vector<Tensor>> once = {};

    /// f(inputs), the first time.
    Tensor call();
    /// f(inputs) again: made_once() gives what it gave then, in its order. On the tape.
    Tensor call_again() const;
};

/// What `run` makes of tensors that it overwrites: numbers that are drawn, running moments. A part that is made again
/// gets what was made the first time, and nothing is overwritten twice. Throws Error if there was none then.
std::vector<Tensor> made_once(const std::function<std::vector<Tensor>()>& run);

/// Whether a part is being made again that had the tensor before it began, so that it has got the part's hooks already.
bool is_older_than_call_again(const Tensor& tensor);

/// What has been made between the node's inputs and its output, made again, producers first; the last one is the
/// output. Throws Error if that is of other tensors than the node, or of another shape.
std::vector<Tensor> made_again(const Tensor& output, const char* who);

}  // namespace tw::nn
