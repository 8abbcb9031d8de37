// The ways to tile a sum of products, before one is found that can be built.
#pragma once
#include <vector>

#include "schedules/lying_pixels.h"
#include "schedules/redeclare_convolutions.h"
#include "schedules/tiled_product.h"

namespace tw::schedules {

/// Whether the sums are tiled as they were declared anew, and in no other way.
bool is_redeclared(const Tensor& sums, const RedeclaredConvolutions& declared);

/// Tilings of the tensor's sums, the best first: over a raster, or windows in registers, as they were declared anew;
/// over pixels as they lie, over windows, together with what alone reads them or by themselves; on tensor cores; by
/// threads. Empty for what is no sum of products.
std::vector<TiledProduct> tilings_to_try(const Tensor& sums, const RedeclaredConvolutions& declared,
                                         const std::vector<LyingPixels>& lying, const std::vector<Tensor>& outputs,
                                         const Target& target);

}  // namespace tw::schedules
