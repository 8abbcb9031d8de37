#include "ops/checkpoint.h"

#include "ops/capture.h"
#include "support/error.h"

namespace tw::nn {

Tensor checkpoint(const std::function<Tensor(const std::vector<Tensor>& inputs)>& f, const std::vector<Tensor>& inputs,
                  std::source_location where) {
    user_check(f != nullptr, where, "checkpoint: what to call is no function; give one of the inputs");
    user_check(!inputs.empty(), where, "checkpoint: no inputs; name the tensors that the function is of");
    const auto call = [&] {
        Tensor result = f(inputs);
        user_check(result.defined(), where, "checkpoint: the function returns an undefined tensor; return its result");
        return result;
    };
    Capture* capture = inputs[0].backend()->capture();
    return capture ? capture->not_kept(call) : call();
}

}  // namespace tw::nn
