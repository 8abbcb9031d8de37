#include <map>

#include "ops/capture.h"
#include "ops/operator.h"
#include "ops/tape/tape.h"
#include "schedules/choose_in_place.h"

namespace tw::nn {
namespace {

/// grad += part.
void accumulate(const Tensor& grad, const Tensor& part) {
    Backend& backend = *grad.backend();
    const Executable& add = backend.built("accumulate " + shape_text(grad.shape()), [&](const Target& target) {
        Shape shape(grad.shape().begin(), grad.shape().end());
        tw::Tensor old = input("grad", f32, shape), term = input("part", f32, shape);
        tw::Tensor total = compute("total", shape, [&](const std::vector<Expr>& at) {
            return old.read({at.begin(), at.end()}) + term.read({at.begin(), at.end()});
        });
        return schedules::choose_in_place({{total}, {{total, old}}}, target);
    });
    backend.run(add, {.buffers = {{"grad", grad.data()}, {"part", part.data()}}, .sizes = {}, .scalars = {}});
}

/// By kernels of each call in turn.
std::vector<Tensor> called_gradients(const Tensor& loss, const std::vector<Tensor>& computed,
                                     const std::vector<Tensor>& leaves) {
    std::map<const void*, Tensor> adjoints{{Tape::id(loss), Tape::one(loss.backend())}};
    for (auto output = computed.rbegin(); output != computed.rend(); ++output) {
        const Node& node = *output->creator();
        const Tensor adjoint = Tape::finished(*output, adjoints.at(Tape::id(*output)));
        const std::vector<Tensor> parts = node.operation->gradients_of(node.inputs, adjoint.data(), node.where);
        for (size_t i = 0; i < parts.size(); ++i) {
            if (!parts[i].defined()) continue;
            auto [place, first] = adjoints.emplace(Tape::id(node.inputs[i]), parts[i]);
            if (!first) accumulate(place->second, parts[i]);
        }
        adjoints.erase(Tape::id(*output));
    }
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
