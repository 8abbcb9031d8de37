// Sums over all pixels of what a convolution makes, by the kernel that makes it, while it is there.
#pragma once
#include "schedules/halo_convolution.h"

namespace tw::schedules {

/// What is read beside the sums of products, and made of tiles, in their kernel.
struct TileNeighbours {
    bool beside = false;  ///< pieces of a tensor of the result's shape arrive
    bool sums = false;    ///< elements of tiles are summed
};
/// What a thread holds beside sums of products takes registers: tiles have fewer rows. They leave in pieces where these
/// are summed, or where pieces of another tensor arrive.
ConvolutionTiles with_room(ConvolutionTiles tiles, const TileNeighbours& neighbours, const ConvolutionExtents& extents,
                           const Target& target);

/// schedule_windows, whose result's elements `totals`, [columns], sums over all pixels: in the same kernel over the
/// rows of each tile, or of what a warpgroup has of it, and in a kernel behind over those. Throws what their steps
/// throw.
void schedule_windows_and_sums(Schedule& s, const WindowProduct& product, const ConvolutionTiles& tiles,
                               const Tensor& totals, WindowNeighbours neighbours = {}, TW_HERE);
/// The same of schedule_halo, whose places `totals`, [filters], sums: those that leave together, those of a tile, and,
/// in a kernel behind, all. Sums are 0 where a place is no pixel (HaloNeighbours::zeros_beside).
void schedule_halo_and_sums(Schedule& s, const HaloConvolution& convolution, const HaloTiles& tiles,
                            const Tensor& totals, TW_HERE);

}  // namespace tw::schedules
