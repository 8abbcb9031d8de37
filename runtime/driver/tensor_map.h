// How the bulk copies of Hopper (tma_load, tma_store) find a tensor in global memory.
//
//   TensorMap map = encode_tensor_map(x, {.element = TensorElement::BF16, .sizes = {k, m}, .strides = {k * 2},
//                                         .box = {64, 128}, .swizzle = Swizzle::Bytes128});
//   device->prepare(kernel, shape, {Argument::bytes(as_bytes(map)), ...});     // const __grid_constant__ tw::TensorMap
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "runtime/driver/driver.h"
#include "runtime/emulator/units/tensor_map_bits.h"

namespace tw {

using emulator::TensorElement;

/// How the 16-byte units of a box are permuted in shared memory: within lines of so many bytes.
enum class Swizzle { None, Bytes32, Bytes64, Bytes128 };

/// A tensor of 1 to 5 dimensions and the boxes of it that are copied; dimensions from the innermost, contiguous one on.
struct TensorLayout {
    TensorElement element = TensorElement::BF16;
    std::vector<int64_t> sizes = {};    // in elements; what a box has beyond is read as zero and not written
    std::vector<int64_t> strides = {};  // in bytes, of all dimensions but the first; multiples of 16
    std::vector<int64_t> box = {};      // in elements, 1 to 256 each; its innermost row is whole units of 16 bytes,
                                        // and as long as the swizzle's line, where there is one
    Swizzle swizzle = Swizzle::None;
    int64_t offset = 0;  // of the first element, in bytes; its address is a multiple of 16
};

/// 128 bytes to pass to a kernel by value.
struct alignas(64) TensorMap {
    std::byte bits[128];
};
inline std::span<const std::byte> as_bytes(const TensorMap& map) { return map.bits; }

/// Throws LaunchError where the hardware would not take the layout, or where the tensor ends behind the buffer.
TensorMap encode_tensor_map(const Buffer& tensor, const TensorLayout& layout);

}  // namespace tw
