// Saving a schedule's trace and applying it again: one step a line, loops and stages by their numbers.
#include "dsl/replayer.h"

namespace tw {

std::string Schedule::save() const {
    std::string text = std::string(Replayer::header) + "\n";
    for (const std::string& line : state_->saved) text += line + "\n";
    return text;
}

Schedule replay(const std::string& saved, const std::vector<Tensor>& outputs, Target target,
                std::source_location where) {
    return Replayer(outputs, std::move(target), where)
        .advising(
            ". Steps are of the tensors that their schedule has, some of which a rule may have declared anew: give its "
            "outputs(), replay(s.save(), s.outputs(), s.target())")
        .run(saved);
}

void replay_steps(const Schedule& schedule, const SeeSchedule& seen, std::source_location where) {
    Replayer(schedule.outputs(), schedule.target(), where).run(schedule.save(), seen);
}

}  // namespace tw
