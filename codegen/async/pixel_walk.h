// Copies that walk over the pixels of images, row by row and image by image, as im2col boxes of the tensor memory
// accelerator do.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "codegen/tile_ir/tile_ir.h"

namespace tw::codegen {

/// A loop that runs along several dimensions of a tensor at once: of element e + loop of a fused index, the innermost
/// has the digit (e + loop) % q, the next (e + loop) / q % p, and so on. Where the base pixel leaves the bounding box
/// [lower, extent + upper) of a dimension, it goes on with the next; the pixel that is read is `offset` further.
struct PixelWalk {
    struct Dimension {
        int64_t step = 1;              ///< from one base pixel to the next (CUtensorMap: traversal stride)
        int64_t lower = 0, upper = 0;  ///< corners of the bounding box, from the tensor's first and last element
        Expr base;                     ///< the first base pixel, over `variable`: 0 of it, or the first of a part
        Expr offset;                   ///< what is added to it, the same for all pixels of a box
    };
    Expr variable;
    int64_t pixels = 0;
    Expr image;                         ///< in the tensor's first dimension, as a base is
    Expr fused;                         ///< the pixel's number over all images, if it walks from image to image
    int64_t pixels_of_image = 0;        ///< as many as that counts for each
    std::vector<Dimension> dimensions;  ///< those between the first and the last of the tensor, innermost first
    std::string reason;                 ///< why it is none; empty if it is one
};

/// The walk of `loop` through a tensor at these indices, of which the last one's runs along the row of a pixel.
PixelWalk walk_of(const OpLoop& loop, const std::vector<Expr>& indices, const std::vector<Expr>& shape);

/// What descriptors hold of an offset in a tensor of so many dimensions.
int64_t most_offset_of_walk(size_t rank);

}  // namespace tw::codegen
