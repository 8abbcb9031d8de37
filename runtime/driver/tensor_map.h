// How the bulk copies of Hopper (tma_load, tma_store) find a tensor in global memory.
//
//   TensorMap map = encode_tensor_map(x, {.element = TensorElement::BF16, .sizes = {k, m}, .strides = {k * 2},
//                                         .box = {64, 128}, .swizzle = Swizzle::Bytes128});
//   device->prepare(kernel, shape, {Argument::bytes(as_bytes(map)), ...});     // const __grid_constant__ tw::TensorMap
#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "runtime/driver/driver.h"
#include "runtime/emulator/units/tensor_map_bits.h"

namespace tw {

using emulator::TensorElement;

/// How the 16-byte units of a box are permuted in shared memory: within lines of so many bytes.
enum class Swizzle { None, Bytes32, Bytes64, Bytes128 };

/// The requests of an im2col map, which is of a tensor [n, (d, (h,)) w, c]: columns of pixels, as the rows of a
/// convolution's implicit matrix. A request begins at a base pixel and walks on over those in a bounding box, by the
/// traversal strides, from row to row and image to image; the box ends so many pixels before or behind each image as
/// the corners say. Pixels are read so far from their base pixels as offsets of the request say, and are zero outside
/// of the tensor.
///
/// For a filter of R taps in a dimension: lower = -padding, upper = padding - (R - 1) * dilation, the traversal stride
/// is the convolution's; output q begins at q * stride - padding, and tap r has the offset r * dilation.
struct Im2col {
    std::vector<int64_t> lower = {}, upper = {};  // of w, h and d, as many as there are: -32768 to 32767 with three
                                                  // dimensions, -128 to 127 with four, -16 to 15 with five
    int64_t channels = 0;                         // elements of a pixel that a request takes, 1 to 256
    int64_t pixels = 0;                           // that a request takes, 1 to 1024
};

/// A tensor of 1 to 5 dimensions and the boxes of it that are copied; dimensions from the innermost, contiguous one on.
struct TensorLayout {
    TensorElement element = TensorElement::BF16;
    std::vector<int64_t> sizes = {};    // in elements; what a box has beyond is read as zero and not written, but for
                                        // the rest of a row's last 16 bytes
    std::vector<int64_t> strides = {};  // in bytes, of all dimensions but the first; multiples of 16
    std::vector<int64_t> box = {};  // in elements, 1 to 256 each; its innermost row is whole units of 16 bytes. Under
                                    // a swizzle it is at most a line; a shorter one leaves the rest of it alone
    std::vector<int64_t> traversal_strides = {};  // 1 to 8, the first of them 1; empty: all 1. Of each so many elements
                                                  // of the box, the first is taken: ceil(box / stride) in all
    std::optional<Im2col> im2col = {};            // in place of a box; 3 to 5 dimensions
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
