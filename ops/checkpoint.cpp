#include "ops/checkpoint.h"

#include "ops/capture.h"
#include "ops/operator.h"
#include "ops/tape/made_again.h"
#include "ops/tape/tape.h"
#include "support/error.h"

namespace tw::nn {
namespace {

/// f(inputs), whose tape goes as soon as it is known what the result is made of.
Tensor called_checkpoint(const std::function<Tensor(const std::vector<Tensor>& inputs)>& f,
                         const std::vector<Tensor>& inputs, std::source_location where) {
    const auto again = std::make_shared<MadeAgain>(MadeAgain{f, inputs});
    const uint64_t first = Node::next_number();
    const Tensor result = again->call();
    if (!result.creator() || result.creator()->number < first) return result;
    const auto node = std::make_shared<Node>(Node{{}, Tape::read_by(Tape::since(first, result, "checkpoint")), where});
    node->again = again;
    return OperatorState::link(Tape::without_tape(result), node);
}

}  // namespace

Tensor checkpoint(const std::function<Tensor(const std::vector<Tensor>& inputs)>& f, const std::vector<Tensor>& inputs,
                  std::source_location where) {
    user_check(f != nullptr, where, "checkpoint: what to call is no function; give one of the inputs");
    user_check(!inputs.empty(), where, "checkpoint: no inputs; name the tensors that the function is of");
    const auto checked = [f, where](const std::vector<Tensor>& in) {
        Tensor result = f(in);
        user_check(result.defined(), where, "checkpoint: the function returns an undefined tensor; return its result");
        return result;
    };
    if (Capture* capture = inputs[0].backend()->capture()) return capture->not_kept([&] { return checked(inputs); });
    return grad_enabled() ? called_checkpoint(checked, inputs, where) : checked(inputs);
}

}  // namespace tw::nn
