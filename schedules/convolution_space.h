// The tuner's search space for convolutions.
#pragma once
#include <vector>

#include "schedules/convolution_tilings.h"

namespace tw::schedules {

/// Tilings of a pass, 60 at most: those for which models of an H200's time give least, best first, tiles for each tap
/// and rasters with their halo; of the very best also other numbers of stages and ways out of the block, and
/// warpgroups in turn. None where choose_convolution() has none.
std::vector<ConvolutionTiling> convolution_space(const ConvolutionShape& shape, ConvolutionPass pass,
                                                 const Target& target);

}  // namespace tw::schedules
