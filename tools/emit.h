// The kernels of a program as text or machine code.
#pragma once
#include <string>

#include "ops/program.h"

namespace tw {

struct EmitOptions {
    std::string arch = "sm_90a";
    std::string as = "cuda";  ///< cuda, ptx, cubin or sass
    std::string folder = {};  ///< empty: everything is returned
    bool json = false;        ///< a list: name, threads, shared bytes, and what compiling tells
};

/// What to print: the kernels one after another, or the files' names where there is a folder. Throws NvrtcMissing,
/// CompileError, and Error for sass without a disassembler or for two cubins into one stream.
std::string emitted(const Program& program, const EmitOptions& options);

}  // namespace tw
