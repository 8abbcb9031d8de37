// Computations that nobody has thought of: random stages of random reads.
#pragma once
#include <string>
#include <vector>

#include "dsl/tensor.h"
#include "verify/random.h"

namespace tw::fuzz {

struct RandomComputation {
    std::vector<Tensor> outputs;
    std::string kind;  ///< of its last stage: "map", "reduction", "product" or "window"; or "gradient"
};

/// One to four stages: maps, reductions, products of matrices, windows. They read inputs and each other at axes, sums,
/// multiples, quotients and remainders of them, transposed, reversed, behind edges. Of whole numbers from -4 to 4 every
/// order of every sum is exact: what stages read of each other is kept within that.
RandomComputation random_computation(Random& random);
RandomComputation random_computation(Random& random, int64_t stages);
/// Gradients of one such stage, with respect to what it reads of floats.
RandomComputation random_gradients(Random& random);

}  // namespace tw::fuzz
