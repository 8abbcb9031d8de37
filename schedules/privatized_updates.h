// Sums and extrema of few elements with many terms each, as of a histogram: blocks combine a part of the terms in
// shared memory, and add what comes of it to the result.
#pragma once
#include "dsl/schedule.h"

namespace tw::schedules {

/// Whether all elements of a reduction of terms that each count for one of them fit into shared memory, and terms are
/// many more than these.
bool may_be_privatized(const Schedule& s, Stage stage);

/// Schedules such a reduction by atomic updates of a copy in each block's shared memory, which is then combined with
/// the result atomically (privatisation; Podlozhnyuk 2007). Only where any order gives the same bits: whole numbers
/// that are added, minima and maxima. Terms may choose their element along any of its dimensions, and have several axes.
/// Whether it did.
bool schedule_privatized(Schedule& s, Stage stage);

}  // namespace tw::schedules
