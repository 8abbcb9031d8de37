// Tensor maps: how the tensor memory accelerator sees a tensor.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "codegen/access/access.h"

namespace tw::codegen {

/// What requests move in place of boxes: columns of pixels of a tensor [n, (d, (h,)) w, c], as a filter sees them. A
/// request begins at a base pixel and walks on by the map's traversal strides, in the order w, h, d, n, over the base
/// pixels of a bounding box: in each dimension, those from `lower` until before size + `upper`. Each pixel is read at
/// its base pixel plus the offsets that TmaLoad has; outside of the tensor are zeros.
///
/// For a filter of R taps: lower = -padding, upper = padding - (R - 1) * dilation, and the filter's stride as traversal
/// stride. Output q begins at q * stride - padding; tap r has the offset r * dilation.
struct Im2colUse {
    std::vector<int64_t> lower, upper;  ///< of w, h and d, as many as there are: within 16, 8 or 5 bits, with the sign
    int64_t channels = 0;               ///< elements of a pixel, whole units of 16 bytes, at most the swizzle's line
    int64_t pixels = 0;                 ///< 1 to 1024

    bool operator==(const Im2colUse&) const = default;
};

/// A parameter of a kernel through which the tensor memory accelerator finds a tensor.
struct TensorMapUse {
    Buffer map;  ///< its name
    Buffer tensor;
    std::vector<int64_t> box;  ///< elements that one request covers, innermost dimension first; none of im2col
    int swizzle = 0;      ///< bytes of shared memory's lines if their pieces are exchanged, see BufferNode. Shorter
                          ///< rows of a box leave the rest of their lines alone
    bool writes = false;  ///< the tensor
    std::vector<int64_t> traversal_strides = {};  ///< of each so many elements, the first is moved; empty: all are.
                                                  ///< 1 to 8, innermost dimension first, which has 1
    std::optional<Im2colUse> im2col = {};

    int64_t traversal_stride(size_t dimension) const {
        return traversal_strides.empty() ? 1 : traversal_strides[dimension];
    }
    /// Elements that a request moves, those outside of the tensor too: what its barrier counts.
    int64_t elements() const {
        if (im2col) return im2col->channels * im2col->pixels;
        int64_t count = 1;
        for (size_t d = 0; d < box.size(); ++d) count *= (box[d] + traversal_stride(d) - 1) / traversal_stride(d);
        return count;
    }
};

}  // namespace tw::codegen
