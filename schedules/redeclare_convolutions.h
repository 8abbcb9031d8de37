// Convolutions among what is computed, declared as they are fastest: with copies of their operands, without taps that
// read no image, or over a raster that comes with its halo.
#pragma once
#include <vector>

#include "schedules/halo_convolution.h"

namespace tw::schedules {

struct RedeclaredHalo {
    HaloConvolution convolution;
    HaloTiles tiles;
};

/// What computes the same, some convolutions declared as declare_convolution() or declare_halo_convolution() does, over
/// the tensors that they read. Tensors that are not declared anew are those that were given.
struct RedeclaredConvolutions {
    std::vector<Tensor> outputs;  ///< each says what the one given in its place does, and has its name
    std::vector<Tensor> given;    ///< the tensors that were declared anew
    std::vector<Tensor> sums;     ///< what is to be on tensor cores for each of these
    std::vector<Tensor> cut;      ///< results that are parts of products, in their order
    std::vector<RedeclaredHalo> halos;
};

/// Of those that takes_warpgroups() and find_convolution() take, but `without` some, as given.
RedeclaredConvolutions redeclare_convolutions(const std::vector<Tensor>& outputs, const std::vector<Tensor>& without,
                                              const Target& target);

}  // namespace tw::schedules
