// Operands of products on a device, in several sets, so that a cache has forgotten one when its turn comes again.
#pragma once
#include <vector>

#include "dsl/interpret.h"
#include "ops/executable.h"

namespace tw::bench {

/// Buffers for every input and output of a tree of constant extents.
class OperandSets {
public:
    /// As many sets as span `least_bytes` together, one at least; inputs normally distributed, equal in all sets.
    OperandSets(const Tree& tree, Device& device, double least_bytes);

    const std::vector<Arguments>& sets() const { return sets_; }
    /// Of one set.
    int64_t bytes() const { return bytes_; }

private:
    std::vector<Arguments> sets_;
    int64_t bytes_ = 0;
};

}  // namespace tw::bench
