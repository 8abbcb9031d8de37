// Pooling and up-sampling of a network. The declarations, their shapes, types and errors: schedules/pooling.h and
// schedules/upsampling.h.
#pragma once
#include <vector>

#include "ops/operator.h"
#include "schedules/pooling.h"
#include "schedules/upsampling.h"

namespace tw::nn {

using schedules::CountPadding;
using schedules::PoolingOptions;

/// The largest of each window of x [images, extents..., channels], NaN where it has one; the gradient goes to the first
/// of equal ones.
Tensor max_pool(const Tensor& x, const PoolingOptions& options, TW_HERE);
/// And where it stands: i64, the row-major number in the image, -1 of a window that reads nothing of it. It requires no
/// gradient.
struct MaxPool {
    Tensor values, places;
};
MaxPool max_pool_with_places(const Tensor& x, const PoolingOptions& options, TW_HERE);
/// The mean of each window.
Tensor average_pool(const Tensor& x, const PoolingOptions& options, CountPadding count = CountPadding::Yes, TW_HERE);
/// Means of `results` windows along each dimension that cover it; {1} is the mean of an image.
Tensor adaptive_average_pool(const Tensor& x, const std::vector<int64_t>& results, TW_HERE);

/// Each element as many times as the factors say.
Tensor upsample_nearest(const Tensor& x, const std::vector<int64_t>& factors, TW_HERE);
/// Linear between elements along each dimension, which stand in the middle of their areas.
Tensor upsample_linear(const Tensor& x, const std::vector<int64_t>& factors, TW_HERE);

}  // namespace tw::nn
