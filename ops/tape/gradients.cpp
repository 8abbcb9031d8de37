#include <map>
#include <optional>
#include <set>

#include "dsl/differentiate.h"
#include "ops/capture.h"
#include "ops/elementwise.h"
#include "ops/operator.h"
#include "ops/tape/function_call.h"
#include "ops/tape/made_again.h"
#include "ops/tape/tape.h"
#include "support/error.h"

namespace tw::nn {
namespace {

using Ids = std::set<const void*>;

tw::Tensor view_of(const tw::Tensor& tensor) {
    return compute("d_" + tensor.name(), {tensor.shape().begin(), tensor.shape().end()},
                   [&](const std::vector<Expr>& at) {
                       return tensor.read({at.begin(), at.end()});
                   });
}

/// Of an operator's inputs and the adjoint of its result: the adjoint of one of these inputs.
const Operator& derivative_of(const std::shared_ptr<const OperatorState>& operation, size_t input) {
    return operator_with(
        "d_" + operation->name, fmt::format("{} {}", operation->serial, input), [=](const std::vector<tw::Tensor>& in) {
            const std::vector<tw::Tensor> operands(in.begin(), in.end() - 1);
            const tw::Tensor derived = tw::gradients(operation->expression(operands), in.back(), {operands[input]})[0];
            return derived.operation()->is_input() ? view_of(derived) : derived;
        });
}

/// Computed tensors that are made of one of these.
Ids made_of(const Ids& asked, const std::vector<Tensor>& computed) {
    Ids made;
    for (const Tensor& output : computed)
        for (const Tensor& input : output.creator()->inputs)
            if (asked.contains(Tape::id(input)) || made.contains(Tape::id(input))) made.insert(Tape::id(output));
    return made;
}

using Adjoints = std::map<const void*, Tensor>;

/// From the last one of these on, whose adjoint is there, towards what is asked alone. By operators.
void go_back_to(const Ids& asked, const std::vector<Tensor>& computed, Adjoints& adjoints) {
    Ids towards = made_of(asked, computed);
    const Ids between = towards;
    const auto of_calls = results_of_calls(computed);
    towards.insert(asked.begin(), asked.end());
    for (auto output = computed.rbegin(); output != computed.rend(); ++output) {
        if (!towards.contains(Tape::id(*output))) continue;
        Tensor& adjoint = adjoints.at(Tape::id(*output));
        adjoint = Tape::finished(*output, adjoint);
        if (!between.contains(Tape::id(*output))) continue;
        const Node& node = *output->creator();
        const void* call = call_of(node);
        if (call && !of_calls.at(call)[0].same(*output)) continue;  // with the first of its results
        if (node.again) {
            const std::vector<Tensor>& outputs = of_calls.at(call);
            const ResultsAgain again = made_again(outputs, "gradients");
            for (size_t k = 0; k < outputs.size(); ++k) {
                const Tensor given = adjoints.at(Tape::id(outputs[k]));
                auto [place, first] = adjoints.emplace(Tape::id(again.results[k]), given);
                if (!first) place->second = add(place->second, given, node.where);
            }
            go_back_to(towards, again.computed, adjoints);
            // What is made next may have their addresses.
            for (const Tensor& tensor : again.computed) adjoints.erase(Tape::id(tensor));
            continue;
        }
        std::vector<Tensor> operands = node.inputs, through_function;
        operands.push_back(adjoint);
        if (node.function)
            through_function = FunctionCall::gradients_of_results(
                of_calls.at(call), [&](const Tensor& each) { return adjoints.at(Tape::id(each)); });
        for (size_t i = 0; i < node.inputs.size(); ++i) {
            const void* id = Tape::id(node.inputs[i]);
            if (!node.inputs[i].requires_grad() || !towards.contains(id)) continue;
            const Tensor part = node.function           ? through_function[i]
                                : node.gradient_of_view ? node.gradient_of_view(adjoint)
                                                        : derivative_of(node.operation, i)(operands, node.where);
            auto [place, first] = adjoints.emplace(id, part);
            if (!first) place->second = add(place->second, part, node.where);
        }
    }
}

std::vector<Tensor> called_gradients_to(const std::vector<Tensor>& asked, const Tensor& loss,
                                        const std::vector<Tensor>& computed) {
    Ids ids;
    for (const Tensor& x : asked) ids.insert(Tape::id(x));
    Adjoints adjoints{{Tape::id(loss), Tape::one(loss.backend())}};
    go_back_to(ids, computed, adjoints);
    std::vector<Tensor> found;
    for (const Tensor& x : asked)
        found.push_back(x.creator() ? adjoints.at(Tape::id(x)) : Tape::finished(x, adjoints.at(Tape::id(x))));
    return found;
}

/// Declared; without a graph they count as constants for later gradients.
std::vector<Tensor> captured_gradients_to(const std::vector<Tensor>& asked, const Tensor& loss, bool create_graph,
                                          std::source_location where) {
    Capture& capture = *loss.backend()->capture();
    std::vector<Tensor> unhooked;
    for (const Tensor& x : asked) unhooked.push_back(Tape::unhooked(x));
    std::vector<Tensor> found = capture.gradients_of(loss, unhooked, where);
    for (size_t k = 0; k < found.size(); ++k) {
        if (!asked[k].creator()) found[k] = Tape::finished(asked[k], found[k]);
        if (create_graph) {
            OperatorState::link(found[k], std::make_shared<Node>(Node{{}, {loss}, {}}));
            continue;
        }
        const tw::Tensor symbol = capture.symbol_of(found[k]);
        found[k] = capture.made(
            loss.backend(), stop_gradient(symbol.operation()->is_input() ? view_of(symbol) : symbol), found[k].name());
    }
    return found;
}

}  // namespace

std::vector<Tensor> gradients(const Tensor& loss, const std::vector<Tensor>& with_respect_to,
                              const GradientOptions& options, std::source_location where) {
    std::optional<NoGrad> guard;
    if (!options.create_graph) guard.emplace();
    const std::vector<Tensor> computed = Tape::behind(loss, "gradients", where);
    Ids known{Tape::id(loss)};
    for (const Tensor& output : computed)
        for (const Tensor& input : output.creator()->inputs)
            if (input.requires_grad()) known.insert(Tape::id(input));
    for (const Tensor& x : with_respect_to)
        user_check(known.contains(Tape::id(x)), where,
                   "gradients: '{}' is not made of '{}' as a tensor that requires a gradient; call "
                   "set_requires_grad() on that before the calls, or ask for others",
                   loss.name(), x.defined() ? x.name() : "an undefined tensor");
    const std::vector<Tensor> found = loss.backend()->capture()
                                          ? captured_gradients_to(with_respect_to, loss, options.create_graph, where)
                                          : called_gradients_to(with_respect_to, loss, computed);
    if (!options.retain && !options.create_graph) Tape::release(computed);
    return found;
}

}  // namespace tw::nn
