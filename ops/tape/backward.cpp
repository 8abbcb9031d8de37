#include <map>

#include "ops/broadcasting.h"
#include "ops/capture.h"
#include "ops/operator.h"
#include "ops/tape/made_again.h"
#include "ops/tape/tape.h"
#include "schedules/choose_in_place.h"

namespace tw::nn {
namespace {

/// grad += part.
void accumulate(const Tensor& grad, const Tensor& part) {
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
}

using Adjoints = std::map<const void*, Tensor>;

/// From the last one of these on, whose adjoint is there, to all that they are made of. By kernels of each call in
/// turn.
void go_back(const std::vector<Tensor>& computed, Adjoints& adjoints) {
    for (auto output = computed.rbegin(); output != computed.rend(); ++output) {
        const Node& node = *output->creator();
        const auto own = adjoints.find(Tape::id(*output));
        const Tensor adjoint = Tape::finished(*output, own->second);
        adjoints.erase(own);
        if (node.again) {
            const std::vector<Tensor> inside = made_again(*output, "backward");
            adjoints.emplace(Tape::id(inside.back()), adjoint);
            go_back(inside, adjoints);
            continue;
        }
        const std::vector<Tensor> parts = node.operation->gradients_of(node.inputs, adjoint.data(), node.where);
        for (size_t i = 0; i < parts.size(); ++i) {
            if (!parts[i].defined()) continue;
            auto [place, first] = adjoints.emplace(Tape::id(node.inputs[i]), parts[i]);
            if (!first) accumulate(place->second, parts[i]);
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

void backward(const Tensor& loss, const BackwardOptions& options) {
    const NoGrad guard;  // of hooks
    const std::vector<Tensor> computed = Tape::behind(loss, "backward"), leaves = Tape::leaves_of(computed);
    Capture* capture = loss.backend()->capture();
    const std::vector<Tensor> found =
        capture ? capture->gradients_of(loss, leaves) : called_gradients(loss, computed, leaves);
    for (size_t k = 0; k < leaves.size(); ++k) Tape::set_grad(leaves[k], Tape::finished(leaves[k], found[k]));
    if (!options.retain) Tape::release(computed);
}

}  // namespace tw::nn
