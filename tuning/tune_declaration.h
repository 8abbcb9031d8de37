// The fastest schedule of any declaration, measured, proved and kept for the programs that come.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "schedules/candidates.h"
#include "tuning/tune.h"

namespace tw {

struct TuneRequest {
    size_t limit = 60;  ///< candidates measured, the rule's schedule among them
    /// Schedules beyond the rule's choices that a search looks at (search_schedules.h); of those that the model of time
    /// expects to be faster than all candidates, a few are measured among the `limit`. 0: none.
    size_t generated = 200;
    double seconds = 5;        ///< to measure at most; every round is finished
    double within = 0;         ///< seconds for compiling and measuring together; 0: no such limit
    int threads = 0;           ///< to compile on; 0: one for each processor
    double least_gain = 0.02;  ///< by which share a schedule must be faster than the rule's to be taken
    bool keep = true;  ///< the record, in the folder that choose_schedule reads (schedules/tuned_declarations.h)
    schedules::ScheduleRule rule = schedules::choose_schedule;  ///< or one's own, that asks by pick()
    std::string rule_name = "choose_schedule";                  ///< what schedule_as_tuned knows one's own by
    /// Seconds of one run of a candidate, by its picks ("rule", "y.threads=64 y.way=read"), asked in place of the
    /// device's clock. A record that is kept is as good as any other of the device's architecture.
    std::function<double(const std::string& picks)> clock = {};
    tuning::ShowStep show = {};
};

struct TunedDeclaration {
    Schedule schedule;          ///< the winner's
    schedules::Picks picks;     ///< where that is not as the rule has it; empty: the rule's is the fastest
    tuning::TuneResult result;  ///< the times of all
    std::string text;           ///< what won, by how much, and the times of all candidates, a line each
};

/// Measures the candidates of the declaration (schedules/candidates.h) side by side, as tuning::tune does, proves the
/// fastest against float64, and keeps its record: equal declarations are then scheduled so, by every program of this
/// user. Named sizes are at their largest. Throws Error without a device that has a clock, and what tuning::tune
/// throws. Steps of the library's rule cite the caller's line, `where`, in front of their own.
TunedDeclaration tune(const std::vector<Tensor>& outputs, const std::shared_ptr<Device>& device,
                      const TuneRequest& request = {}, TW_HERE);

}  // namespace tw
