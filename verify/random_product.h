// Random products on tensor cores, and tilings of them.
#pragma once
#include <string>
#include <vector>

#include "schedules/tensor_product.h"
#include "verify/random.h"

namespace tw::fuzz {

/// A product of any type and transposition, perhaps a batch, with a bias or triangular; extents up to 2 to the
/// `log_extent`, k twice as long, most of them multiples of 16.
schedules::TensorProductShape random_product(Random& random, double log_extent);

/// One of the tuner's space, or not far from it: with other clusters, groups in ping-pong, stages, steps along k and
/// sums of the unit.
schedules::ProductTiling random_tiling(Random& random, const schedules::TensorProductShape& shape,
                                       const Target& target);

/// "gemm_bf16 3 x 40 x 64 x 128 ta tb bias, 64x64x64g1s4r"
std::string describe(const schedules::TensorProductShape& shape, const schedules::ProductTiling& tiling);

}  // namespace tw::fuzz
