// The driver's structures, made of ours.
#pragma once
#include "runtime/compile/cuda_abi.h"
#include "runtime/driver/driver.h"

namespace tw {

/// The driver's structures of a launch, of which each has these fields.
template <class Params>
Params of_shape(const LaunchShape& shape) {
    Params params{};
    params.grid_x = unsigned(shape.grid.x);
    params.grid_y = unsigned(shape.grid.y);
    params.grid_z = unsigned(shape.grid.z);
    params.block_x = unsigned(shape.block.x);
    params.block_y = unsigned(shape.block.y);
    params.block_z = unsigned(shape.block.z);
    params.dynamic_shared_bytes = unsigned(shape.dynamic_shared_bytes);
    return params;
}

}  // namespace tw
