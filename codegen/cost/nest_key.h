// What a nest computes and how, as bytes: nests of equal keys are lowered alike.
#pragma once
#include <string>

#include "dsl/tree.h"

namespace tw::codegen {

/// All that lowering goes by: statements, expressions, shared ones once, buffers, and which of them overwrite others.
/// Names are left out, and who makes what the nest reads. Of steps, stages and loops it has the order alone: in a
/// schedule of more kernels, they have other numbers.
std::string nest_key(const Tree& tree, const Nest& nest);

}  // namespace tw::codegen
