// What the matrix primitives of a warp do, on terms.
#pragma once
#include "codegen/access/call.h"
#include "verify/symbolic_memory.h"

namespace tw::fuzz {

/// The lanes' arguments of a call: of each, where the first element of every lane stands. The others lie behind it.
struct WarpArgument {
    codegen::Buffer buffer;
    std::vector<size_t> first;
};

/// Whether `run_on_warp` knows the primitive.
bool is_matrix_primitive(const std::string& primitive);

/// ldmatrix, stmatrix, their transposed forms or a matrix instruction of dsl/atoms.h, by 32 lanes.
void run_on_warp(Terms& terms, SymbolicMemory& memory, const codegen::ThreadCall& call,
                 const std::vector<WarpArgument>& arguments);

}  // namespace tw::fuzz
