// The kernels that come with the library, by name: what `tw list` shows and what tests and the GPU suite run through.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "dsl/schedule.h"

namespace tw::schedules {

struct CatalogEntry {
    std::string name;         ///< "product_64x48x40"
    std::string description;
    double flops = 0;         ///< of one run
    std::function<Schedule(const Target&)> make;
};

/// Every entry; names are unique.
const std::vector<CatalogEntry>& catalog();
/// The entry of this name, or nullptr. "product_MxNxK" is known for any extents, with suffixes _ta, _tb (transposed
/// operands) and _ab (alpha, beta).
const CatalogEntry* find_kernel(const std::string& name);

}  // namespace tw::schedules
