// What one request of TMA moves between a tensor and shared memory.
#pragma once
#include <cstddef>
#include <cstdint>

#include "runtime/emulator/units/tensor_map_bits.h"

namespace tw::emulator {

/// The box of a tiled map, or the column of pixels of an im2col map: rows of the tensor, one behind the other in shared
/// memory, cut into units of 16 bytes. Under a swizzle rows begin every line of it, even if they are shorter.
class TensorBox {
public:
    static constexpr uint64_t UnitBytes = 16;

    /// `coordinates` are of the first element, the innermost first; `offsets` of an im2col map, in the order w, h, d.
    TensorBox(const TensorMapBits& map, const int* coordinates, const int* offsets, uintptr_t shared);

    uint64_t num_units() const { return num_rows_ * units_per_row_; }
    int64_t bytes() const { return int64_t(num_units() * UnitBytes); }  // without gaps between rows
    TensorElement element() const { return map_.element; }

    unsigned char* in_shared(uint64_t unit) const;

    /// Where a unit lies, and its bytes that are inside of the tensor: the first ones, as coordinates are of whole
    /// units.
    struct Part {
        unsigned char* global = nullptr;
        size_t bytes = 0;  // 0: all of it is outside
    };
    Part in_global(uint64_t unit) const;

private:
    struct Place {
        int64_t at[5] = {};  // elements, which may lie outside; the innermost is left at 0
    };
    Place place_in_box(uint64_t row) const;
    Place place_of_pixel(uint64_t pixel) const;

    TensorMapBits map_;
    uintptr_t shared_;
    int64_t coordinates_[5] = {}, offsets_[3] = {};
    uint64_t num_rows_ = 1, units_per_row_ = 0;
};

/// The bounding box of an im2col map's base pixels, in a dimension from 1 to rank - 2: from `first` until before `end`.
struct PixelRange {
    int64_t first = 0, end = 0;
};
PixelRange base_pixels(const TensorMapBits& map, int dimension);

}  // namespace tw::emulator
