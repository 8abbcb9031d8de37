// Operands of products on a device, in several sets, so that a cache has forgotten one when its turn comes again.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "dsl/interpret.h"
#include "ops/executable.h"

namespace tw::bench {

/// Fills an input by its name; false if it leaves it as it is.
using FillInput = std::function<bool(const std::string& input, HostArray& array, uint64_t seed)>;

/// Named sizes at their largest, and 0.75 for each scalar, 0 for one of integers.
Bindings numbers_of(const Tree& tree);

/// Buffers for every input and output of a tree, and its numbers_of().
class OperandSets {
public:
    /// As many sets as span `least_bytes` together, one at least; inputs that `fill` leaves are normally distributed.
    /// All sets are equal.
    OperandSets(const Tree& tree, Device& device, double least_bytes, const FillInput& fill);

    const std::vector<Arguments>& sets() const { return sets_; }
    /// How many bytes one set has.
    int64_t bytes() const { return bytes_; }
    /// Sizes and scalars, of all sets.
    const Bindings& numbers() const { return numbers_; }

private:
    Bindings numbers_;
    std::vector<Arguments> sets_;
    int64_t bytes_ = 0;
};

}  // namespace tw::bench
