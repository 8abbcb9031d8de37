// Computations with random small shapes and data, for checking schedules of them.
#pragma once
#include <string>
#include <vector>

#include "dsl/interpret.h"
#include "dsl/tensor.h"
#include "verify/random.h"

namespace tw::fuzz {

struct Problem {
    std::string name;  ///< of the computation: "row_softmax"
    std::vector<Tensor> outputs;
    std::vector<Bindings> exact;  ///< data for which all legal schedules give equal results; several sizes, if named
    std::vector<Bindings> reals;  ///< random floats, sizes as in `exact`
    Match match = equal_values;   ///< of a schedule with the declaration, on `exact`
    bool approximates = false;    ///< uses exp and its kin, which a device may round otherwise than the interpreter
};

struct Computation {
    std::string name;
    Problem (*make)(Random&);
};

/// All computations that are fuzzed.
const std::vector<Computation>& computations();
/// The one with this name. Throws Error listing them.
const Computation& computation(const std::string& name);

/// All input tensors and computed tensors that the outputs need, in a tuple each component.
std::vector<Tensor> tensors_of(const Problem& problem);
/// "a f32 [3, 7]; b f32 [7, 5] strides [1, 8]; n = 4": what the problem is given.
std::string describe(const Problem& problem);

}  // namespace tw::fuzz
