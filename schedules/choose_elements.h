// Stages that reduce nothing: which elements a thread makes.
#pragma once
#include "dsl/schedule.h"

namespace tw::schedules {

/// Schedules a stage that reduces nothing, as a kernel of its own, by where its elements lie and what they read
/// (element_reads.h). All data loops are one, of which each thread takes vectors: of as many elements as cost the least
/// requests and lines, several where a block's neighbours have work enough. Large operands whose rows run along another
/// axis than the stage's pass through shared memory in tiles. Outputs like it that read the same have their elements
/// made by the same threads (elements_beside.h). What a step or a pass refuses is an element a thread
/// (spread_results). A note for explain() says which. Nothing is left to do for a stage that stands beside another.
void schedule_elements(Schedule& s, Stage stage);

}  // namespace tw::schedules
