// Where threads and hardware tell each other that something is done, and what they tell: each place altered.
#pragma once
#include <string>
#include <vector>

#include "verify/mutate_kernel.h"

namespace tw::fuzz {

struct AlteredStatement {
    MutationKind kind;
    std::string text;
    codegen::ThreadStmt to;  ///< undefined: left out
};

/// Waits, arrivals, fences, commits, copies by boxes, and how many registers a warp has.
bool is_signal(const codegen::Instruction& instruction);

/// Mutants of a call, a barrier of some threads, or a role: left out, and with other numbers.
std::vector<AlteredStatement> altered_signals(const codegen::ThreadStmt& stmt);

/// The kernel with other clusters, producer threads or tensor maps.
std::vector<Mutant> altered_launches(const codegen::ThreadKernel& kernel);

}  // namespace tw::fuzz
