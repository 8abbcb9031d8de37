// Filters of a single tap over images whose channels come first, as they lie in memory: a product of matrices for each
// image, whose columns are its pixels.
#pragma once
#include <optional>
#include <vector>

#include "schedules/tensor_product.h"

namespace tw::schedules {

/// sums[n, f, p...] = sum_c filters[f, c, 0...] * images[n, c, p...], and what is made of it element by element.
/// Filters may be [c, f, 0...], as those of a data gradient are. Or, of a weight gradient, sums[f, c, 0...] = sum_{n,
/// p...} filters[n, f, p...] * images[n, c, p...].
struct LyingPixels {
    Tensor sums;  ///< of the name and shape of what it was found in, without taps
    Tensor filters, images;
    TensorProductShape shape;  ///< rows f, columns: pixels; of a weight gradient c, and the terms those of an image
    bool sums_pixels = false;
};

/// The tensor declared so, if it is such a sum of bf16 or f16 elements, beside axes of one iteration: no stride,
/// nothing around images, no groups, whole pieces of 16 bytes of pixels and of rows of filters. Nothing for any other.
std::optional<LyingPixels> lying_pixels(const Tensor& tensor, const std::vector<Tensor>& outputs);
/// The same of `sums`, which is declared like the product's, maybe over other tensors of the same names.
LyingPixels over_operands_of(const LyingPixels& product, const Tensor& sums, const std::vector<Tensor>& outputs);

/// Joins the axes of pixels, and schedules the product with tiles that suit it.
void schedule_lying_pixels(Schedule& s, const LyingPixels& product, TW_HERE);

}  // namespace tw::schedules
