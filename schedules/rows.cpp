#include "schedules/rows.h"
#include "schedules/producers.h"
#include "support/error.h"

#include <algorithm>

namespace tw::schedules {

void schedule_serial_rows(Schedule& s, const Tensor& y, int64_t threads, std::source_location where) {
    CalledFrom caller(where);
    Stage last = s[y];
    auto [block, lane_of] = s.split(s.data_loops(y)[0], threads, Tail::Mask, {"block", "row"});
    s.bind(block, grid.x);
    s.bind(lane_of, thread);
    std::vector<Stage> stages = producers_of(s, last);
    std::reverse(stages.begin(), stages.end());  // readers first
    for (Stage stage : stages) {
        if (stage.id == last.id) continue;
        if (s.reduces(stage))
            s.at(stage, lane_of);
        else
            s.inline_stage(stage);
    }
}

}  // namespace tw::schedules
