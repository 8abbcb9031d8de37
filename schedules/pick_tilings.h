// Which tiling of a product or a reduction is tried first, where a search may say (choices.h).
#pragma once
#include <vector>

#include "schedules/tiled_product.h"

namespace tw::schedules {

/// The tilings to try, what is picked first: one of them, or, of a product on tensor cores, of its space; none where
/// the stage is to be scheduled as if it had none. Tiles of threads have other sizes where these are picked.
std::vector<TiledProduct> pick_tilings(const Tensor& c, std::vector<TiledProduct> tilings, const Target& target);
/// Tells which of them it has in the end (took() of choices.h), or, by nullptr, that it has none.
void tell_tiling(const Tensor& c, const TiledProduct* tiled);

}  // namespace tw::schedules
