// Calls of the device vocabulary, and the tensor maps that they name.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "codegen/access/access.h"

namespace tw::codegen {

/// What a call makes of an argument: a number, or an element and the `elements` - 1 behind it in its last dimension.
struct CallArgument {
    enum class Effect {
        Value,
        Read,
        Write,
        Matrix,   ///< the matrix from here on, as a descriptor; marks say what is read of it
        Address,  ///< the address; marks say what is written there
        Map,      ///< a tensor map: `place.buffer` is its name
    } effect;
    Expr value;    ///< of Effect::Value; of a Matrix, if defined: it begins so many bytes further
    Access place;  ///< of the others
    int elements = 1;
    int stride_bytes = 0, leading_bytes = 0;  ///< of a Matrix, see matrix_descriptor
};
/// name<parameters>(arguments): a primitive of the vocabulary.
struct ThreadCall {
    std::string primitive;  ///< its entry in the vocabulary
    std::vector<int64_t> parameters;
    std::vector<CallArgument> arguments;
    std::string function = {};  ///< if it has another name than the entry
};
/// A parameter of a kernel through which the tensor memory accelerator finds a tensor.
struct TensorMapUse {
    Buffer map;  ///< its name
    Buffer tensor;
    std::vector<int64_t> box;  ///< elements that one request moves, innermost dimension first
    int swizzle = 0;           ///< bytes of the box's rows if their pieces are exchanged, see BufferNode
    bool writes = false;       ///< the tensor
};

}  // namespace tw::codegen
