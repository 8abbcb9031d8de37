// The texts of the primitives that printed kernels call; README.md beside this file lists them.
#pragma once
#include <set>
#include <string>
#include <vector>

namespace tw::device {

/// The primitives and what they need, as CUDA text to print above a kernel: the GPU's own inside #ifndef TW_EMULATED,
/// then those that serve both. The order does not depend on who asks. Throws InternalError for an unknown name.
std::string vocabulary_text(const std::set<std::string>& used);

/// What the emulator compiles in front of printed kernels: the CPU's twins of the GPU's primitives.
std::string emulator_prelude();

/// Whether the primitive is, or uses, one whose results differ between the GPU and the emulator by a few ulp. All others
/// agree bit for bit (a NaN with a NaN of other bits).
bool is_approximate(const std::string& name);

/// All names but those of the wgmma family (wgmma.h), in the order of printing.
std::vector<std::string> vocabulary();

}  // namespace tw::device
