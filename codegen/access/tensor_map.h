// Tensor maps: how the tensor memory accelerator sees a tensor.
#pragma once
#include <cstdint>
#include <vector>

#include "codegen/access/access.h"

namespace tw::codegen {

/// A parameter of a kernel through which the tensor memory accelerator finds a tensor.
struct TensorMapUse {
    Buffer map;  ///< its name
    Buffer tensor;
    std::vector<int64_t> box;  ///< elements that one request moves, innermost dimension first
    int swizzle = 0;           ///< bytes of the box's rows if their pieces are exchanged, see BufferNode
    bool writes = false;       ///< the tensor
};

}  // namespace tw::codegen
