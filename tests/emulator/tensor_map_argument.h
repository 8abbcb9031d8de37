// Tensor maps for launches that the tests start without a device.
#pragma once
#include <initializer_list>

#include "runtime/emulator/units/tensor_map_bits.h"

namespace tw::emulator {

/// As large as a kernel's parameter.
struct alignas(64) TensorMapArgument {
    TensorMapBits bits;
    char rest[128 - sizeof(TensorMapBits)] = {};
};

/// Of a row-major matrix and boxes of it.
inline TensorMapArgument matrix_map(const void* base, TensorElement element, uint64_t rows, uint64_t columns,
                                    int box_rows, int box_columns, int swizzle_span) {
    TensorMapArgument map;
    map.bits.magic = TensorMapBits::Magic;
    map.bits.base = reinterpret_cast<uint64_t>(base);
    map.bits.rank = 2;
    map.bits.element = element;
    map.bits.sizes[0] = columns;
    map.bits.sizes[1] = rows;
    map.bits.strides[0] = columns * bytes_of(element);
    map.bits.box[0] = uint16_t(box_columns);
    map.bits.box[1] = uint16_t(box_rows);
    map.bits.swizzle_span = uint8_t(swizzle_span);
    return map;
}

}  // namespace tw::emulator
