// Tensor maps as the driver encodes them.
#pragma once
#include "runtime/compile/library.h"
#include "runtime/emulator/units/tensor_map_bits.h"

namespace tw {

/// What the driver said, and the name of its function.
struct EncodedTensorMap {
    cuda::Result result;
    const char* function;
};

/// Writes the 128 bytes at `bits`. The driver has both functions, for tiled and for im2col maps.
EncodedTensorMap encode_by_driver(const DriverTable& call, const emulator::TensorMapBits& map, void* bits);

}  // namespace tw
