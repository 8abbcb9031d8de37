// Random operands of any size, fast: gigabytes are drawn on all processors.
#pragma once
#include <cstdint>
#include <string>

#include "dsl/host_array.h"
#include "ops/integer_ranges.h"

namespace tw::bench {

struct Range {
    double low = -1, high = 1;
};

/// Fills every element that the array spans, gaps included: floats uniform in [low, high), integers as the declaration
/// has them, the same for a seed on every machine. Floats of large arrays come again after some million elements.
void fill_random(HostArray& array, const Range& range, const IntegerRange& integers, uint64_t seed);

/// Fills as fill_random does, with mean 0 and standard deviation 1; integers of deviation 32, cut to [-127, 127].
void fill_normal(HostArray& array, uint64_t seed);

/// Fills as fill_random does, with whole numbers from -most to most: sums of their products are exact in every order.
void fill_whole(HostArray& array, int64_t most, uint64_t seed);

/// Elements that are larger than others: those whose index of a dimension is a multiple of `every`.
struct Outliers {
    int64_t dimension, every;
    double factor;
};
/// Multiplies them by the factor. Throws Error that names the input if it is not of floats, or has no such dimension,
/// or `every` is less than 1.
void scale_outliers(HostArray& array, const Outliers& outliers, const std::string& name);

/// Whole numbers in [low, high), none less than the one before it.
void fill_ascending(HostArray& array, const Range& range, uint64_t seed);

}  // namespace tw::bench
