// What becomes of a schedule, as files to read.
#pragma once
#include <string>
#include <vector>

#include "dsl/schedule.h"

namespace tw {

/// Builds the schedule and writes into the folder, which it creates:
///     NAME_kernel.cu       the CUDA text of each kernel
///     NAME.01_PASS.txt     each kernel after each pass, in their order
///     nest.txt             the loop nest, as s.print() shows it
///     trace.txt            the steps as replay() reads them
///     trace.cpp            the steps as C++
///     explain.txt          defaults that were taken, and why
/// Returns the files' paths. Throws Error if one cannot be written, and what build() throws.
std::vector<std::string> dump(const Schedule& schedule, const std::string& folder);

}  // namespace tw
