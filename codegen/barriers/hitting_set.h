// The cheapest choice that has a member in every set.
#pragma once
#include <vector>

namespace tw::codegen {

/// Indices into `weights`, ascending, so that each set contains one of them and the sum of their weights is least; of
/// equally cheap choices, one with high indices. Exact for the dozens of sets that kernels have; when the search grows
/// too long, the best choice so far, of which no member can be left out.
std::vector<int> cheapest_hitting_set(std::vector<std::vector<int>> sets, const std::vector<double>& weights);

}  // namespace tw::codegen
