#include "ops/overwriting.h"

#include "ops/capture.h"
#include "ops/modules/scope.h"
#include "ops/tape/made_again.h"
#include "schedules/choose_in_place.h"
#include "schedules/declaration_text.h"

namespace tw::nn {
namespace {

tw::Tensor declared(const NamedTensor& named) {
    const std::vector<int64_t>& shape = named.tensor.shape();
    return input(named.name, named.tensor.type(), {shape.begin(), shape.end()});
}

template <class F>
std::vector<tw::Tensor> each(const std::vector<NamedTensor>& tensors, const F& symbol) {
    std::vector<tw::Tensor> symbols;
    for (const NamedTensor& named : tensors) symbols.push_back(symbol(named));
    return symbols;
}

}  // namespace

Overwriting::Overwriting(std::vector<NamedTensor> overwritten, Declare declare)
    : overwritten_(std::move(overwritten)), declare_(std::move(declare)) {}

std::vector<Tensor> Overwriting::run(const std::vector<NamedTensor>& read) {
    const std::shared_ptr<Backend>& backend = overwritten_.at(0).tensor.backend();
    if (Capture* capture = backend->capture()) return write_down(*capture, read);
    return made_once([&] { return run_now(read); });
}

std::vector<Tensor> Overwriting::run_now(const std::vector<NamedTensor>& read) {
    const std::shared_ptr<Backend>& backend = overwritten_.at(0).tensor.backend();
    for (const NamedTensor& named : read) named.tensor.require_data();
    if (!built_ || num_read_ != read.size()) built_ = &build_for(read);
    num_read_ = read.size();

    Arguments arguments;
    for (const auto& given : {overwritten_, read})
        for (const NamedTensor& named : given) arguments.buffers[named.name] = named.tensor.data();
    std::vector<Tensor> made;
    const auto& outputs = built_->program().tree().outputs;
    for (size_t k = overwritten_.size(); k < outputs.size(); ++k) {
        std::vector<int64_t> shape;
        for (const Expr& extent : declared_shape(*outputs[k])) shape.push_back(require_constant(extent));
        made.emplace_back(backend, outputs[k]->type, shape, outputs[k]->name);
        arguments.buffers[outputs[k]->name] = made.back().data();
    }
    backend->run(*built_, arguments);
    return made;
}

std::vector<Tensor> Overwriting::write_down(Capture& capture, const std::vector<NamedTensor>& read) const {
    const DeclaredIn scope(Scope::path());
    const auto now = [&](const NamedTensor& named) { return capture.symbol_of(named.tensor); };
    std::vector<Tensor> tensors, made;
    for (const NamedTensor& named : overwritten_) tensors.push_back(named.tensor);
    const std::vector<tw::Tensor> next = capture.overwrite(tensors, declare_(each(overwritten_, now), each(read, now)));
    for (size_t k = tensors.size(); k < next.size(); ++k)
        made.emplace_back(tensors[0].backend(), next[k], next[k].name());
    return made;
}

const Executable& Overwriting::build_for(const std::vector<NamedTensor>& read) const {
    const std::vector<tw::Tensor> old = each(overwritten_, declared);
    schedules::Declared step{declare_(old, each(read, declared))};
    for (size_t k = 0; k < old.size(); ++k) step.in_place.emplace_back(step.outputs[k], old[k]);
    // The text tells declarations apart by all that they are made of, constants too.
    return overwritten_[0].tensor.backend()->built(
        "overwriting " + schedules::declaration_text(step.outputs),
        [&](const Target& target) { return schedules::choose_in_place(step, target); });
}

}  // namespace tw::nn
