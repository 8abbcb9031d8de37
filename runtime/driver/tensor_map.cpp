#include "runtime/driver/tensor_map.h"

#include <fmt/ranges.h>

namespace tw {
namespace {

constexpr int64_t Unit = 16, MaxBox = 256, MaxPixels = 1024, MaxTraversal = 8, MaxSize = int64_t{1} << 32,
                  MaxStride = int64_t{1} << 40;

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
    require(layout.strides.size() == rank - 1 && (layout.im2col || layout.box.size() == rank),
            "tensor map of '{}': {} sizes, {} strides and a box of {}; strides are of all dimensions but the first, a "
            "box has all",
            name, rank, layout.strides.size(), layout.box.size());
    for (size_t d = 0; d < rank; ++d)
        require(layout.sizes[d] >= 1 && layout.sizes[d] <= MaxSize,
                "tensor map of '{}': dimension {} has {} elements; it takes 1 to 2^32", name, d, layout.sizes[d]);
    for (int64_t stride : layout.strides)
        require(stride >= 0 && stride < MaxStride && stride % Unit == 0,
                "tensor map of '{}': strides of {} bytes; they are multiples of {} below 2^40. Copy with cp_async, or "
                "pad the rows",
                name, fmt::join(layout.strides, ", "), Unit);
}

void check_box(const std::string& name, const TensorLayout& layout) {
    for (size_t d = 0; d < layout.box.size(); ++d)
        require(layout.box[d] >= 1 && layout.box[d] <= MaxBox,
                "tensor map of '{}': a box of {} elements in dimension {}; it takes 1 to {}, so copy several boxes",
                name, layout.box[d], d, MaxBox);
}

void check_traversal(const std::string& name, const TensorLayout& layout) {
    const std::vector<int64_t>& strides = layout.traversal_strides;
    if (strides.empty()) return;
    require(strides.size() == layout.sizes.size(), "tensor map of '{}': {} traversal strides for {} dimensions", name,
            strides.size(), layout.sizes.size());
    for (int64_t stride : strides)
        require(stride >= 1 && stride <= MaxTraversal,
                "tensor map of '{}': traversal strides of {}; they are 1 to {}. Stride the tensor itself, as one of "
                "fewer elements that lie farther apart",
                name, fmt::join(strides, ", "), MaxTraversal);
    require(strides[0] == 1,
            "tensor map of '{}': a traversal stride of {} in the innermost dimension, which the hardware ignores; it "
            "takes 1",
            name, strides[0]);
}

void check_corners(const std::string& name, const TensorLayout& layout) {
    const Im2col& im2col = *layout.im2col;
    const size_t rank = layout.sizes.size(), count = rank - 2;
    require(im2col.lower.size() == count && im2col.upper.size() == count,
            "im2col map of '{}': {} lower and {} upper corners; with {} dimensions it takes {} of each", name,
            im2col.lower.size(), im2col.upper.size(), rank, count);
    const int64_t limit = int64_t{1} << (16 / count - 1);  // 2^15, 2^7, 2^4
    for (size_t d = 0; d < count; ++d) {
        for (int64_t corner : {im2col.lower[d], im2col.upper[d]})
            require(corner >= -limit && corner < limit,
                    "im2col map of '{}': a corner of {}; with {} dimensions it takes {} to {}", name, corner, rank,
                    -limit, limit - 1);
        const int64_t end = layout.sizes[d + 1] + im2col.upper[d];
        require(im2col.lower[d] < end, "im2col map of '{}': a bounding box [{}, {}) in dimension {}, which is empty",
                name, im2col.lower[d], end, d + 1);
    }
}

void check_im2col(const std::string& name, const TensorLayout& layout) {
    const size_t rank = layout.sizes.size();
    require(rank >= 3, "im2col map of '{}': {} dimensions; it takes 3 to 5", name, rank);
    require(layout.box.empty(), "im2col map of '{}': it has a box of {}; it takes channels and pixels", name,
            fmt::join(layout.box, ", "));
    require(layout.im2col->channels >= 1 && layout.im2col->channels <= MaxBox,
            "im2col map of '{}': {} channels of a pixel; it takes 1 to {}", name, layout.im2col->channels, MaxBox);
    require(layout.im2col->pixels >= 1 && layout.im2col->pixels <= MaxPixels,
            "im2col map of '{}': {} pixels; it takes 1 to {}, so copy several columns", name, layout.im2col->pixels,
            MaxPixels);
    check_corners(name, layout);
}

void check_row(const std::string& name, const TensorLayout& layout) {
    const int64_t elements = layout.im2col ? layout.im2col->channels : layout.box[0];
    const int64_t row = elements * bytes_of(layout.element), span = span_of(layout.swizzle);
    require(row % Unit == 0, "tensor map of '{}': rows of a box have {} bytes; they are multiples of {}", name, row,
            Unit);
    require(layout.swizzle == Swizzle::None || row <= span,
            "tensor map of '{}': rows of a box have {} bytes, the lines of the swizzle {}; choose no swizzle, or split "
            "the box",
            name, row, span);
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

emulator::TensorMapBits bits_of(const Buffer& tensor, const TensorLayout& layout) {
    emulator::TensorMapBits map;
    map.magic = emulator::TensorMapBits::Magic;
    map.base = tensor.pointer() + uint64_t(layout.offset);
    map.rank = uint8_t(layout.sizes.size());
    map.element = layout.element;
    map.swizzle_span = uint8_t(span_of(layout.swizzle));
    map.is_im2col = layout.im2col.has_value();
    for (size_t d = 0; d < layout.sizes.size(); ++d) {
        map.sizes[d] = uint64_t(layout.sizes[d]);
        if (d > 0) map.strides[d - 1] = uint64_t(layout.strides[d - 1]);
        if (!layout.traversal_strides.empty()) map.traversal_strides[d] = uint8_t(layout.traversal_strides[d]);
    }
    for (size_t d = 0; d < layout.box.size(); ++d) map.box[d] = uint16_t(layout.box[d]);
    if (!layout.im2col) return map;
    map.box[0] = uint16_t(layout.im2col->channels);
    map.box[1] = uint16_t(layout.im2col->pixels);
    for (size_t d = 0; d < layout.im2col->lower.size(); ++d) {
        map.im2col.lower[d] = int16_t(layout.im2col->lower[d]);
        map.im2col.upper[d] = int16_t(layout.im2col->upper[d]);
    }
    return map;
}

}  // namespace

TensorMap encode_tensor_map(const Buffer& tensor, const TensorLayout& layout) {
    check_dimensions(tensor.name(), layout);
    check_traversal(tensor.name(), layout);
    layout.im2col ? check_im2col(tensor.name(), layout) : check_box(tensor.name(), layout);
    check_row(tensor.name(), layout);
    check_place(tensor, layout);
    TensorMap result{};
    tensor.device()->encode_tensor_map(bits_of(tensor, layout), result.bits);
    return result;
}

}  // namespace tw
