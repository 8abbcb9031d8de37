#include "dsl/replay_changed.h"

#include "dsl/replayer.h"

namespace tw {

ChangeableTrace::ChangeableTrace(const Schedule& schedule) : schedule_(schedule) { Replayer::look_at(*this); }

Schedule ChangeableTrace::with(const std::vector<StepChange>& changes, std::source_location where) const {
    return Replayer::changed(*this, changes, where);
}

void Replayer::look_at(ChangeableTrace& trace) {
    const Schedule& whole = trace.schedule_;
    const TreesLater later;
    Replayer replayer(whole.outputs(), whole.target(), std::source_location::current());
    auto count = [&] {
        const Schedule::State& state = *replayer.schedule_.state_;
        trace.counts_.push_back({state.loops.size(), state.stages.size()});
    };
    trace.steps_ = whole.state_->saved;
    count();
    for (size_t k = 0; k < trace.steps_.size(); ++k) {
        replayer.named_loops_.clear();
        replayer.apply(trace.steps_[k], static_cast<int>(k) + 2);
        trace.named_.push_back(replayer.named_loops_);
        count();
    }
}

Schedule Replayer::changed(const ChangeableTrace& trace, const std::vector<StepChange>& changes,
                           std::source_location where) {
    const TreesLater later;
    Replayer replayer(trace.schedule_.outputs(), trace.schedule_.target(), where);
    replayer.leaves_out_ = true;
    replayer.loops_.emplace(), replayer.stages_.emplace();
    for (size_t k = 0; k < trace.counts_[0].loops; ++k) (*replayer.loops_)[static_cast<int>(k)] = static_cast<int>(k);
    for (size_t k = 0; k < trace.counts_[0].stages; ++k) (*replayer.stages_)[static_cast<int>(k)] = static_cast<int>(k);
    for (size_t k = 0; k < trace.steps_.size(); ++k) {
        StepChange change{.step = k};
        for (const StepChange& each : changes)
            if (each.step == k) change = each;
        replayer.apply_changed(trace, change);
    }
    return std::move(replayer.schedule_);
}

void Replayer::apply_changed(const ChangeableTrace& trace, const StepChange& change) {
    const auto number = static_cast<int>(change.step) + 2;
    auto state = [&]() -> const Schedule::State& { return *schedule_.state_; };
    if (change.split.loop >= 0) {
        const auto first = static_cast<int>(state().loops.size());
        apply(fmt::format("split {} {} mask", change.split.loop, change.split.size), number);
        (*loops_)[change.split.loop] = first + (change.split.keeps_outer ? 0 : 1);
    }
    if (change.is_left_out) return;
    const size_t loops = state().loops.size(), stages = state().stages.size();
    misses_ = false;
    try {
        apply(change.instead.empty() ? trace.steps_[change.step] : change.instead, number);
    } catch (const Error&) {
        if (!misses_) throw;
        return;  // it is about what is left out
    }
    auto number_new = [](std::map<int, int>& numbers, size_t theirs, size_t theirs_end, size_t ours, size_t ours_end) {
        for (; theirs < theirs_end && ours < ours_end; ++theirs, ++ours)
            numbers[static_cast<int>(theirs)] = static_cast<int>(ours);
    };
    const ChangeableTrace::Counts before = trace.counts_[change.step], behind = trace.counts_[change.step + 1];
    number_new(*loops_, before.loops, behind.loops, loops, state().loops.size());
    number_new(*stages_, before.stages, behind.stages, stages, state().stages.size());
}

}  // namespace tw
