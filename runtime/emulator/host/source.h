// What is compiled.
#pragma once
#include <string>
#include <vector>

#include "support/error.h"

namespace tw::emulator {

/// The host compiler refused a text; the message holds its first errors and the lines around them.
class CompileFailed : public Error {
public:
    using Error::Error;
};

/// No C++ compiler was found; the message names what was tried.
class HostCompilerMissing : public Error {
public:
    using Error::Error;
};

/// CUDA text of one kernel, `extern "C" __global__ void __launch_bounds__(N) name(...) {...}`.
struct Source {
    std::string name;  // the kernel's; its text is "name.cu" in messages
    std::string text;
    std::vector<std::string> line_notes = {};  // said behind line i + 1 in messages, where not empty; may be shorter
};

}  // namespace tw::emulator
