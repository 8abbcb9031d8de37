// A kernel before it is printed, in pictures: where shared memory has its arrays, and what roles do, side by side.
#pragma once
#include <string>
#include <vector>

#include "codegen/signals/simulate_signals.h"
#include "codegen/thread_ir/thread_ir.h"
#include "ops/inspect.h"

namespace tw {

/// The arrays of shared memory, in their order.
std::vector<SharedArray> shared_arrays(const codegen::ThreadKernel& kernel);
/// A line an array of shared memory: physical shape, type, bytes, swizzle; of each swizzle, where the 16-byte chunks of
/// eight lines lie. Empty if there is none.
std::string shared_memory_picture(const codegen::ThreadKernel& kernel);

/// A row of `columns` letters a warpgroup or copying thread, over the cycles of the simulation: what takes most of each
/// column's time. M: products under way; w: other work; L: boxes under way; a dot: waits. Empty for no lanes.
std::string timeline_picture(const codegen::SignalSimulation& simulation, size_t columns = 100);

/// The kernels of a schedule's tree before they are printed.
std::vector<codegen::ThreadKernel> kernels_before_printing(const Tree& tree, const Target& target);

}  // namespace tw
