#include "ops/tape/made_again.h"

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

Tensor MadeAgain::call() {
    const UnderWay scope({.first = &once});
    return f(inputs);
}

Tensor MadeAgain::call_again() const {
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

std::vector<Tensor> made_again(const Tensor& output, const char* who) {
    const Node& node = *output.creator();
    const uint64_t first = Node::next_number();
    const Tensor last = node.again->call_again();
    const bool is_like = last.defined() && last.type() == output.type() && last.shape() == output.shape() &&
                         last.creator() && last.creator()->number > first;
    const std::vector<Tensor> computed = is_like ? Tape::since(first, last, who) : std::vector<Tensor>();
    if (ids_of(Tape::read_by(computed)) != ids_of(node.inputs))
        user_error(node.where,
                   "checkpoint: called again by {}(), the function makes another tensor than '{}' {}, or makes it of "
                   "others; let it do the same in each call",
                   who, output.name(), shape_text(output.shape()));
    return computed;
}

}  // namespace tw::nn
