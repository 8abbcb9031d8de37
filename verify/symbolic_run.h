// The thread IR run on terms instead of data: what a kernel stores, as formulas of what it is given.
#pragma once
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "codegen/thread_ir/thread_ir.h"
#include "dsl/interpret.h"
#include "verify/terms.h"

namespace tw::fuzz {

/// What every element of the kernel's buffers holds at its end, by the array's name.
using Stored = std::map<std::string, std::vector<Term>>;
/// What only this run sees: an index of registers or of shared memory that leaves its array, though perhaps not the
/// memory, or a register that nobody wrote as part of a result.
struct Misuse {
    std::string text;
};
/// Loops, conditions or addresses of stores depend on data.
struct Undecided {
    std::string text;
};

/// Runs all threads of a block in step, and one block after another: a kernel without races does the same in any order.
/// `sizes` gives the named sizes.
std::variant<Stored, Misuse, Undecided> run_symbolically(Terms& terms, const codegen::ThreadKernel& kernel,
                                                         const Bindings& sizes);

}  // namespace tw::fuzz
