// Convolutions of few channels and filters: each tile of pixels comes once, with its halo, and all taps read it.
#pragma once
#include <functional>
#include <optional>
#include <vector>

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
/// Tensors that only say so: none of them is made. The data gradient is the same sum, of dy, with flipped taps. The
/// weight gradient sums over places, with zeros where dy has no pixel:
///
///     gradient[m, f]  = dy at place m, less no padding
///     dw[f, r, s, c]  = sum_m gradient[m, f] raster[m + (r w + s) dilation, c]
struct HaloConvolution {
    Tensor x = {}, w = {};                ///< x: dy, of the data gradient; w: dy, of the weight gradient
    Tensor result = {};                   ///< y, dL/dx or dL/dw
    Tensor raster = {};                   ///< [places and those behind that taps reach, channels]
    Tensor image = {};                    ///< raster, or what is made of it, with zeros in the padding
    std::vector<Tensor> by_channel = {};  ///< what `image` reads beside the raster, [channels]
    Tensor taps = {};          ///< [kernel_h, kernel_w, filters, channels], or channels before filters, as w lies; or
                               ///< gradient, [places, filters]
    Tensor made = {};          ///< [places, filters] f32, of sums, where `sums` choose between it and 0; else `sums`
    Tensor sums = {};          ///< [places, filters], as the result is rounded; or the result
    Tensor pixel = {};         ///< [places] i32: 1 where a place is a pixel of the result, else 0; of zeros_beside
    Tensor beside = {};        ///< of HaloNeighbours, as a raster: [places, filters], zeros where is no pixel
    bool sums_places = false;  ///< a weight gradient
    int64_t height = 0, width = 0;  ///< of an image's raster
};

/// What stands around the sums, f32, in their kernel.
struct HaloNeighbours {
    using Made = std::function<Expr(const Expr& value, const Expr& column)>;
    using MadeBeside = std::function<Expr(const Expr& value, const Expr& filter, const Expr& element)>;
    Made image = {};  ///< of an element of x and its channel, what taps are multiplied with: once for all of them
    std::vector<Tensor> by_channel = {};  ///< that it reads, [channels]
    Made sum = {};                        ///< of a sum and its filter
    bool zeros_beside = false;            ///< sums are 0 where a place is no pixel, for followers that reduce them
    Tensor beside = {};                   ///< of the result's shape and type; undefined: nothing is read there
    MadeBeside behind = {};               ///< behind `sum`, with the element of `beside` at the sum's place
};

/// What of HaloNeighbours takes shared memory and time.
struct HaloExtras {
    bool image = false;  ///< is made, in whole tiles of filters
    bool beside = false;
    bool sums = false;  ///< stages behind sum up what tiles make
};

/// Whether it can be computed so: a stride of 1, at most as much padding as taps reach, whole pieces of 16 bytes of
/// channels and filters, and tiles that fit into a block's shared memory; where weights stay in it, at most 64 filters,
/// which the unit takes as rows. A weight gradient, without extras: rows of taps that up to three warpgroups can share,
/// and hold.
bool takes_halo(const ConvolutionShape& shape, ConvolutionPass pass, const HaloTiles& tiles, const Target& target,
                const HaloExtras& extras = {});
/// Cycles of a multiprocessor, by a model of an H200, for what takes_halo takes.
double halo_cycles(const ConvolutionShape& shape, ConvolutionPass pass, const HaloTiles& tiles, const Target& target,
                   const HaloExtras& extras = {});
/// The fastest by that model; nothing where `tapwise` cycles of a multiprocessor are fewer, or none can be.
std::optional<HaloTiles> halo_tiles(const ConvolutionShape& shape, ConvolutionPass pass, double tapwise,
                                    const Target& target, const HaloExtras& extras = {});

/// The raster has whole tiles of `places` (HaloTiles::whole_places()). Throws Error for what takes_halo refuses
/// whatever the tiles, and neighbours of a weight gradient.
HaloConvolution declare_halo_convolution(const ConvolutionShape& shape, ConvolutionPass pass, int64_t places,
                                         const HaloNeighbours& neighbours = {}, TW_HERE);
Schedule halo_schedule(const HaloConvolution& convolution, const HaloTiles& tiles, const Target& target, TW_HERE);
/// Stages that read `sums` where they are: of the places that leave together, and of what those make of a tile.
struct HaloFollowers {
    std::vector<StageRef> of_pieces = {}, of_tiles = {};
};
/// The same in a schedule of more outputs than convolution.result.
void schedule_halo(Schedule& s, const HaloConvolution& convolution, const HaloTiles& tiles,
                   const HaloFollowers& followers = {}, TW_HERE);

}  // namespace tw::schedules
