// What stands between a kernel and its launch, altered.
#pragma once
#include <vector>

#include "verify/mutate_kernel.h"

namespace tw::fuzz {

/// The kernel with its wait for the kernels before left out, moved, or taken for griddepcontrol_launch_dependents; with
/// other words in its head; with the numbers of registers exchanged that its roles ask for.
std::vector<Mutant> altered_heads(const codegen::ThreadKernel& kernel);

}  // namespace tw::fuzz
