// Inputs whose sums of products are exact in every order.
#pragma once
#include <vector>

#include "dsl/interpret.h"
#include "ops/check.h"

namespace tw {

/// Of every input, whole numbers from -4 to 4.
inline Bindings whole_numbers(const std::vector<Tensor>& outputs, unsigned seed) {
    Bindings bindings = random_bindings(outputs, seed);
    for (auto& [name, array] : bindings.inputs) fill_integers(array, -4, 4, ++seed);
    return bindings;
}

}  // namespace tw
