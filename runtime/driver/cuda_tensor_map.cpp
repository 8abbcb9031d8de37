#include "runtime/driver/cuda_tensor_map.h"

#include <algorithm>
#include <bit>

namespace tw {
namespace {

cuda::TensorElement tensor_element(emulator::TensorElement element) {
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

}  // namespace

EncodedTensorMap encode_by_driver(const DriverTable& call, const emulator::TensorMapBits& map, void* bits) {
    const int element = int(tensor_element(map.element)), swizzle = std::countr_zero(unsigned(map.swizzle_span)) - 4;
    auto* base = reinterpret_cast<void*>(map.base);
    unsigned box[5], strides[5];
    std::copy(map.box, map.box + 5, box);
    std::copy(map.traversal_strides, map.traversal_strides + 5, strides);
    if (!map.is_im2col)
        return {call.tensor_map_encode_tiled(bits, element, map.rank, base, map.sizes, map.strides, box, strides, 0,
                                             swizzle, cuda::TensorL2Promotion128, 0),
                "cuTensorMapEncodeTiled"};
    int lower[3], upper[3];
    std::copy(map.im2col.lower, map.im2col.lower + 3, lower);
    std::copy(map.im2col.upper, map.im2col.upper + 3, upper);
    return {call.tensor_map_encode_im2col(bits, element, map.rank, base, map.sizes, map.strides, lower, upper, box[0],
                                          box[1], strides, 0, swizzle, cuda::TensorL2Promotion128, 0),
            "cuTensorMapEncodeIm2col"};
}

}  // namespace tw
