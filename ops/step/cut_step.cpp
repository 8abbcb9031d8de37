#include "ops/step/cut_step.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <queue>
#include <set>
#include <tuple>

#include <fmt/ranges.h>

#include "ops/step/read_texts.h"
#include "schedules/window_terms.h"
#include "support/error.h"

namespace tw {
namespace {

constexpr size_t most_nodes = 32;      // of a group: what rules look through grows with it
constexpr double least_gain = 0.2e-6;  // seconds; the model knows no better
constexpr double of_rounding = 1e-9;   // of a time: how far sums of the same kernels differ

double bytes_in(const StepGraph& graph, const Tensor& tensor) {
    double bytes = bytes_of(graph.type_of(tensor));
    for (const Expr& extent : tensor.shape()) bytes *= static_cast<double>(require_constant(extent));
    return bytes;
}

class Cutting {
public:
    Cutting(const StepGraph& graph, GroupSchedules& schedules) : graph_(graph), schedules_(schedules) {
        const size_t count = graph.nodes.size();
        successors_.resize(count);
        for (const auto& [tensor, readers] : graph.readers)
            if (const auto maker = graph.makers.find(tensor.first); maker != graph.makers.end())
                successors_[static_cast<size_t>(maker->second)].insert(readers.begin(), readers.end());
        for (const auto& [first, second] : graph.before) successors_[static_cast<size_t>(first)].insert(second);
        for (size_t node = 0; node < count; ++node) {
            groups_.push_back({static_cast<int>(node)});
            group_of_.push_back(static_cast<int>(node));
            require_schedule(static_cast<int>(node));
        }
    }

    StepCut cut() {
        bool changed = true;
        while (changed) {
            apart_.clear();
            changed = join_neighbours(&Cutting::makers_for_it_alone);
            changed = join_neighbours(&Cutting::makers_beside) || changed;
            changed = join_neighbours(&Cutting::readers_beside) || changed;
        }
        return separate();
    }
    /// Groups as they are.
    StepCut separate() const {
        StepCut result;
        for (int group : order()) result.groups.push_back(groups_[static_cast<size_t>(group)]);
        result.joined = {joined_.begin(), joined_.end()};
        result.apart = {apart_.begin(), apart_.end()};
        return result;
    }

private:
    using Group = std::vector<int>;  // nodes, ascending; none once it is part of another one
    const Group& nodes(int group) const { return groups_[static_cast<size_t>(group)]; }

    void require_schedule(int node) {
        const GroupSchedule& alone = schedule({node});
        const Operation& operation = *graph_.nodes[static_cast<size_t>(node)].operation;
        user_check(alone.selection != nullptr, operation.where, "plan_step: '{}' cannot be scheduled: {}",
                   operation.name, alone.problem);
    }

    // Neighbours.

    using Neighbours = std::vector<std::pair<double, int>>;  // shared bytes, negative; and the group
    Neighbours makers_beside(int group) const {
        std::map<int, double> shared;
        for (int node : nodes(group))
            for (const Tensor& tensor : graph_.nodes[static_cast<size_t>(node)].reads)
                if (const int maker = graph_.maker_of(tensor); maker >= 0)
                    shared[group_of(maker)] -= bytes_in(graph_, tensor);
        return without(shared, group);
    }
    /// Those whose results need no memory if they are joined.
    Neighbours makers_for_it_alone(int group) const {
        Neighbours result = makers_beside(group);
        std::erase_if(result, [&](const auto& maker) { return !makes_for(maker.second, group); });
        return result;
    }
    bool makes_for(int maker, int group) const {
        for (int node : nodes(maker)) {
            for (const Tensor& tensor : graph_.nodes[static_cast<size_t>(node)].made()) {
                const auto readers = graph_.readers.find(key_of(tensor));
                const bool others =
                    readers != graph_.readers.end() && std::ranges::any_of(readers->second, [&](int reader) {
                        return group_of(reader) != maker && group_of(reader) != group;
                    });
                if (others || graph_.is_result(tensor)) return false;
            }
        }
        return true;
    }
    /// Those that read much of what it reads.
    Neighbours readers_beside(int group) const {
        constexpr double least_share = 0.25;
        std::map<int, double> shared;
        for (const auto& [tensor, bytes] : bytes_read(group))
            for (int reader : graph_.readers.at(tensor))
                if (group_of(reader) != group) shared[group_of(reader)] = 0;
        for (auto& [other, bytes] : shared)
            for (const auto& [tensor, own] : bytes_read(other))
                if (bytes_read(group).contains(tensor)) bytes -= own;
        std::erase_if(shared, [&](const auto& other) {
            return -other.second < least_share * std::min(total(bytes_read(group)), total(bytes_read(other.first)));
        });
        return without(shared, group);
    }
    std::map<TensorKey, double> bytes_read(int group) const {
        std::map<TensorKey, double> bytes;
        for (int node : nodes(group))
            for (const Tensor& tensor : graph_.nodes[static_cast<size_t>(node)].reads)
                bytes[key_of(tensor)] = bytes_in(graph_, tensor);
        return bytes;
    }
    static double total(const std::map<TensorKey, double>& bytes) {
        double total = 0;
        for (const auto& [tensor, each] : bytes) total += each;
        return total;
    }
    static Neighbours without(const std::map<int, double>& shared, int own) {
        Neighbours result;
        for (const auto& [group, bytes] : shared)
            if (group != own) result.emplace_back(bytes, group);
        std::ranges::sort(result);
        return result;
    }
    int group_of(int node) const { return group_of_[static_cast<size_t>(node)]; }

    // Joining.

    bool join_neighbours(Neighbours (Cutting::*beside)(int) const) {
        bool changed = false;
        for (int group = 0; group < static_cast<int>(groups_.size()); ++group)
            while (!nodes(group).empty() && join_one((this->*beside)(group), group)) changed = true;
        return changed;
    }
    bool join_one(const Neighbours& neighbours, int group) {
        return std::ranges::any_of(neighbours, [&](const auto& other) { return join(other.second, group); });
    }
    bool join(int one, int other) {
        for (int group : {one, other})
            if (const auto& own = graph_.nodes[static_cast<size_t>(nodes(group)[0])].own_schedule)
                return leave(one, other, fmt::format("'{}' has a schedule of its own", own->name));
        if (crosses_region(one, other)) return leave(one, other, "one of them alone is made again");
        if (nodes(one).size() + nodes(other).size() > most_nodes) return leave(one, other, "they are too many");
        if (runs_between(one, other) || runs_between(other, one))
            return leave(one, other, "something has to run between them");
        Group both;
        std::ranges::merge(nodes(one), nodes(other), std::back_inserter(both));
        if (reads_part_of_overwritten(both)) return leave(one, other, "a part of what one overwrites is read");
        const GroupSchedule &first = schedule(nodes(one)), &second = schedule(nodes(other));
        const double apart = first.seconds + second.seconds;
        const std::optional<Alike> alike = alike_of(one, other);
        if (alike && (side_by_side_.contains(*alike) || keeps_sums_for(one, other)))
            return leave(one, other, apart, apart);
        const GroupSchedule& joined = schedule(both);
        if (!joined.selection) return leave(one, other, joined.problem);
        if (alike && std::abs(apart - joined.seconds) < of_rounding * apart) side_by_side_.insert(*alike);
        if (apart - joined.seconds < least_gain) return leave(one, other, joined.seconds, apart);
        joined_.insert(neighbours_text(one, other, times_text(joined.seconds, apart)));
        for (int node : nodes(one)) group_of_[static_cast<size_t>(node)] = other;
        groups_[static_cast<size_t>(one)].clear();
        groups_[static_cast<size_t>(other)] = std::move(both);
        return true;
    }
    /// Whether the nodes read a part of an input, in a kernel that may overwrite the whole of it meanwhile.
    bool reads_part_of_overwritten(const Group& group) const {
        auto holds = [&](int node) { return std::ranges::binary_search(group, node); };
        auto reads = [&](const Tensor& part) {
            return std::ranges::any_of(group, [&](int node) {
                const std::vector<Tensor>& all = graph_.nodes[static_cast<size_t>(node)].reads;
                return std::ranges::any_of(all, [&](const Tensor& each) { return each.same(part); });
            });
        };
        return std::ranges::any_of(graph_.overwrites, [&](const auto& pair) {
            return holds(graph_.maker_of(pair.first)) &&
                   std::ranges::any_of(graph_.input_parts, [&](const InputPart& each) {
                       return each.whole.same(pair.second) && reads(each.part);
                   });
        });
    }
    bool leave(int one, int other, double together, double apart) {
        return leave(one, other, times_text(together, apart));
    }
    static std::string times_text(double together, double apart) {
        return fmt::format("together {:.1f} us, apart {:.1f} us", together * 1e6, apart * 1e6);
    }

    /// A maker and a reader, as they are scheduled, and how the one's results are read by the other.
    using Alike = std::tuple<const GroupSchedule*, const GroupSchedule*, std::string>;
    /// Of a reader of many makers, as an optimizer's update of all parameters, equal makers whose results it reads
    /// alike are alike: where the kernels of one stand beside its own as before, so do those of the others. None where
    /// more ties the two together than results of the one.
    std::optional<Alike> alike_of(int one, int other) {
        const auto of_one = bytes_read(one);
        for (const auto& [tensor, bytes] : bytes_read(other))
            if (of_one.contains(tensor)) return {};
        for (int node : nodes(other))
            for (const Tensor& tensor : graph_.nodes[static_cast<size_t>(node)].made())
                if (of_one.contains(key_of(tensor))) return {};
        std::string how;
        for (int node : nodes(one))
            for (const Tensor& tensor : graph_.nodes[static_cast<size_t>(node)].made())
                how += how_read(tensor, one, other);
        return Alike{&schedule(nodes(one)), &schedule(nodes(other)), how};
    }
    /// Whether all that the one makes for the other are reductions, of which the other makes nothing but elements, and
    /// reads guarded ones alone, as an optimizer's update of all parameters does. No rule inlines these, or has them
    /// in the kernel of what reads them so: kernels stand side by side, and need not be looked for.
    bool keeps_sums_for(int one, int other) {
        std::set<const Operation*> sums;
        for (int node : nodes(one))
            for (const Tensor& tensor : graph_.nodes[static_cast<size_t>(node)].made()) {
                if (!is_read_by(tensor, other)) continue;
                if (!reduces(node)) return false;
                sums.insert(tensor.operation().get());
            }
        return !sums.empty() && std::ranges::none_of(nodes(other), [&](int node) {
            if (reduces(node)) return true;
            const auto [unguarded, is_new] = read_unguarded_.try_emplace(node);
            if (is_new) unguarded->second = read_unguarded(graph_.nodes[static_cast<size_t>(node)]);
            return std::ranges::any_of(sums, [&](const Operation* sum) { return unguarded->second.contains(sum); });
        });
    }
    bool is_read_by(const Tensor& tensor, int group) const {
        const auto readers = graph_.readers.find(key_of(tensor));
        return readers != graph_.readers.end() &&
               std::ranges::any_of(readers->second, [&](int reader) { return group_of(reader) == group; });
    }
    /// Whether any of the node's results is made of reductions.
    bool reduces(int node) {
        const auto [known, is_new] = reduces_.try_emplace(node, false);
        if (is_new)
            known->second = std::ranges::any_of(graph_.nodes[static_cast<size_t>(node)].operation->outputs,
                                                [](const Operation::Output& output) {
                                                    return output.body.defined() && schedules::reduces(output.body);
                                                });
        return known->second;
    }
    std::string how_read(const Tensor& tensor, int one, int other) {
        std::string how = graph_.is_result(tensor) ? "result\n" : "\n";
        const auto readers = graph_.readers.find(key_of(tensor));
        if (readers == graph_.readers.end()) return how;
        bool leaves = false;
        for (int reader : readers->second) {
            leaves = leaves || (group_of(reader) != one && group_of(reader) != other);
            if (group_of(reader) != other) continue;
            const auto [texts, is_new] = read_texts_.try_emplace(reader);
            if (is_new) texts->second = read_texts(graph_.nodes[static_cast<size_t>(reader)]);
            how += texts->second[key_of(tensor)];
        }
        return how + (leaves ? "leaves\n" : "\n");
    }

    /// Whether one has a part of a region that the other, or a node of it, is neither in nor makes a result of:
    /// together they could not be made again without what lies outside.
    bool crosses_region(int one, int other) const {
        return std::ranges::any_of(graph_.regions, [&](const StepRegion& region) {
            const auto is_inside = [&](int node) { return region.nodes.contains(node); };
            const auto is_outside = [&](int node) { return !is_inside(node) && !region.makers.contains(node); };
            const Group &a = nodes(one), &b = nodes(other);
            return (std::ranges::any_of(a, is_inside) || std::ranges::any_of(b, is_inside)) &&
                   (std::ranges::any_of(a, is_outside) || std::ranges::any_of(b, is_outside));
        });
    }
    /// Rounds ask for the same nodes again: these are declared once.
    const GroupSchedule& schedule(const Group& group) {
        const auto [entry, is_new] = known_.try_emplace(group);
        if (is_new) entry->second = &schedules_.of(declare_group(graph_, group));
        return *entry->second;
    }

    bool leave(int one, int other, const std::string& why) {
        apart_.insert(neighbours_text(one, other, why));
        return false;
    }
    std::string neighbours_text(int one, int other, const std::string& what) const {
        if (one > other) std::swap(one, other);
        return fmt::format("{} | {}: {}", text(one), text(other), what);
    }
    std::string text(int group) const {
        std::vector<std::string> names;
        for (int node : nodes(group)) names.push_back(graph_.nodes[static_cast<size_t>(node)].operation->name);
        return fmt::format("{}", fmt::join(names, ", "));
    }

    // Order.

    std::set<int> behind(int group) const {
        std::set<int> result;
        for (int node : nodes(group))
            for (int next : successors_[static_cast<size_t>(node)]) result.insert(group_of(next));
        result.erase(group);
        return result;
    }
    /// Whether a third group needs the one, and the other needs that.
    bool runs_between(int one, int other) const {
        std::vector<bool> seen(groups_.size());
        std::vector<int> open{one};
        while (!open.empty()) {
            const int group = open.back();
            open.pop_back();
            for (int node : nodes(group))
                for (int successor : successors_[static_cast<size_t>(node)]) {
                    const int next = group_of(successor);
                    if (next == other && group != one) return true;
                    if (next == other || next == one || seen[static_cast<size_t>(next)]) continue;
                    seen[static_cast<size_t>(next)] = true;
                    open.push_back(next);
                }
        }
        return false;
    }
    /// As declared, where that can be.
    std::vector<int> order() const {
        std::map<int, int> waits;
        for (int group = 0; group < static_cast<int>(groups_.size()); ++group)
            for (int next : behind(group)) ++waits[next];
        std::priority_queue<std::pair<int, int>, std::vector<std::pair<int, int>>, std::greater<>> ready;
        auto add = [&](int group) { ready.emplace(nodes(group).front(), group); };
        for (int group = 0; group < static_cast<int>(groups_.size()); ++group)
            if (!nodes(group).empty() && waits[group] == 0) add(group);
        std::vector<int> result;
        while (!ready.empty()) {
            const int group = ready.top().second;
            ready.pop();
            result.push_back(group);
            for (int next : behind(group))
                if (--waits[next] == 0) add(next);
        }
        return result;
    }

    const StepGraph& graph_;
    GroupSchedules& schedules_;
    std::vector<std::set<int>> successors_;  // of nodes
    std::vector<Group> groups_;
    std::vector<int> group_of_;
    std::set<std::string> joined_, apart_;
    std::map<Group, const GroupSchedule*> known_;
    std::map<int, std::map<TensorKey, std::string>> read_texts_;  // of nodes
    std::map<int, std::set<const Operation*>> read_unguarded_;
    std::map<int, bool> reduces_;
    std::set<Alike> side_by_side_;  // pairs that gain and lose nothing together
};

}  // namespace

StepCut cut_step(const StepGraph& graph, GroupSchedules& schedules) { return Cutting(graph, schedules).cut(); }

StepCut separate_step(const StepGraph& graph, GroupSchedules& schedules) {
    return Cutting(graph, schedules).separate();
}

}  // namespace tw
