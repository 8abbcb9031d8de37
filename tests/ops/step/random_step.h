// Steps that nobody has thought of.
#pragma once
#include <algorithm>
#include <vector>

#include "schedules/declared.h"
#include "verify/random_computation.h"

namespace tw {

/// Results of a random computation, and inputs that become something else.
inline schedules::Declared random_step(fuzz::Random& random) {
    schedules::Declared step{random.chance(0.3)
                                 ? fuzz::random_gradients(random, fuzz::ByData::No).outputs
                                 : fuzz::random_computation(random, random.between(2, 7), fuzz::ByData::No).outputs};
    std::vector<Tensor> inputs;
    for (const auto& operation : operations_of(step.outputs))
        if (operation->is_input() && operation->strides.empty()) inputs.emplace_back(operation, 0);
    const size_t results = step.outputs.size();
    for (const Tensor& in : inputs) {
        if (!random.chance(0.3)) continue;
        const Tensor& from = step.outputs[static_cast<size_t>(random.below(static_cast<int64_t>(results)))];
        const bool has_any = std::ranges::none_of(from.shape(), [](const Expr& e) { return is_constant(e, 0); });
        const bool turned = random.chance(0.2);
        const Tensor next =
            compute("next_" + in.name(), {in.shape().begin(), in.shape().end()}, [&](const std::vector<Expr>& at) {
                std::vector<Operand> own(at.begin(), at.end());
                if (turned) own[0] = Operand(in.shape()[0] - 1 - at[0]);
                const std::vector<Operand> first(from.shape().size(), Operand(integer(0)));
                const Expr change = has_any ? cast(f32, from.read(first)) : Expr(1.0f);
                return cast(in.type(), min(max(cast(f32, in.read(own)) * 0.5 + change, -4.0), 4.0));
            });
        step.outputs.push_back(next);
        step.in_place.emplace_back(next, in);
    }
    return step;
}

}  // namespace tw
