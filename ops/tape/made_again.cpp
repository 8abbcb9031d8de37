#include "ops/tape/made_again.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "ops/tape/tape.h"
#include "support/error.h"

namespace tw::nn {
namespace {

/// A call that is under way; others may be around it.
struct CallUnderWay {
    std::vector<std::vector<Tensor>>* first = nullptr;        // where it writes what it makes once,
    const std::vector<std::vector<Tensor>>* again = nullptr;  // or reads it
    size_t next = 0;
    uint64_t began = 0;  // the number of the next call then
    CallUnderWay* around = nullptr;
};
thread_local CallUnderWay* innermost = nullptr;

struct UnderWay {
    explicit UnderWay(CallUnderWay call) : call(call) { this->call.around = std::exchange(innermost, &this->call); }
    ~UnderWay() { innermost = call.around; }
    UnderWay(const UnderWay&) = delete;
    UnderWay& operator=(const UnderWay&) = delete;
    CallUnderWay call;
};

std::vector<Tensor> next_of(CallUnderWay& call) {
    if (call.next == call.again->size())
        throw_error(Error,
                    "checkpoint: called again by the backward pass, the function overwrites tensors more often than "
                    "before; let it do the same in each call");
    return (*call.again)[call.next++];
}

std::set<const void*> ids_of(const std::vector<Tensor>& tensors) {
    std::set<const void*> ids;
    for (const Tensor& tensor : tensors) ids.insert(Tape::id(tensor));
    return ids;
}

}  // namespace

std::vector<Tensor> MadeAgain::call() {
    const UnderWay scope({.first = &once});
    return f(inputs);
}

std::vector<Tensor> MadeAgain::call_again() const {
    const GradScope on_the_tape(true);
    const UnderWay scope({.again = &once, .began = Node::next_number()});
    return f(inputs);
}

std::vector<Tensor> made_once(const std::function<std::vector<Tensor>()>& run) {
    CallUnderWay* from = innermost;
    while (from && !from->again) from = from->around;
    const std::vector<Tensor> made = from ? next_of(*from) : run();
    for (CallUnderWay* call = innermost; call != from; call = call->around) call->first->push_back(made);
    return made;
}

bool is_older_than_call_again(const Tensor& tensor) {
    const CallUnderWay* again = innermost;
    while (again && !again->again) again = again->around;
    return again && (!tensor.creator() || tensor.creator()->number < again->began);
}

std::vector<Tensor> made_since(uint64_t first, const std::vector<Tensor>& results, const char* who,
                               std::source_location where) {
    std::set<const void*> seen;
    std::vector<Tensor> made;
    for (const Tensor& result : results)
        for (const Tensor& each : Tape::since(first, result, who, where))
            if (seen.insert(Tape::id(each)).second) made.push_back(each);
    return made;
}

ResultsAgain made_again(const std::vector<Tensor>& outputs, const char* who) {
    const Node& node = *outputs[0].creator();
    const MadeAgain& call = *node.again;
    const uint64_t first = Node::next_number();
    const std::vector<Tensor> last = call.call_again();
    const auto is_made = [&](const Tensor& result) { return result.creator() && result.creator()->number > first; };
    std::vector<Tensor> made, moved;  // moved: what has not been frozen since
    for (size_t k = 0; k < last.size() && last.size() == call.nodes.size(); ++k)
        if (call.nodes[k] && is_made(last[k])) made.push_back(last[k]);
    std::ranges::copy_if(node.inputs, std::back_inserter(moved), &Tensor::requires_grad);
    const auto missing = std::ssize(last) - std::ranges::count(call.nodes, nullptr) - std::ssize(made);
    const bool is_whole = last.size() == call.nodes.size() && (missing == 0 || moved.size() < node.inputs.size()) &&
                          ids_of(Tape::read_by(made_since(first, made, who, node.where))) == ids_of(moved);
    ResultsAgain again;
    for (const Tensor& output : outputs) {
        const auto place = std::ranges::find(call.nodes, output.creator().get()) - call.nodes.begin();
        const bool is_like = is_whole && last[static_cast<size_t>(place)].type() == output.type() &&
                             last[static_cast<size_t>(place)].shape() == output.shape();
        user_check(is_like, node.where,
                   "checkpoint: called again by {}(), the function makes another tensor than '{}' {}, or makes it of "
                   "others that require gradients; let it do the same in each call, and thaw tensors before the first",
                   who, output.name(), shape_text(output.shape()));
        again.results.push_back(last[static_cast<size_t>(place)]);
    }
    made.clear();
    std::ranges::copy_if(again.results, std::back_inserter(made), is_made);
    again.computed = made_since(first, made, who, node.where);
    return again;
}

const void* call_of(const Node& node) {
    return node.again ? static_cast<const void*>(node.again.get()) : node.function.get();
}

std::map<const void*, std::vector<Tensor>> results_of_calls(const std::vector<Tensor>& computed) {
    std::map<const void*, std::vector<Tensor>> results;
    for (const Tensor& output : computed)
        if (const void* call = call_of(*output.creator())) results[call].push_back(output);
    return results;
}

}  // namespace tw::nn
