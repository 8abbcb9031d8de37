// What the matrix primitives of a warp do, on terms.
#pragma once
#include "codegen/instructions/instructions.h"
#include "verify/symbolic_memory.h"

namespace tw::fuzz {

/// The lanes' arguments of a call: of each, where the first element of every lane stands. The others lie behind it.
struct WarpArgument {
    codegen::Buffer buffer;
    std::vector<size_t> first;
};

/// An LdMatrix, StMatrix, TransposeLanes or Mma, by 32 lanes.
void run_on_warp(Terms& terms, SymbolicMemory& memory, const codegen::Instruction& instruction,
                 const std::vector<WarpArgument>& arguments);

}  // namespace tw::fuzz
