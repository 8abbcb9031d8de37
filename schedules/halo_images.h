// Images of a convolution as a raster of places, for the schedules that load each tile of it once for all taps.
#pragma once
#include <algorithm>
#include <cstdint>

#include "schedules/convolution.h"
#include "schedules/whole_tiles.h"

namespace tw::schedules {

/// Of so many, that come together: a line.
inline int64_t terms_of_step(int64_t terms) { return std::min<int64_t>(terms, 64); }

/// The same sum of either pass: images of channels to images of filters. A weight gradient reads both, as the forward
/// pass does one and makes the other.
struct Images {
    int64_t images, height, width, channels, filters;  // of what is read; of the result: filters
    int64_t rows, columns;                             // of the result
    int64_t reach_h, reach_w;                          // from the first tap to the last
    int64_t padding_h, padding_w;

    int64_t raster_height() const { return height + padding_h; }
    int64_t raster_width() const { return width + padding_w; }
    int64_t places() const { return images * raster_height() * raster_width(); }
    /// Behind a place, that its taps read.
    int64_t halo() const { return reach_h * raster_width() + reach_w; }
    /// In lines of 32, 64 or 128 bytes.
    int64_t terms() const { return channels <= 16 ? 16 : channels <= 32 ? 32 : rounded_up(channels, 64); }
    int64_t terms_of_step() const { return schedules::terms_of_step(terms()); }
};

inline Images images_of(const ConvolutionShape& s, ConvolutionPass pass) {
    const int64_t reach_h = (s.kernel_h - 1) * s.dilation, reach_w = (s.kernel_w - 1) * s.dilation;
    if (pass != ConvolutionPass::DataGradient)
        return {s.images,    s.height, s.width, s.channels, s.filters, s.rows(),
                s.columns(), reach_h,  reach_w, s.padding,  s.padding};
    return {s.images, s.rows(), s.columns(), s.filters,           s.channels,         s.height,
            s.width,  reach_h,  reach_w,     reach_h - s.padding, reach_w - s.padding};
}

constexpr int64_t most_pixels_of_box = 1024;

/// Whether taps are distances between places, the same for all of them, and rows of channels and filters whole pieces.
inline bool is_raster(const ConvolutionShape& s) {
    if (s.stride != 1 || s.groups != 1 || s.kernel_h * s.kernel_w == 1) return false;
    return s.padding <= (s.kernel_h - 1) * s.dilation && s.padding <= (s.kernel_w - 1) * s.dilation &&
           s.channels % piece == 0 && s.filters % piece == 0;
}

}  // namespace tw::schedules
