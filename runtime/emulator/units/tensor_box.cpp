#include "runtime/emulator/units/tensor_box.h"

#include <algorithm>
#include <utility>

#include "runtime/emulator/units/swizzle.h"

namespace tw::emulator {
namespace {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Elements of the box's side that are taken.
uint64_t side(const TensorMapBits& map, int dimension) {
    return uint64_t(ceil_div(map.box[dimension], map.traversal_strides[dimension]));
}

/// Where the walk from `start` is after so many steps of a stride. At the end of the range it begins anew; what is left
/// of `steps` tells how often.
int64_t walk(PixelRange range, int64_t start, int64_t stride, int64_t& steps) {
    const int64_t until_end = ceil_div(range.end - start, stride);
    if (steps < until_end) return start + std::exchange(steps, 0) * stride;
    const int64_t each = ceil_div(range.end - range.first, stride), rest = steps - until_end;
    steps = 1 + rest / each;
    return range.first + rest % each * stride;
}

}  // namespace

PixelRange base_pixels(const TensorMapBits& map, int dimension) {
    const int corner = dimension - 1;
    return {map.im2col.lower[corner], int64_t(map.sizes[dimension]) + map.im2col.upper[corner]};
}

TensorBox::TensorBox(const TensorMapBits& map, const int* coordinates, const int* offsets, uintptr_t shared)
    : map_(map), shared_(shared), units_per_row_(uint64_t(map.box[0]) * bytes_of(map.element) / UnitBytes) {
    std::copy(coordinates, coordinates + map.rank, coordinates_);
    std::copy(offsets, offsets + 3, offsets_);
    if (map.is_im2col) num_rows_ = map.box[1];
    for (int d = 1; d < map.rank && !map.is_im2col; ++d) num_rows_ *= side(map, d);
}

unsigned char* TensorBox::in_shared(uint64_t unit) const {
    const uint64_t pitch = map_.swizzle_span > UnitBytes ? map_.swizzle_span : units_per_row_ * UnitBytes;
    const uint64_t linear = shared_ + unit / units_per_row_ * pitch + unit % units_per_row_ * UnitBytes;
    return reinterpret_cast<unsigned char*>(swizzled(linear, map_.swizzle_span));
}

TensorBox::Place TensorBox::place_in_box(uint64_t row) const {
    Place place;
    for (int d = 1; d < map_.rank; ++d) {
        place.at[d] = coordinates_[d] + int64_t(row % side(map_, d)) * map_.traversal_strides[d];
        row /= side(map_, d);
    }
    return place;
}

TensorBox::Place TensorBox::place_of_pixel(uint64_t pixel) const {
    Place place;
    const int last = map_.rank - 1;
    auto steps = int64_t(pixel);
    for (int d = 1; d < last; ++d)
        place.at[d] = offsets_[d - 1] + walk(base_pixels(map_, d), coordinates_[d], map_.traversal_strides[d], steps);
    place.at[last] = coordinates_[last] + steps * map_.traversal_strides[last];
    return place;
}

TensorBox::Part TensorBox::in_global(uint64_t unit) const {
    const uint64_t row = unit / units_per_row_;
    const Place place = map_.is_im2col ? place_of_pixel(row) : place_in_box(row);
    uint64_t address = map_.base;
    for (int d = 1; d < map_.rank; ++d) {
        if (place.at[d] < 0 || uint64_t(place.at[d]) >= map_.sizes[d]) return {};
        address += uint64_t(place.at[d]) * map_.strides[d - 1];
    }
    const int64_t size = bytes_of(map_.element), row_bytes = int64_t(map_.sizes[0]) * size;
    const int64_t begin = coordinates_[0] * size + int64_t(unit % units_per_row_ * UnitBytes);
    if (begin < 0 || begin >= row_bytes) return {};
    return {reinterpret_cast<unsigned char*>(address) + begin, std::min<size_t>(UnitBytes, size_t(row_bytes - begin))};
}

}  // namespace tw::emulator
