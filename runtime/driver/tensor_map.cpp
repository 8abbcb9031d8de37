#include "runtime/driver/tensor_map.h"

#include <fmt/ranges.h>

namespace tw {
namespace {

constexpr int64_t Unit = 16, MaxBox = 256, MaxSize = int64_t{1} << 32, MaxStride = int64_t{1} << 40;

int64_t span_of(Swizzle swizzle) {
    switch (swizzle) {
        case Swizzle::None: break;
        case Swizzle::Bytes32: return 32;
        case Swizzle::Bytes64: return 64;
        case Swizzle::Bytes128: return 128;
    }
    return Unit;
}

#define require(condition, ...) \
    if (!(condition)) throw_error(LaunchError, __VA_ARGS__)

void check_dimensions(const std::string& name, const TensorLayout& layout) {
    const size_t rank = layout.sizes.size();
    require(rank >= 1 && rank <= 5, "tensor map of '{}': {} dimensions; it takes 1 to 5", name, rank);
    require(layout.strides.size() == rank - 1 && layout.box.size() == rank,
            "tensor map of '{}': {} sizes, {} strides and a box of {}; strides are of all dimensions but the first, a "
            "box has all",
            name, rank, layout.strides.size(), layout.box.size());
    for (size_t d = 0; d < rank; ++d) {
        require(layout.sizes[d] >= 1 && layout.sizes[d] <= MaxSize,
                "tensor map of '{}': dimension {} has {} elements; it takes 1 to 2^32", name, d, layout.sizes[d]);
        require(layout.box[d] >= 1 && layout.box[d] <= MaxBox,
                "tensor map of '{}': a box of {} elements in dimension {}; it takes 1 to {}, so copy several boxes",
                name, layout.box[d], d, MaxBox);
    }
    for (int64_t stride : layout.strides)
        require(stride >= 0 && stride < MaxStride && stride % Unit == 0,
                "tensor map of '{}': strides of {} bytes; they are multiples of {} below 2^40. Copy with cp_async, or "
                "pad the rows",
                name, fmt::join(layout.strides, ", "), Unit);
}

void check_box_row(const std::string& name, const TensorLayout& layout) {
    const int64_t row = layout.box[0] * bytes_of(layout.element), span = span_of(layout.swizzle);
    require(row % Unit == 0, "tensor map of '{}': rows of a box have {} bytes; they are multiples of {}", name, row,
            Unit);
    require(layout.swizzle == Swizzle::None || row == span,
            "tensor map of '{}': rows of a box have {} bytes, the lines of the swizzle {}; choose the swizzle of {} "
            "bytes, or split the box",
            name, row, span, row);
}

void check_place(const Buffer& tensor, const TensorLayout& layout) {
    const uint64_t address = tensor.pointer() + uint64_t(layout.offset);
    require(address % uint64_t(Unit) == 0, "tensor map of '{}': it begins at byte {}, at no multiple of {}",
            tensor.name(), layout.offset, Unit);
    int64_t end = layout.offset + layout.sizes[0] * bytes_of(layout.element);
    for (size_t d = 1; d < layout.sizes.size(); ++d) end += (layout.sizes[d] - 1) * layout.strides[d - 1];
    require(layout.offset >= 0 && end <= tensor.bytes(), "tensor map of '{}': bytes [{}, {}) of a buffer of {} bytes",
            tensor.name(), layout.offset, end, tensor.bytes());
}

#undef require

}  // namespace

TensorMap encode_tensor_map(const Buffer& tensor, const TensorLayout& layout) {
    check_dimensions(tensor.name(), layout);
    check_box_row(tensor.name(), layout);
    check_place(tensor, layout);
    emulator::TensorMapBits map;
    map.magic = emulator::TensorMapBits::Magic;
    map.base = tensor.pointer() + uint64_t(layout.offset);
    map.rank = uint8_t(layout.sizes.size());
    map.element = layout.element;
    map.swizzle_span = uint8_t(span_of(layout.swizzle));
    for (size_t d = 0; d < layout.sizes.size(); ++d) {
        map.sizes[d] = uint64_t(layout.sizes[d]);
        map.box[d] = uint16_t(layout.box[d]);
        if (d > 0) map.strides[d - 1] = uint64_t(layout.strides[d - 1]);
    }
    TensorMap result{};
    tensor.device()->encode_tensor_map(map, result.bits);
    return result;
}

}  // namespace tw
