// Convolutions of few channels and filters: each tile of pixels comes once, with its halo, and all taps read it.
#pragma once
#include <optional>

#include "schedules/convolution.h"

namespace tw::schedules {

/// Images as a raster: rows of width + padding places, height + padding of them an image, so that neighbours share
/// what is padded. A tap is a distance between places, the same for all of them:
///
///     raster[m, c]  = x at place m, zeros in the padding        image m / (w h), row m / w % h, column m % w, less
///                                                               the padding; w, h: extents of an image's raster
///     sums[m, f]    = sum_{r, s, c} raster[m + (r w + s) dilation, c] taps[r, s, f, c]
///     y[n, p, q, f] = sums[n h w + p w + q, f]
///
/// Tensors that only say so: none of them is made. The data gradient is the same sum, of dy, with flipped taps.
struct HaloConvolution {
    Tensor x = {}, w = {};          ///< x: dy, of the data gradient
    Tensor result = {};             ///< y or dL/dx
    Tensor raster = {};             ///< [places and those behind that taps reach, channels]
    Tensor taps = {};               ///< [kernel_h, kernel_w, filters, channels], or channels before filters, as w lies
    Tensor sums = {};               ///< [places, filters]
    int64_t height = 0, width = 0;  ///< of an image's raster
};

/// Whether it can be computed so: a stride of 1, at most as much padding as taps reach, whole pieces of 16 bytes of
/// channels and filters, at most 64 of what the unit takes as rows, and weights that stay in shared memory.
bool takes_halo(const ConvolutionShape& shape, ConvolutionPass pass, const HaloTiles& tiles, const Target& target);
/// The fastest by a model of an H200; nothing where `tapwise` cycles of a multiprocessor are fewer, or none can be.
std::optional<HaloTiles> halo_tiles(const ConvolutionShape& shape, ConvolutionPass pass, double tapwise,
                                    const Target& target);

/// The raster has whole tiles of `places`. Throws Error for a weight gradient, or what takes_halo refuses whatever the
/// tiles.
HaloConvolution declare_halo_convolution(const ConvolutionShape& shape, ConvolutionPass pass, int64_t places, TW_HERE);
/// Among other stages; nothing of it is inlined before.
void schedule_halo(Schedule& s, const HaloConvolution& convolution, const HaloTiles& tiles, TW_HERE);
Schedule halo_schedule(const HaloConvolution& convolution, const HaloTiles& tiles, const Target& target, TW_HERE);

}  // namespace tw::schedules
