// What inputs of integers may hold, as the declaration uses them.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "dsl/interpret.h"

namespace tw {

/// The range of an input's elements, both ends inclusive.
struct IntegerRange {
    int64_t low = 0, high = 7;
    bool ascending = false;  ///< the difference of two elements is the extent of a loop: bounds of segments
};

/// Ranges of the inputs of integers whose elements decide where something is read, by themselves or as the extent of a
/// loop, or which element something counts for: within them no index leaves its dimension, and nearly all of the
/// dimension is met. Where the declaration does without what lies outside (padded(), a scatter), there is a little of
/// that too. Inputs that decide nothing, or in a way that is not understood, are left out. `numbers` has the sizes and
/// scalars.
std::map<std::string, IntegerRange> integer_ranges(const std::vector<Tensor>& outputs, const Bindings& numbers);

/// Uniform whole numbers of the range, as far as the type has them; bool: 0 and 1.
void fill_integers(HostArray& array, const IntegerRange& range, uint64_t seed);

}  // namespace tw
