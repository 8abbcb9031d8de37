// Tensor maps: how the tensor memory accelerator sees a tensor.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "codegen/access/access.h"

namespace tw::codegen {

/// A parameter of a kernel through which the tensor memory accelerator finds a tensor.
struct TensorMapUse {
    Buffer map;  ///< its name
    Buffer tensor;
    std::vector<int64_t>
        box;              ///< elements that one request moves, innermost dimension first; of im2col: channels, pixels
    int swizzle = 0;      ///< bytes of the box's rows if their pieces are exchanged, see BufferNode
    bool writes = false;  ///< the tensor
    /// Of dimensions between the innermost and the outermost, innermost first; see PixelWalk.
    struct Im2col {
        std::vector<int64_t> lower, upper, steps;
    };
    std::optional<Im2col> im2col = {};  ///< its boxes walk over pixels
};

}  // namespace tw::codegen
