// Tilings of convolutions by name: "128x256x64w2s4p1t1b64", "halo256b32s2t2".
#pragma once
#include <optional>
#include <string>
#include <variant>

#include "schedules/convolution.h"

namespace tw::schedules {

/// Tiles of pixels for each tap, or of a raster that comes with its halo.
using ConvolutionTiling = std::variant<ConvolutionTiles, HaloTiles>;

/// "128x256x64w2s4p3t2b64x2k9": rows, columns and terms, warpgroups, stages, parts, turns, columns of boxes, their
/// stages, and taps; what is 1, of columns of boxes 0, is not written behind the turns. "halo256b32s2t2": places, those
/// that leave together, stages and turns, with "w2r4" behind it for warpgroups and stages of weights that do not stay;
/// of a weight gradient, whose results do not leave in pieces, "halo128s4p33": places, stages and parts.
std::string tiling_text(const ConvolutionTiling& tiling);
/// Reads it. Nothing if it is no such text.
std::optional<ConvolutionTiling> parse_convolution_tiling(const std::string& text);

/// Schedules the pass by the tiling. Throws Error where takes_warpgroups is false, of a raster where channels
/// come first, and what a step refuses.
Schedule convolution_schedule(const ConvolutionShape& shape, ConvolutionPass pass, const ConvolutionTiling& tiling,
                              const Target& target, TW_HERE);

/// What a name without a tiling takes.
struct ChosenConvolution {
    ConvolutionTiling tiling;
    Schedule schedule;  ///< whose explain() says where the tiling is from, and what was left out before it
};
/// By its record (tuned_records.h), if that can be built, or else by models of an H200's time: what they put first,
/// or what asks for less. Nothing where takes_warpgroups is false, the pass is no product over windows, none of those
/// tilings can be built, which `left_out` is told with the reasons, or channels come first: choose_schedule moves
/// those, and takes what the layer has that is so made.
std::optional<ChosenConvolution> choose_convolution(const ConvolutionShape& shape, ConvolutionPass pass,
                                                    const Target& target, std::string* left_out = nullptr, TW_HERE);

}  // namespace tw::schedules
