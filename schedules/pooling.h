// Pooling over windows of images of one to three dimensions, as expressions. Channels come last.
#pragma once
#include "schedules/windows.h"

namespace tw::schedules {

/// Lists hold a number for each dimension of the images, or one for all of them: {.window = {3}, .stride = {2}}.
struct PoolingOptions {
    std::vector<int64_t> window;
    std::vector<int64_t> stride = {};  ///< as large as the window if empty
    std::vector<int64_t> dilation = {1};
    std::vector<Sides> padding = {0};
    bool ceil_mode = false;  ///< a last window may reach beyond the padding, if it begins before the image's end
};

/// y[n, p..., c] = the largest x[n, (p stride + r dilation - padding.before)..., c] of the taps r that lie in the
/// image.
///
///     x [N, extents..., C] -> y [N, windows..., C] of x's type, windows as those of convolve(), or, with ceil_mode, as
///     many as those with the division rounded up, less one that would begin behind the image
///
/// A window with a NaN gives NaN, unlike reduce_max; of no tap, the largest is -infinity. The gradient of y goes to the
/// first of equal elements, or of NaN, in row-major order. Throws Error where a padding is as large as a window, and
/// what window_dimensions() throws.
Tensor max_pool(const std::string& name, const Tensor& x, const PoolingOptions& options, TW_HERE);
/// Where max_pool found them: i64 [N, windows..., C], the row-major number of the element in the image, h width + w; -1
/// where no tap lies in the image.
Tensor max_pool_places(const std::string& name, const Tensor& x, const PoolingOptions& options, TW_HERE);

/// Whether elements of the padding, which are zeros, count as elements of a mean.
enum class CountPadding { Yes, No };
/// y[n, p..., c] = the mean of the elements of a window; summed in f32, of f64 in f64. What a window has beyond the
/// padding (ceil_mode) never counts. Shapes and errors are those of
/// max_pool().
Tensor average_pool(const std::string& name, const Tensor& x, const PoolingOptions& options,
                    CountPadding count = CountPadding::Yes, TW_HERE);
/// y[n, p..., c] = the mean of x[n, i..., c], i from p extent / result to (p + 1) extent / result, rounded down and up.
///
///     x [N, extents..., C] -> y [N, results..., C] of x's type
///
/// `results` has a number for each dimension of the images, or one for all. Throws Error where one is less than 1.
Tensor adaptive_average_pool(const std::string& name, const Tensor& x, const std::vector<int64_t>& results, TW_HERE);

}  // namespace tw::schedules
