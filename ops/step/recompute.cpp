#include "ops/step/recompute.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <fmt/ranges.h>

#include "ops/step/operation_kinds.h"
#include "ops/step/order_for_memory.h"
#include "ops/step/plan_access.h"
#include "support/error.h"

namespace tw {
namespace {

/// At the end of the plan; it reads what stands for values, where something does. Adds what stands for its results.
void add_again(StepPlan& plan, int group, std::map<int, int>& stands_for) {
    StepGroup again = group_at(plan, group);
    again.again_of = group;
    again.after.clear();
    for (std::string& name : again.operations) name += "_again";
    for (int& read : again.reads)
        if (const auto other = stands_for.find(read); other != stands_for.end()) read = other->second;
    for (int& written : again.writes) {
        StepValue value = value_at(plan, written);
        value.name += "_again";
        value.place = StepValue::Place::Arena;
        value.is_result = false;
        value.made = value.last = num_groups(plan);
        stands_for[written] = static_cast<int>(plan.values.size());
        written = static_cast<int>(plan.values.size());
        plan.values.push_back(std::move(value));
    }
    plan.groups.push_back(std::move(again));
}

/// Before which group each has to come that is made again; `never` of others. What reads a value that is made again is
/// made again itself, of a later group, or stays where it is.
std::vector<int> deadlines_of(const StepPlan& plan) {
    const std::vector<std::vector<int>> readers = readers_of(plan);
    const std::map<int, int> overwriters = overwriters_of(plan);
    std::vector<int> again, deadlines(plan.groups.size(), num_groups(plan));
    for (int g = 0; g < num_groups(plan); ++g)
        if (group_at(plan, g).again_of >= 0) again.push_back(g);
    std::ranges::stable_sort(again, std::ranges::greater(), [&](int g) { return group_at(plan, g).again_of; });
    for (int g : again) {
        int& deadline = deadlines[static_cast<size_t>(g)];
        for (int written : group_at(plan, g).writes)
            for (int reader : readers[static_cast<size_t>(written)])
                deadline = std::min(
                    deadline, group_at(plan, reader).again_of < 0 ? reader : deadlines[static_cast<size_t>(reader)]);
        for (int read : group_at(plan, g).reads)
            if (const auto other = overwriters.find(read); other != overwriters.end())
                deadline = std::min(deadline, other->second);
    }
    return deadlines;
}

/// Each that is made again goes just in front of who needs it. No cycle is possible: it reads what its original does
/// or the like, and whoever has to come behind it had to come behind the original.
void delay_again(StepPlan& plan) {
    const std::vector<int> deadlines = deadlines_of(plan);
    std::vector<int> order(plan.groups.size());
    std::iota(order.begin(), order.end(), 0);
    const auto place = [&](int g) {
        const int original = group_at(plan, g).again_of;
        return original < 0 ? std::tuple(g, 1, 0) : std::tuple(deadlines[static_cast<size_t>(g)], 0, original);
    };
    std::ranges::stable_sort(order, {}, place);
    reorder(plan, order);
}

/// Has these groups, in their order, made again for those who come late, of values that are not kept.
void repeat(StepPlan& plan, const std::set<int>& groups, std::map<int, int> stands_for,
            const std::function<bool(int value)>& is_left, const std::function<bool(int group)>& is_late) {
    const int before = num_groups(plan);
    std::vector<std::string> names;
    double seconds = 0;
    for (int group : groups) {
        add_again(plan, group, stands_for);
        seconds += group_at(plan, group).seconds;
        const auto& operations = group_at(plan, group).operations;
        names.insert(names.end(), operations.begin(), operations.end());
        std::erase_if(stands_for, [&](const auto& pair) {
            return value_at(plan, pair.first).made == group && !is_left(pair.first);
        });
    }
    std::set<int> left;
    for (int g = 0; g < before; ++g)
        for (int& read : group_at(plan, g).reads) {
            const auto other = stands_for.find(read);
            if (other == stands_for.end() || !groups.contains(value_at(plan, read).made) || !is_late(g)) continue;
            left.insert(read);
            read = other->second;
        }
    int64_t bytes = 0;
    for (int value : left) bytes += value_at(plan, value).bytes;
    plan.again.push_back(
        fmt::format("{}: {} B need not be kept, for {:.2f} us", fmt::join(names, ", "), bytes, seconds * 1e6));
    delay_again(plan);
}

/// Groups that make the results or what these are made of.
std::vector<bool> needed_for(const StepPlan& plan, const std::vector<RegionOfPlan>& regions) {
    std::vector<bool> needed(plan.groups.size());
    for (const RegionOfPlan& region : regions)
        for (int result : region.results)
            if (value_at(plan, result).made >= 0) needed[static_cast<size_t>(value_at(plan, result).made)] = true;
    for (int g = num_groups(plan); g-- > 0;)
        for (int read : group_at(plan, g).reads)
            if (const int made = value_at(plan, read).made; made >= 0 && needed[static_cast<size_t>(g)])
                needed[static_cast<size_t>(made)] = true;
    return needed;
}

void make_region_again(StepPlan& plan, const RegionOfPlan& region, const std::vector<bool>& is_needed) {
    int done = -1;
    for (int result : region.results) done = std::max(done, value_at(plan, result).made);
    if (done < 0) return;
    const auto is_late = [&](int group) { return group > done && !is_needed[static_cast<size_t>(group)]; };
    const auto is_left = [&](int value) {
        const int made = value_at(plan, value).made;
        return made >= 0 && !is_late(made) && region.inside.contains(value) && !region.results.contains(value) &&
               is_between(value_at(plan, value)) && !overwrites_input(plan, group_at(plan, made));
    };
    std::set<int> groups;
    std::vector<int> open;
    for (int g = 0; g < num_groups(plan); ++g)
        if (is_late(g)) open.push_back(g);
    while (!open.empty()) {
        const int group = open.back();
        open.pop_back();
        for (int read : group_at(plan, group).reads)
            if (is_left(read) && groups.insert(value_at(plan, read).made).second)
                open.push_back(value_at(plan, read).made);
    }
    if (!groups.empty()) repeat(plan, groups, {}, is_left, is_late);
}

/// What scatters takes much longer than it has bytes.
bool has_scatters(const StepGroup& group) {
    return std::ranges::any_of(operations_of(group.declared.outputs),
                               [](const auto& operation) { return !operation->is_input() && scatters(*operation); });
}

std::vector<int64_t> bytes_alive(const StepPlan& plan) {
    std::vector<int64_t> alive(plan.groups.size());
    for (const StepValue& value : plan.values)
        for (int g = value.made; is_between(value) && g <= value.last; ++g)
            alive[static_cast<size_t>(g)] += in_arena(value.bytes);
    for (size_t g = 0; g < alive.size(); ++g)
        for (const StepWorkspace& workspace : plan.groups[g].workspaces)
            if (!workspace.is_counter) alive[g] += in_arena(workspace.bytes);
    return alive;
}

/// Of which groups results may be made again for all who read them behind one group.
class Candidates {
public:
    Candidates(const StepPlan& plan, int at)
        : plan_(plan), at_(at), readers_(readers_of(plan)), overwriters_(overwriters_of(plan)) {
        for (const StepGroup& group : plan.groups)
            if (group.again_of >= 0) {
                repeated_.insert(group.again_of);
                const StepGroup& original = group_at(plan, group.again_of);
                for (size_t k = 0; k < group.writes.size(); ++k) again_[original.writes[k]] = group.writes[k];
            }
    }

    /// -1: none.
    int best() const {
        int best = -1;
        double most = 0;
        for (int g = 0; g < at_; ++g) {
            const StepGroup& group = group_at(plan_, g);
            if (group.again_of >= 0 || repeated_.contains(g) || overwrites_input(plan_, group)) continue;
            constexpr double least_time = 1e-7;  // seconds; of a launch that costs nothing else
            const double gain = static_cast<double>(bytes_saved(g)) / std::max(group.seconds, least_time);
            if (gain <= most || has_scatters(group)) continue;
            best = g;
            most = gain;
        }
        return best;
    }
    /// What is read again in place of what has not been kept.
    std::map<int, int> stands_for(int group) const {
        std::map<int, int> result;
        for (int read : group_at(plan_, group).reads)
            if (const auto again = again_.find(read); again != again_.end() && value_at(plan_, read).last <= at_)
                result.insert(*again);
        return result;
    }
    bool is_left(int value) const { return is_between(value_at(plan_, value)) && value_at(plan_, value).last > at_; }

private:
    /// At the group.
    int64_t bytes_saved(int group) const {
        int64_t bytes = 0;
        int deadline = num_groups(plan_);
        for (int written : group_at(plan_, group).writes) {
            if (!is_left(written)) continue;
            const std::vector<int>& readers = readers_[static_cast<size_t>(written)];
            deadline = std::min(deadline, *std::ranges::upper_bound(readers, at_));
            if (!std::ranges::binary_search(readers, at_)) bytes += in_arena(value_at(plan_, written).bytes);
        }
        const std::map<int, int> others = stands_for(group);
        for (int read : group_at(plan_, group).reads) {
            if (const auto other = overwriters_.find(read); other != overwriters_.end())
                deadline = std::min(deadline, other->second);
            if (is_between(value_at(plan_, read)) && value_at(plan_, read).last < at_ && !others.contains(read))
                bytes -= in_arena(value_at(plan_, read).bytes);
        }
        return deadline <= at_ ? 0 : bytes;
    }

    const StepPlan& plan_;
    const int at_;
    const std::vector<std::vector<int>> readers_;
    const std::map<int, int> overwriters_;
    std::set<int> repeated_;
    std::map<int, int> again_;  // values, by what they repeat
};

/// Where most of the arena is in use: of the groups whose results wait there, has that one made again which saves most
/// bytes for its time; none twice, and none that scatters by data. False if there is none.
bool make_cheapest_again(StepPlan& plan) {
    const std::vector<int64_t> alive = bytes_alive(plan);
    const int at = static_cast<int>(std::ranges::max_element(alive) - alive.begin());
    const Candidates candidates(plan, at);
    const int group = candidates.best();
    if (group < 0) return false;
    std::set<int> left;
    for (int written : group_at(plan, group).writes)
        if (candidates.is_left(written)) left.insert(written);
    repeat(
        plan, {group}, candidates.stands_for(group), [&](int value) { return left.contains(value); },
        [&](int reader) { return reader > at; });
    return true;
}

/// Bytes of the arena in use at a time, at most.
int64_t most_bytes_alive(const StepPlan& plan) {
    const std::vector<int64_t> alive = bytes_alive(plan);
    return alive.empty() ? 0 : *std::ranges::max_element(alive);
}

/// Has groups made again, in the same order for all numbers of bytes, until the arena has no more than that. False if
/// none is left before.
bool fits(StepPlan& plan, int64_t most_bytes) {
    if (plan.arena_bytes <= most_bytes) return true;
    order_for_memory(plan);
    do {
        if (most_bytes_alive(plan) > most_bytes) continue;  // as in each placement
        place_values(plan);
        if (plan.arena_bytes <= most_bytes) return true;
    } while (make_cheapest_again(plan));
    return false;
}

/// The least number of bytes for which that is true.
int64_t least_that_fits(StepPlan plan) {
    int64_t least = plan.arena_bytes;
    order_for_memory(plan);
    do {
        if (most_bytes_alive(plan) >= least) continue;
        place_values(plan);
        least = std::min(least, plan.arena_bytes);
    } while (make_cheapest_again(plan));
    return least;
}

}  // namespace

void make_again(StepPlan& plan, const std::vector<RegionOfPlan>& regions) {
    order_for_memory(plan);
    for (const RegionOfPlan& region : regions) make_region_again(plan, region, needed_for(plan, regions));
}

void fit_into(StepPlan& plan, int64_t most_bytes, std::source_location where) {
    if (plan.arena_bytes <= most_bytes) return;
    const StepPlan before = plan;
    if (fits(plan, most_bytes)) return;
    user_error(where,
               "plan_step: recompute.bytes = {}: the arena does not fit into that, with all made again that saves "
               "memory, but into {}; allow that many, or make the step smaller",
               most_bytes, least_that_fits(before));
}

}  // namespace tw
