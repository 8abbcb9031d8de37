// Tiles of a stage that nobody has scheduled, drawn at random: what a search starts from where it leaves a schedule's
// own.
#pragma once
#include "dsl/schedule.h"
#include "support/random.h"

namespace tw::tuning {

/// Splits the stage's loops, all of them fresh, into what blocks, threads and a thread's results are, and reduce loops
/// into steps, with copies of what they read in shared memory, or with threads that share the terms. Throws Error as
/// the steps do; what is only better is left out where it is refused.
void draw_tiles(Schedule& s, const Stage& stage, Random& random);
/// Has `threads` threads make the elements of a stage under another one's loop, all of whose loops are fresh.
void share_elements(Schedule& s, const Stage& stage, int64_t threads);

/// Takes the step, or leaves the schedule as it was where it is refused. Whether it was taken.
template <class Step>
bool try_step(Schedule& s, const Step& step);

/// What the stage reads under its loops: inputs, and other stages' elements; each once.
std::vector<StageRef> operands_of(Schedule& s, const Stage& stage);
/// Powers of two.
int64_t power_of_two_from(int64_t least);

}  // namespace tw::tuning

#include "support/error.h"

template <class Step>
bool tw::tuning::try_step(Schedule& s, const Step& step) {
    Schedule trial = s;
    try {
        step(trial);
        trial.tree();
    } catch (const Error&) {
        return false;
    }
    s = std::move(trial);
    return true;
}
