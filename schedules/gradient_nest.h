// What the kernels of attention's gradients have in common.
#pragma once
#include "dsl/schedule.h"

namespace tw::schedules {

/// The nest of a gradient: blocks of rows, of which each warpgroup has 64, and steps along the last of its terms.
struct GradientNest {
    Loop tile, group, step, row, column, term;
};

}  // namespace tw::schedules
