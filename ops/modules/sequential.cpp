#include "ops/modules/sequential.h"

namespace tw::nn {

Sequential::Sequential(std::initializer_list<SequentialStage> stages) {
    for (const SequentialStage& stage : stages) push_back(stage);
}

void Sequential::push_back(const SequentialStage& stage) {
    if (stage.module) register_module(std::to_string(size()), *stage.module);
    stages_->push_back(stage);
}

Tensor Sequential::operator()(const Tensor& x, std::source_location where) const {
    const Scope here = scope();
    Tensor y = x;
    for (size_t k = 0; k < stages_->size(); ++k) {
        const SequentialStage& stage = (*stages_)[k];
        const Scope part = stage.module ? stage.module->scope() : Scope(std::to_string(k));
        y = stage.call(y, where);
    }
    return y;
}

}  // namespace tw::nn
