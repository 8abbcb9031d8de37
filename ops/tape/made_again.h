// Parts of a network that the way back makes again, with their tape (checkpoint.h).
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <source_location>
#include <vector>

#include "ops/autograd.h"

namespace tw::nn {

/// What has been called, and what its calls of made_once() have made.
struct MadeAgain {
    std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)> f;
    std::vector<Tensor> inputs;
    std::vector<std::vector<Tensor>> once = {};
    std::vector<const Node*> nodes = {};  ///< of the results; nullptr of those that the call has not made

    /// f(inputs), the first time.
    std::vector<Tensor> call();
    /// f(inputs) again: made_once() gives what it gave then, in its order. On the tape.
    std::vector<Tensor> call_again() const;
};

/// What `run` makes of tensors that it overwrites: numbers that are drawn, running moments. A part that is made again
/// gets what was made the first time, and nothing is overwritten twice. Throws Error if there was none then.
std::vector<Tensor> made_once(const std::function<std::vector<Tensor>()>& run);

/// Whether a part is being made again that had the tensor before it began, so that it has got the part's hooks already.
bool is_older_than_call_again(const Tensor& tensor);

/// All that these have been made of since the call of this number, producers first.
std::vector<Tensor> made_since(uint64_t first, const std::vector<Tensor>& results, const char* who,
                               std::source_location where);

/// Results of one call and what they are once that has been made again.
struct ResultsAgain {
    std::vector<Tensor> computed;  ///< all between the call's inputs and `results`, these included, producers first
    std::vector<Tensor> results;   ///< in the order of the outputs
};
/// Of outputs of one call. Those of tensors that have been frozen since alone are not computed. Throws Error if its
/// results are of other tensors than before, but for frozen ones, or of other shapes.
ResultsAgain made_again(const std::vector<Tensor>& outputs, const char* who);

/// Of a result of a checkpoint or of a function with a gradient of its own: what tells its call from others. nullptr of
/// all else.
const void* call_of(const Node& node);
/// Those of these computed tensors that are results of such calls, by call, in their order.
std::map<const void*, std::vector<Tensor>> results_of_calls(const std::vector<Tensor>& computed);

}  // namespace tw::nn
