// How groups of a convolution are multiplied: one by one, with zeros behind their channels, or several together.
#pragma once
#include "schedules/convolution.h"

namespace tw::schedules {

struct GroupPlan {
    int64_t joined = 1;         ///< so many together, with zeros for each other's channels
    int64_t channels, filters;  ///< of a product; of one group more than it has, if copies put zeros behind them
};
/// Few channels are joined until they have a row of shared memory; where a group's channels or filters are no whole
/// units, it has zeros behind them if the copies cost less than products with zeros of other groups.
GroupPlan plan_groups(const ConvolutionShape& shape, ConvolutionPass pass);
/// One by one: terms are whole rows of shared memory, columns whole units.
GroupPlan padded_groups(const ConvolutionShape& shape, ConvolutionPass pass);

/// Of a shape with groups, by that plan, of plan_groups or padded_groups.
Convolution declare_convolution(const ConvolutionShape& shape, ConvolutionPass pass, const GroupPlan& plan, TW_HERE);

}  // namespace tw::schedules
