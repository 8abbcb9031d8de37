// The texts of the primitives that printed kernels call; README.md beside this file lists them.
#pragma once
#include <set>
#include <string>
#include <vector>

namespace tw::device {

/// The primitives and what they need, as CUDA text to print above a kernel: the GPU's own, then those that serve both,
/// in parts that a line of comment begins. The order does not depend on who asks. Throws InternalError for an unknown
/// name.
std::string vocabulary_text(const std::set<std::string>& used);

/// A printed text without the GPU's own primitives, for which the emulator has twins; lines keep their numbers.
std::string for_emulator(const std::string& text);

/// What the emulator compiles in front of printed kernels: the CPU's twins of the GPU's primitives.
std::string emulator_prelude();

/// Whether the primitive is, or uses, one whose results differ between the GPU and the emulator by a few ulp. All
/// others agree bit for bit (a NaN with a NaN of other bits).
bool is_approximate(const std::string& name);

/// All names but those of the wgmma family (wgmma.h), in the order of printing.
std::vector<std::string> vocabulary();

}  // namespace tw::device
