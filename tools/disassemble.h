// Cubin to SASS, by the CUDA toolkit's programs where they are installed.
#pragma once
#include <string>

namespace tw {

/// What nvdisasm or cuobjdump prints of the cubin. Looks on $PATH, in $CUDA_HOME/bin and in /usr/local/cuda/bin;
/// throws Error saying so if there is neither.
std::string disassembled(const std::string& cubin);

}  // namespace tw
