// What the emulator finds in the 128 bytes of a tensor map; runtime/driver/tensor_map.cpp writes them.
#pragma once
#include <cstdint>

namespace tw::emulator {

enum class TensorElement : uint8_t { U8, U16, U32, S32, U64, S64, F16, BF16, F32, F64 };

constexpr uint32_t bytes_of(TensorElement element) {
    switch (element) {
        case TensorElement::U8: return 1;
        case TensorElement::U16:
        case TensorElement::F16:
        case TensorElement::BF16: return 2;
        case TensorElement::U64:
        case TensorElement::S64:
        case TensorElement::F64: return 8;
        default: return 4;
    }
}

/// Where the requests of an im2col map read. Of its box, the first side is the channels of a pixel, the second the
/// pixels.
struct Im2colBits {
    int16_t lower[3] = {}, upper[3] = {};  // corners of the base pixels' bounding box: of w, h, d
};

struct TensorMapBits {
    static constexpr uint64_t Magic = 0x70616d726f736e74;  // so that other bytes are not taken for one
    uint64_t magic = 0;
    uint64_t base = 0;
    uint64_t sizes[5] = {};    // in elements, the innermost first
    uint64_t strides[4] = {};  // in bytes, of the dimensions behind the first
    uint16_t box[5] = {};
    uint8_t rank = 0;
    TensorElement element = TensorElement::U8;
    uint8_t swizzle_span = 0;                        // in bytes, 16: none
    uint8_t traversal_strides[5] = {1, 1, 1, 1, 1};  // in elements
    bool is_im2col = false;
    Im2colBits im2col = {};
};
static_assert(sizeof(TensorMapBits) <= 128);

}  // namespace tw::emulator
