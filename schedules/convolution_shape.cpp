#include "schedules/convolution.h"
#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

int64_t pixels_along(int64_t size, int64_t kernel, const ConvolutionShape& s) {
    return (size + 2 * s.padding - (kernel - 1) * s.dilation - 1) / s.stride + 1;
}

/// The taps along a side that read the image somewhere, and not zeros around it.
std::vector<int64_t> taps_that_read(int64_t pixels, int64_t taps, int64_t extent, const ConvolutionShape& s) {
    std::vector<int64_t> result;
    for (int64_t tap = 0; tap < taps; ++tap)
        for (int64_t pixel = 0; pixel < pixels; ++pixel)
            if (const int64_t at = pixel * s.stride + tap * s.dilation - s.padding; at >= 0 && at < extent) {
                result.push_back(tap);
                break;
            }
    return result;
}

}  // namespace

int64_t ConvolutionShape::rows() const { return pixels_along(height, kernel_h, *this); }
int64_t ConvolutionShape::columns() const { return pixels_along(width, kernel_w, *this); }

bool ConvolutionShape::has_pixels() const {
    return height + 2 * padding > (kernel_h - 1) * dilation && width + 2 * padding > (kernel_w - 1) * dilation;
}

bool ConvolutionShape::has_groups() const { return groups >= 1 && channels % groups == 0 && filters % groups == 0; }

std::vector<int64_t> ConvolutionShape::taps_of_rows() const { return taps_that_read(rows(), kernel_h, height, *this); }
std::vector<int64_t> ConvolutionShape::taps_of_columns() const {
    return taps_that_read(columns(), kernel_w, width, *this);
}

bool ConvolutionShape::reads_image() const { return !taps_of_rows().empty() && !taps_of_columns().empty(); }

double ConvolutionShape::flops() const {
    return 2 * as_double(images * rows() * columns()) * as_double(filters * channels / groups) *
           as_double(kernel_h * kernel_w);
}

double ConvolutionShape::bytes() const {
    const double elements = as_double(images) * (as_double(height * width) * as_double(channels) +
                                                 as_double(rows() * columns()) * as_double(filters)) +
                            as_double(filters * kernel_h) * as_double(kernel_w * channels / groups);
    return elements * bytes_of(type);
}

}  // namespace tw::schedules
