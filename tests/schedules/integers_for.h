// Inputs of integers, whose sums are exact in every order.
#pragma once
#include "dsl/interpret.h"

namespace tw {

/// Values from -most to most, from 0 for u32, for all inputs that the outputs are computed from. Shapes are constant.
inline Bindings integers_for(const std::vector<Tensor>& outputs, int64_t most) {
    Bindings bindings;
    uint64_t seed = 1;
    for (const auto& operation : operations_of(outputs)) {
        if (!operation->is_input()) continue;
        std::vector<int64_t> shape;
        for (const Expr& extent : operation->shape) shape.push_back(require_constant(extent));
        Type type = operation->outputs[0].type;
        HostArray& array = bindings.inputs[operation->name] = host_array(type, shape);
        fill_integers(array, type == u32 ? 0 : -most, most, seed++);
    }
    return bindings;
}

}  // namespace tw
