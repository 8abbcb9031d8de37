// Executes thread IR: all threads of a block statement by statement, so that every statement ends with a barrier.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "codegen/thread_ir/thread_ir.h"

namespace tw::codegen {

/// Memory of global buffers by name, and values of sizes and scalars by name.
struct Machine {
    std::map<std::string, std::vector<double>> memory;
    std::map<std::string, double> parameters;
    bool unwritten_registers = false;  ///< may be read, as NaN: a value may be computed that nobody uses
};

/// Runs all blocks. Throws std::runtime_error on accesses out of bounds, on reads of shared or register elements that
/// nobody wrote, on misaligned wide accesses, and on two threads that store different values to one element at once.
void run_threads(const ThreadKernel& kernel, Machine& machine);

}  // namespace tw::codegen
