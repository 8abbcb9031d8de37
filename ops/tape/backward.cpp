#include <algorithm>
#include <map>
#include <set>

#include "ops/broadcasting.h"
#include "ops/capture.h"
#include "ops/elementwise.h"
#include "ops/operator.h"
#include "ops/tape/function_call.h"
#include "ops/tape/made_again.h"
#include "ops/tape/tape.h"
#include "schedules/choose_in_place.h"

namespace tw::nn {
namespace {

/// grad + part, in the memory of grad, unless that is a view of what others may hold.
Tensor accumulated(const Tensor& grad, const Tensor& part) {
    if (!grad.data().owning()) return nn::add(grad, part);
    Backend& backend = *grad.backend();
    const Type type = grad.type();
    const std::string key = fmt::format("accumulate {}{}", name_of(type), shape_text(grad.shape()));
    const Executable& add = backend.built(key, [&](const Target& target) {
        Shape shape(grad.shape().begin(), grad.shape().end());
        tw::Tensor old = input("grad", type, shape), term = input("part", type, shape);
        tw::Tensor total = compute("total", shape, [&](const std::vector<Expr>& at) {
            const auto element = [&](const tw::Tensor& of) {
                return tw::cast(computed_type(type), of.read({at.begin(), at.end()}));
            };
            return tw::cast(type, element(old) + element(term));
        });
        return schedules::choose_in_place({{total}, {{total, old}}}, target);
    });
    backend.run(add, {.buffers = {{"grad", grad.data()}, {"part", part.data()}}, .sizes = {}, .scalars = {}});
    return grad;
}

using Adjoints = std::map<const void*, Tensor>;

void go_back(const std::vector<Tensor>& computed, Adjoints& adjoints);

/// Of results of one call of a checkpoint, whose adjoints are there.
void go_back_again(const std::vector<Tensor>& outputs, Adjoints& adjoints) {
    const ResultsAgain again = made_again(outputs, "backward");
    std::set<const void*> read;
    for (const Tensor& computed : again.computed)
        for (const Tensor& input : computed.creator()->inputs) read.insert(Tape::id(input));
    for (size_t k = 0; k < outputs.size(); ++k) {
        const Tensor adjoint = adjoints.extract(Tape::id(outputs[k])).mapped();
        const void* id = Tape::id(again.results[k]);
        auto [place, first] = adjoints.emplace(id, adjoint);
        if (!first) place->second = add(place->second, adjoint);
        if (first && read.contains(id)) place->second = adjoint * 1;  // to be added to, which hooks are not to see
    }
    go_back(again.computed, adjoints);
}

/// Gradients of what the results of one call of a function are made of, as views, to which nothing is added in place:
/// who made them may have kept them.
std::vector<Tensor> through_function(const std::vector<Tensor>& outputs, Adjoints& adjoints) {
    std::vector<Tensor> parts = FunctionCall::gradients_of_results(
        outputs, [&](const Tensor& output) { return adjoints.extract(Tape::id(output)).mapped(); });
    for (Tensor& part : parts)
        if (part.defined())
            part = Tape::in_memory_of(part, part.data().view(0, part.data().bytes()), part.shape(), part.name());
    return parts;
}

/// From the last one of these on, whose adjoint is there, to all that they are made of. By kernels of each call in
/// turn.
void go_back(const std::vector<Tensor>& computed, Adjoints& adjoints) {
    const auto of_calls = results_of_calls(computed);
    for (auto output = computed.rbegin(); output != computed.rend(); ++output) {
        const Node& node = *output->creator();
        const auto own = adjoints.find(Tape::id(*output));
        const Tensor adjoint = own->second = Tape::finished(*output, own->second);
        const bool is_frozen = std::ranges::none_of(node.inputs, &Tensor::requires_grad);  // since
        const void* call = is_frozen ? nullptr : call_of(node);
        if (call && !of_calls.at(call)[0].same(*output)) continue;  // with the first of its results
        if (node.again && call) {
            go_back_again(of_calls.at(call), adjoints);
            continue;
        }
        if (!call) adjoints.erase(own);
        if (is_frozen) continue;
        const std::vector<Tensor> parts = call ? through_function(of_calls.at(call), adjoints)
                                          : node.gradient_of_view
                                              ? std::vector{node.gradient_of_view(adjoint)}
                                              : node.operation->gradients_of(node.inputs, adjoint.data(), node.where);
        for (size_t i = 0; i < parts.size(); ++i) {
            if (!parts[i].defined()) continue;
            auto [place, first] = adjoints.emplace(Tape::id(node.inputs[i]), parts[i]);
            if (!first) place->second = accumulated(place->second, parts[i]);
        }
    }
}

std::vector<Tensor> called_gradients(const Tensor& loss, const std::vector<Tensor>& computed,
                                     const std::vector<Tensor>& leaves) {
    Adjoints adjoints{{Tape::id(loss), Tape::one(loss.backend())}};
    go_back(computed, adjoints);
    std::vector<Tensor> found;
    for (const Tensor& leaf : leaves) found.push_back(adjoints.at(Tape::id(leaf)));
    return found;
}

}  // namespace

void backward(const Tensor& loss, const BackwardOptions& options, std::source_location where) {
    const NoGrad guard;  // of hooks
    const std::vector<Tensor> computed = Tape::behind(loss, "backward", where), leaves = Tape::leaves_of(computed);
    Capture* capture = loss.backend()->capture();
    const std::vector<Tensor> found =
        capture ? capture->gradients_of(loss, leaves, where) : called_gradients(loss, computed, leaves);
    for (size_t k = 0; k < leaves.size(); ++k) Tape::set_grad(leaves[k], Tape::finished(leaves[k], found[k]));
    if (!options.retain) Tape::release(computed);
    Tape::count_backward();
}

}  // namespace tw::nn
