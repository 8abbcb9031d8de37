// A convolution and its neighbours in one kernel: what makes the image's elements, what is made of its results, and
// their sums over all pixels, which a batch normalisation needs.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "schedules/halo_convolution.h"

namespace tw::schedules {

/// What is made of a sum, one step after another: + bias[f], max(.., 0), silu(..), + residual[n, p, q, f].
enum class ConvolutionEpilogue { Bias, Relu, Silu, Residual };

/// A forward pass with channels and filters that are multiples of 8.
struct FusedConvolutionShape {
    ConvolutionShape convolution;
    bool prologue = false;  ///< windows are of max(x scale[c] + shift[c], 0), with zeros around it
    std::vector<ConvolutionEpilogue> epilogue = {};
    bool statistics = false;  ///< sums of y and of y y, by filter

    bool operator==(const FusedConvolutionShape&) const = default;
    /// Each operand and result once.
    double bytes() const;
};

struct FusedConvolution {
    Tensor x, w;             ///< as ConvolutionShape says
    Tensor scale, shift;     ///< [channels] f32, of a prologue
    Tensor image;            ///< what windows are of: x, or what the prologue makes of it, rounded to its type
    Tensor bias, residual;   ///< [filters] f32, and of y's shape and type; where they are added
    Tensor y;                ///< [images, P, Q, filters], rounded behind the last step
    Tensor totals, squares;  ///< [filters] f32, of statistics: of y as it is rounded

    std::vector<Tensor> outputs() const;
};
/// Throws Error as declare_convolution does, and if channels or filters are no multiple of 8.
FusedConvolution declare_fused_convolution(const FusedConvolutionShape& shape, TW_HERE);

/// One kernel, and of statistics a second one, which adds up those of tiles in order. A prologue is made in the same
/// kernel with tiles that are given; left to choose, by a kernel before, as was measured to be faster: each tap would
/// make its rows anew. Where takes_warpgroups is false, by choose_schedule.
Schedule fused_convolution_schedule(const FusedConvolution& convolution, const FusedConvolutionShape& shape,
                                    const std::optional<ConvolutionTiles>& tiles, const Target& target, TW_HERE);

/// The same over a raster that comes with its halo, see halo_convolution.h: a prologue is made once for all taps, a
/// residual arrives as boxes, and statistics are sums over places, masked where these are no pixels.
struct FusedHalo {
    FusedConvolution fused;
    HaloConvolution halo;
};
/// Throws Error as declare_halo_convolution does.
FusedHalo declare_fused_halo(const FusedConvolutionShape& shape, int64_t places, TW_HERE);
/// What that asks of tiles.
HaloExtras extras_of(const FusedConvolutionShape& shape);
/// The fastest by the models, where they are faster than tiles of windows for each tap.
std::optional<HaloTiles> fused_halo_tiles(const FusedConvolutionShape& shape, const Target& target);
Schedule fused_halo_schedule(const FusedHalo& convolution, const HaloTiles& tiles, const Target& target, TW_HERE);

struct NamedFusedConvolution {
    FusedConvolutionShape shape;
    std::optional<ConvolutionTiles> tiles;
    std::optional<HaloTiles> halo;  ///< instead of tiles
};
/// With those tiles, or else with what is faster by the models.
Schedule fused_convolution_schedule(const NamedFusedConvolution& named, const Target& target, TW_HERE);
/// Reads "convolution_fused_" and what parse_convolution reads behind "convolution_", of a forward pass, then
/// "_prologue", steps of the epilogue in their order, and "_statistics", each if it is there:
/// "convolution_fused_bf16_256x56x56x64_64_3x3_pad1_bias_relu". Nothing if it is no such name.
std::optional<NamedFusedConvolution> parse_fused_convolution(const std::string& name);

}  // namespace tw::schedules
