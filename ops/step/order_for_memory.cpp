#include "ops/step/order_for_memory.h"

#include <algorithm>
#include <set>

#include "ops/step/plan_access.h"

namespace tw {
namespace {

/// Takes groups as soon as they free what they take.
class Ordering {
public:
    explicit Ordering(const StepPlan& plan) : plan_(plan), waits_(plan.groups.size()), behind_(plan.groups.size()) {
        const std::vector<std::vector<int>> readers = readers_of(plan);
        for (size_t v = 0; v < readers.size(); ++v) {
            open_readers_.push_back(readers[v].size());
            if (const int made = plan.values[v].made; made >= 0)
                for (int reader : readers[v]) add(made, reader);
        }
        for (const auto& [input, overwriter] : overwriters_of(plan))
            for (int reader : readers[static_cast<size_t>(input)]) add(reader, overwriter);
    }

    std::vector<int> order() && {
        std::set<int> ready;
        for (int g = 0; g < num_groups(plan_); ++g)
            if (waits_[static_cast<size_t>(g)] == 0) ready.insert(g);
        std::vector<int> order;
        while (!ready.empty()) {
            const int next = best(ready);
            ready.erase(next);
            order.push_back(next);
            for (int read : group_at(plan_, next).reads) --open_readers_[static_cast<size_t>(read)];
            for (int other : behind_[static_cast<size_t>(next)])
                if (--waits_[static_cast<size_t>(other)] == 0) ready.insert(other);
        }
        return order;
    }

private:
    void add(int first, int second) {
        if (first == second) return;
        if (behind_[static_cast<size_t>(first)].insert(second).second) ++waits_[static_cast<size_t>(second)];
    }
    /// One that frees memory; one that others can come for; else the first one, of those at the end that nobody waits
    /// for and that overwrite something, which what is made again may have to read.
    int best(const std::set<int>& ready) const {
        for (const auto& is_better : {&Ordering::frees, &Ordering::is_small_beginning, &Ordering::goes_on}) {
            const auto found = std::ranges::find_if(ready, [&](int g) { return (this->*is_better)(g); });
            if (found != ready.end()) return *found;
        }
        return *ready.begin();
    }
    bool frees(int group) const { return bytes_taken(group) < 0; }
    /// Of inputs alone, and no more than the least that anything takes.
    bool is_small_beginning(int group) const {
        return is_waited_for(group) && bytes_taken(group) <= arena_alignment &&
               std::ranges::none_of(group_at(plan_, group).reads,
                                    [&](int read) { return value_at(plan_, read).made >= 0; });
    }
    bool goes_on(int group) const { return is_waited_for(group) || !overwrites_input(plan_, group_at(plan_, group)); }
    bool is_waited_for(int group) const { return !behind_[static_cast<size_t>(group)].empty(); }

    int64_t bytes_taken(int group) const {
        int64_t bytes = 0;
        for (int written : group_at(plan_, group).writes)
            if (is_between(value_at(plan_, written))) bytes += value_at(plan_, written).bytes;
        for (int read : group_at(plan_, group).reads)
            if (is_between(value_at(plan_, read)) && open_readers_[static_cast<size_t>(read)] == 1)
                bytes -= value_at(plan_, read).bytes;
        return bytes;
    }

    const StepPlan& plan_;
    std::vector<int> waits_;
    std::vector<std::set<int>> behind_;
    std::vector<size_t> open_readers_;  // of values: groups that have not come yet
};

}  // namespace

void order_for_memory(StepPlan& plan) { reorder(plan, Ordering(plan).order()); }

void order_where_smaller(StepPlan& plan) {
    place_values(plan);
    StepPlan other = plan;
    order_for_memory(other);
    place_values(other);
    if (other.arena_bytes < plan.arena_bytes) plan = std::move(other);
}

}  // namespace tw
