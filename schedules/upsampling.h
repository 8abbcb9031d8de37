// Images of one to three dimensions made larger, as expressions. Channels come last.
#pragma once
#include "schedules/windows.h"

namespace tw::schedules {

/// y[n, i..., c] = x[n, (i / factor)..., c]: x [N, extents..., C] -> y [N, extents factors..., C] of x's type.
/// `factors` has a whole number for each dimension of the images, or one for all. Throws Error where one is less
/// than 1.
Tensor upsample_nearest(const std::string& name, const Tensor& x, const std::vector<int64_t>& factors, TW_HERE);

/// Linear between the elements along each dimension (bilinear of two), shapes as those of upsample_nearest(). Pixels
/// are areas: element i of y stands at (i + 1/2) / factor - 1/2 of x, and beyond the outer elements there are copies of
/// them (align_corners false). Interpolated in f32, of f64 in f64; both neighbours are read, also with weight 0, which
/// an infinite one makes NaN.
Tensor upsample_linear(const std::string& name, const Tensor& x, const std::vector<int64_t>& factors, TW_HERE);

}  // namespace tw::schedules
