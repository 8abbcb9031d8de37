// Weight gradients whose pixels come once for all taps: what halo_convolution.h does where places are terms.
#pragma once
#include <optional>

#include "schedules/halo_convolution.h"

namespace tw::schedules {

/// As takes_halo, halo_cycles, halo_tiles, declare_halo_convolution and schedule_halo say of a weight gradient.
bool takes_halo_of_terms(const ConvolutionShape& shape, const HaloTiles& tiles, const Target& target);
double halo_cycles_of_terms(const ConvolutionShape& shape, const HaloTiles& tiles, const Target& target);
std::optional<HaloTiles> halo_tiles_of_terms(const ConvolutionShape& shape, double tapwise, const Target& target);
HaloConvolution declare_halo_of_terms(const ConvolutionShape& shape, int64_t places, const HaloNeighbours& neighbours);
void schedule_halo_of_terms(Schedule& s, const HaloConvolution& convolution, const HaloTiles& tiles);

}  // namespace tw::schedules
