// Memory for time: what a step makes again where it is needed late, instead of keeping it from when it was made first.
//
// It is done with groups, behind the cut: a group that is made again is the same kernels over the same bytes, so that
// values have the same bits, in any precision, and nothing is scheduled or compiled for it.
#pragma once
#include <cstdint>
#include <functional>
#include <set>
#include <source_location>
#include <vector>

#include "dsl/schedule_options.h"
#include "ops/made_between.h"
#include "ops/step/step_graph.h"

namespace tw {

struct StepPlan;

struct Recompute {
    /// The arena's size, at most: what the plan chooses is made again until it fits (the greatest saving for its
    /// predicted time first). 0: of any size.
    int64_t bytes = 0;
    /// What lies inside of these is made again for all who read it when the results have been made and are not needed
    /// for results themselves: for the backward pass.
    std::vector<MadeBetween> regions = {};
};

/// A region as values of a plan.
struct RegionOfPlan {
    std::set<int> inside, results;
};

/// Of the graph, which is of `present`, a step that is `declared` anew (mixed_precision.h): operations are found again
/// by their names, and rounded copies of what is inside are inside.
std::vector<StepRegion> regions_of(const std::vector<MadeBetween>& regions, const schedules::Declared& declared,
                                   const schedules::Declared& present, const StepGraph& graph);

// These change a plan. A group is made again just in front of the first who needs it, or of who overwrites what it
// reads; one that overwrites something itself is not made again. `plan.again` tells each.

/// The regions, one after the other; inner ones first, where one is inside of another one. Groups come in the order for
/// memory (order_for_memory.h) before. They have no places then.
void make_again(StepPlan& plan, const std::vector<RegionOfPlan>& regions);

/// Nothing, if the arena has no more bytes than that. Else, by the least of what is needed at a time, as long as that
/// is too much, then by placements: where most of the arena is in use, of the groups whose results wait there, that one
/// is made again which saves most bytes for its time; none twice, and none that scatters by data. Throws Error if that
/// does not do, which names bytes that it does with.
void fit_into(StepPlan& plan, int64_t most_bytes, TW_HERE);

}  // namespace tw
