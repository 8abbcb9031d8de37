// Computations that nobody has thought of: random stages of random reads.
#pragma once
#include <string>
#include <vector>

#include "dsl/tensor.h"
#include "verify/random.h"

namespace tw::fuzz {

struct RandomComputation {
    std::vector<Tensor> outputs;
    std::string
        kind;  ///< of its last stage: "map", "reduction", "product", "window", "scan" or "scatter"; or "gradient"
};

/// Whether data decide where something is read, or what it counts for. Inputs that do have to hold what there is room
/// for (ops/integer_ranges.h).
enum class ByData { Yes, No };

/// One to four stages: maps, reductions, products of matrices, windows, scans, scatters. They read inputs and each
/// other at axes, sums, multiples, quotients and remainders of them, transposed, reversed, behind edges, and where data
/// say. Of whole numbers from -4 to 4 every order of every sum is exact: what stages read of each other is kept within
/// that.
RandomComputation random_computation(Random& random);
RandomComputation random_computation(Random& random, int64_t stages, ByData by_data = ByData::Yes);
/// Gradients of one such stage, with respect to what it reads of floats.
/// Without data in indices, unless they are asked for: the emulator takes long for gradients of gathers.
RandomComputation random_gradients(Random& random, ByData by_data = ByData::No);

}  // namespace tw::fuzz
