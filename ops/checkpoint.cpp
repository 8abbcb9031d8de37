#include "ops/checkpoint.h"

#include <algorithm>
#include <iterator>

#include "ops/capture.h"
#include "ops/operator.h"
#include "ops/tape/made_again.h"
#include "ops/tape/tape.h"
#include "support/error.h"

namespace tw::nn {
namespace {

using ToResults = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)>;

/// f(inputs), whose tape goes as soon as it is known what the results are made of.
std::vector<Tensor> called_checkpoint(const ToResults& f, const std::vector<Tensor>& inputs,
                                      std::source_location where) {
    const auto again = std::make_shared<MadeAgain>(MadeAgain{f, inputs});
    const uint64_t first = Node::next_number();
    std::vector<Tensor> results = again->call(), made;
    const auto is_made = [&](const Tensor& result) { return result.creator() && result.creator()->number >= first; };
    std::ranges::copy_if(results, std::back_inserter(made), is_made);
    const std::vector<Tensor> read = Tape::read_by(made_since(first, made, "checkpoint", where));
    for (Tensor& result : results) {
        again->nodes.push_back(nullptr);
        if (!is_made(result)) continue;
        const auto node = std::make_shared<Node>(Node{{}, read, where});
        node->again = again;
        again->nodes.back() = node.get();
        result = OperatorState::link(Tape::without_tape(result), node);
    }
    return results;
}

}  // namespace

std::vector<Tensor> checkpoint(const ToResults& f, const std::vector<Tensor>& inputs, std::source_location where) {
    user_check(f != nullptr, where, "checkpoint: what to call is no function; give one of the inputs");
    user_check(!inputs.empty(), where, "checkpoint: no inputs; name the tensors that the function is of");
    const auto checked = [f, where](const std::vector<Tensor>& in) {
        std::vector<Tensor> results = f(in);
        user_check(!results.empty(), where, "checkpoint: the function returns no tensors; return its results");
        for (const Tensor& result : results)
            user_check(result.defined(), where,
                       "checkpoint: the function returns an undefined tensor; return its result");
        return results;
    };
    if (Capture* capture = inputs[0].backend()->capture()) return capture->not_kept([&] { return checked(inputs); });
    return grad_enabled() ? called_checkpoint(checked, inputs, where) : checked(inputs);
}

Tensor checkpoint(const std::function<Tensor(const std::vector<Tensor>& inputs)>& f, const std::vector<Tensor>& inputs,
                  std::source_location where) {
    ToResults to_list;
    if (f) to_list = [f](const std::vector<Tensor>& in) { return std::vector{f(in)}; };
    return checkpoint(to_list, inputs, where)[0];
}

}  // namespace tw::nn
