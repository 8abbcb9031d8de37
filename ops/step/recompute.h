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
/// by their names, and rounded copies of what is inside are inside. Values are -1 where a tensor has none.
std::vector<RegionOfPlan> regions_of(const std::vector<MadeBetween>& regions, const schedules::Declared& declared,
                                     const schedules::Declared& present, const StepGraph& graph,
                                     const std::function<int(const Tensor&)>& value_of);

/// Groups in an order in which those that free more memory than they take come as soon as they can: products for the
/// gradients of parameters right behind their adjoints; and those that overwrite something for nobody as late as they
/// can. The others stay in the plan's order.
void order_for_memory(StepPlan& plan);

// These change a plan that has no places yet. A group is made again just in front of the first who needs it, or of who
// overwrites what it reads; one that overwrites something itself is not made again. `plan.again` tells each.

/// The regions, one after the other; inner ones first, where one is inside of another one.
void make_again(StepPlan& plan, const std::vector<RegionOfPlan>& regions);

/// Where most of the arena is in use: of the groups whose results wait there, has that one made again which saves most
/// bytes for its time; none twice, and none that scatters by data. False if there is none.
bool make_cheapest_again(StepPlan& plan);

/// Bytes of the arena in use at a time, at most.
int64_t most_bytes_alive(const StepPlan& plan);

}  // namespace tw
