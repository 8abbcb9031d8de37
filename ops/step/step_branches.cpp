#include "ops/step/step_branches.h"

#include <algorithm>
#include <functional>
#include <optional>

namespace tw {
namespace {

class Branching {
public:
    Branching(const std::vector<StepBranchGroup>& groups, int64_t multiprocessors)
        : groups_(groups), multiprocessors_(multiprocessors) {}

    std::vector<std::vector<size_t>> edges() {
        for (size_t g = 0; g < groups_.size(); ++g) add(g);
        return std::move(after_);
    }

private:
    void add(size_t g) {
        std::vector<size_t> before;  // the last one first
        for (size_t b = g; b-- > 0;)
            if (conflict(groups_[b].accesses, groups_[g].accesses)) before.push_back(b);
        const std::vector<bool> needed = all_before(before);
        while (tail_ && is_small(*tail_) && !needed[*tail_]) tail_ = in_front_[*tail_];  // that one is on a branch now
        const bool is_beside = tail_ && is_small(g) && !needed[*tail_];
        in_front_.push_back(tail_);
        if (!is_beside) {
            if (tail_) before.push_back(*tail_);
            tail_ = g;
        }
        std::ranges::sort(before, std::greater());
        std::vector<size_t>& after = after_.emplace_back();
        std::vector<bool>& ended = ended_.emplace_back(groups_.size());
        for (size_t b : before) {
            if (ended[b]) continue;
            after.push_back(b);
            join(ended, b);
        }
    }

    /// These, and those that they wait for.
    std::vector<bool> all_before(const std::vector<size_t>& groups) const {
        std::vector<bool> all(groups_.size());
        for (size_t b : groups)
            if (!all[b]) join(all, b);
        return all;
    }
    void join(std::vector<bool>& ended, size_t group) const {
        ended[group] = true;
        for (size_t b = 0; b < group; ++b)
            if (ended_[group][b]) ended[b] = true;
    }
    bool is_small(size_t group) const { return groups_[group].most_blocks < multiprocessors_; }

    const std::vector<StepBranchGroup>& groups_;
    int64_t multiprocessors_;
    std::vector<std::vector<size_t>> after_;
    std::vector<std::vector<bool>> ended_;         ///< of each group, those that have ended when it begins
    std::vector<std::optional<size_t>> in_front_;  ///< of each group, the one of the chain when it came
    std::optional<size_t> tail_;                   ///< of the chain
};

}  // namespace

std::vector<std::vector<size_t>> branches_of(const std::vector<StepBranchGroup>& groups, int64_t multiprocessors) {
    return Branching(groups, multiprocessors).edges();
}

}  // namespace tw
