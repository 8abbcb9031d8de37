// The driver's structures, made of ours.
#pragma once
#include "runtime/compile/cuda_abi.h"
#include "runtime/driver/driver.h"
#include "runtime/emulator/units/tensor_map_bits.h"

namespace tw {

inline cuda::TensorElement tensor_element(emulator::TensorElement element) {
    switch (element) {
        case emulator::TensorElement::U8: return cuda::TensorElement::U8;
        case emulator::TensorElement::U16: return cuda::TensorElement::U16;
        case emulator::TensorElement::U32: return cuda::TensorElement::U32;
        case emulator::TensorElement::S32: return cuda::TensorElement::S32;
        case emulator::TensorElement::U64: return cuda::TensorElement::U64;
        case emulator::TensorElement::S64: return cuda::TensorElement::S64;
        case emulator::TensorElement::F16: return cuda::TensorElement::F16;
        case emulator::TensorElement::BF16: return cuda::TensorElement::BF16;
        case emulator::TensorElement::F32: return cuda::TensorElement::F32;
        case emulator::TensorElement::F64: break;
    }
    return cuda::TensorElement::F64;
}

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
