// Copies whose contiguous dimension changes.
#pragma once
#include "dsl/schedule.h"

namespace tw::schedules {

/// A kernel of its own for a stage that copies, of whatever is inlined into it. Where rows of the only tensor that it
/// reads run along another axis than its own, images with channels first, say, of which it makes channels last, square
/// tiles of the axes up to that one and of those behind it pass through shared memory; else schedule_dense_copy.
void schedule_copy(Schedule& s, const Tensor& copy, const std::vector<Tensor>& outputs, TW_HERE);

}  // namespace tw::schedules
