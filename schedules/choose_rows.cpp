#include "schedules/choose_rows.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "schedules/choices.h"
#include "schedules/elements_beside_sums.h"
#include "schedules/group_threads.h"
#include "schedules/replace_tensors.h"

namespace tw::schedules {
namespace {

constexpr int64_t long_vectors = 64;

/// Which operations of a group read results of it elsewhere than in exponents.
class ReadsOfResults {
public:
    explicit ReadsOfResults(const RowGroup& group) : group_(group) {}

    bool in_terms(const Reduce& reduction) { return std::ranges::any_of(reduction.values, std::ref(*this)); }
    bool operator()(const Expr& expr) {
        bool found = false;
        visit(without_exponents(expr), [&](const Expr& e) {
            const Read* read = e.as<Read>();
            found = found || (read && (holds(group_.made, read->operation) || through(read->operation)));
        });
        return found;
    }

private:
    static bool holds(const std::vector<OperationRef>& operations, const OperationRef& operation) {
        return std::ranges::find(operations, operation) != operations.end();
    }
    static Expr without_exponents(const Expr& expr) {
        return transform(expr, [](const Expr& e) -> Expr {
            const Unary* function = e.as<Unary>();
            const bool is_exponential = function && (function->op == UnaryOp::Exp || function->op == UnaryOp::Exp2);
            return is_exponential && is_float(e.type()) ? constant(e.type(), 1.0) : Expr();
        });
    }
    /// Through an element that lies in no memory.
    bool through(const OperationRef& operation) {
        if (!holds(group_.between, operation)) return false;
        if (const auto known = known_.find(operation); known != known_.end()) return known->second;
        const bool found = std::ranges::any_of(bodies_of(*operation), std::ref(*this));
        known_[operation] = found;
        return found;
    }

    const RowGroup& group_;
    std::map<OperationRef, bool> known_;
};

}  // namespace

bool reads_in_exponents(const RowGroup& group) {
    ReadsOfResults reads(group);
    return std::ranges::none_of(group.made, [&](const OperationRef& operation) {
        const Reduce* reduction = own_reduction(*operation);
        return reduction && reads.in_terms(*reduction);
    });
}

std::vector<RowSchedule> row_schedules(const RowGroup& group, const Target& target) {
    const GroupThreads by = group_threads(group, target);
    const RowVectors& vectors = by.vectors;
    RowThreads threads = by.threads;
    std::vector<RowSchedule> found;
    if (by.prefers_shared) found.push_back({.threads = *by.shared});
    // What few threads hold whole needs no corrections on the way, and few steps to combine their parts.
    constexpr int64_t threads_of_warp = 32;
    const bool is_short = threads.keep && threads.threads <= threads_of_warp;
    if (is_short) found.push_back({.threads = threads});
    const bool may_stream = group.split.empty() && !is_short && reads_in_exponents(group);
    const bool aligns = vectors.neighbours < vectors.widest && group.columns >= long_vectors * vectors.widest;
    const RowSchedule aligned{
        .streams = true, .chunks = row_chunks(group.columns, vectors.widest, vectors.type), .aligned = vectors.apart};
    const bool streams = may_stream && by.reductions != 1 && (!threads.keep || !by.stores_rows);
    if (streams && aligns) found.push_back(aligned);
    if (streams)
        found.push_back({.streams = true, .chunks = row_chunks(group.columns, vectors.neighbours, vectors.type)});
    if (!is_short) found.push_back({.threads = threads});
    const bool kept = threads.keep && by.has_kept;
    threads.keep = false;
    if (kept) found.push_back({.threads = threads});
    if (by.shared && !by.prefers_shared) found.push_back({.threads = *by.shared});
    if (may_stream && !streams && aligns && by.stores_rows) found.push_back(aligned);
    return found;
}

namespace {

const std::string rows_apart = "apart";

std::string way_of(const RowSchedule& how) {
    if (how.streams) return how.aligned.defined() ? "aligned" : "streamed";
    return how.threads.in_shared > 0 ? "shared" : how.threads.keep ? "kept" : "read";
}

/// Elements that a thread moves at once: those that lie at multiples of their bytes, or fewer.
std::vector<int64_t> parts_of(int64_t neighbours) {
    std::vector<int64_t> parts;
    for (int64_t part = neighbours; part > 0 && neighbours % part == 0; part /= 2) parts.push_back(part);
    return parts;
}

/// Rows of a block that has no more threads than it may.
std::vector<int64_t> rows_beside(int64_t threads) {
    constexpr int64_t most_threads = 1024;
    std::vector<int64_t> rows{1, 2, 4, 8, 16, 32};
    std::erase_if(rows, [&](int64_t each) { return each * threads > most_threads; });
    return rows;
}

/// The same way with other threads where these are picked.
RowSchedule pick_threads(const std::string& name, RowSchedule how) {
    constexpr int64_t threads_of_block = 128;
    auto with = [&](auto shape) {
        const int64_t rule = shape.threads;
        shape.threads = pick(name, "threads", {4, 8, 16, 32, 64, 128, 256, 512, 1024}, rule);
        if (shape.threads != rule) shape.rows = std::max<int64_t>(threads_of_block / shape.threads, 1);
        shape.rows = pick(name, "rows", rows_beside(shape.threads), shape.rows);
        shape.neighbours = pick(name, "vector", parts_of(shape.neighbours), shape.neighbours);
        return shape;
    };
    if (!how.streams) {
        how.threads = with(how.threads);
        return how;
    }
    how.chunks = with(how.chunks);
    how.chunks.vectors = pick(name, "vectors", {1, 2, 4, 8}, how.chunks.vectors);
    return how;
}

/// Those of row_schedules, what is picked first: one of them, other threads, or none, where stages are to be kernels of
/// their own.
std::vector<RowSchedule> picked_schedules(const RowGroup& group, const Target& target) {
    std::vector<RowSchedule> all = row_schedules(group, target);
    if (!Choices::current()) return all;
    const std::string& name = group.made[0]->name;
    std::vector<std::string> ways;
    for (const RowSchedule& each : all) ways.push_back(way_of(each));
    ways.push_back(rows_apart);
    const std::string taken = pick(name, "way", ways, ways[0]);
    if (taken == rows_apart) return {};
    const auto first = std::ranges::find(all, taken, way_of);
    std::rotate(all.begin(), first, first + 1);
    all[0] = pick_threads(name, all[0]);
    return all;
}

/// What is asked of a group, and what it has.
void tell_rows(const std::string& name, const std::string& way, const RowThreads& shape) {
    took(name, "way", way);
    took(name, "threads", shape.threads);
    took(name, "rows", shape.rows);
    took(name, "vector", shape.neighbours);
}
void tell_rows(const std::string& name, const std::string& way, const RowChunks& shape) {
    took(name, "way", way);
    took(name, "threads", shape.threads);
    took(name, "rows", shape.rows);
    took(name, "vector", shape.neighbours);
    took(name, "vectors", shape.vectors);
}
/// Its stages are kernels of their own.
void tell_rows_apart(const std::string& name) {
    for (const char* what : {"way", "threads", "rows", "vector", "vectors"}) took(name, what, rows_apart);
}

}  // namespace

std::vector<Tensor> tensors_of(const RowGroup& group) {
    std::vector<Tensor> tensors;
    for (const auto* part : {&group.made, &group.between})
        for (const OperationRef& each : *part) tensors.emplace_back(each, 0);
    return tensors;
}

void schedule_rows(Schedule& s, const RowGroup& group, const RowSchedule& how, const Tensor& sums) {
    std::vector<Tensor> results;
    for (const OperationRef& each : group.results) results.emplace_back(each, 0);
    // Rows lead, or else what is made of reductions.
    auto rank = [&](const Tensor& t) {
        return own_reduction(*t.operation()) ? 2 : has_columns(group, *t.operation()) ? 0 : 1;
    };
    std::ranges::stable_sort(results, {}, rank);
    std::set<int> ids;
    std::vector<SplitRows> split;
    for (const Tensor& t : tensors_of(group)) {
        ids.insert(s[t].id);
        if (group.split.contains(t.operation().get())) split.push_back({t, group.columns});
    }
    std::vector<Stage> stages = s.all_stages();
    std::erase_if(stages, [&](const Stage& stage) { return !ids.count(stage.id); });
    const std::string &name = group.made[0]->name, way = way_of(how);
    if (sums.defined()) {
        schedule_rows_and_sums(s, results[0], stages, how.threads, sums);
        tell_rows(name, way, how.threads);
    } else if (how.streams) {
        schedule_streamed_rows(s, results, stages, how.chunks, how.aligned);
        tell_rows(name, way, how.chunks);
    } else {
        tell_rows(name, way, schedule_cooperative_rows(s, results, stages, how.threads, split));
    }
}

std::string text_of(const RowGroup& group, const RowSchedule& how) {
    std::vector<std::string> names;
    for (const OperationRef& result : group.results)
        for (size_t k = 0; k < result->outputs.size(); ++k)
            if (k == 0 || !result->outputs[k].name.empty())
                names.push_back("'" + Tensor(result, static_cast<int>(k)).name() + "'");
    return fmt::format("{}: rows of {} elements, {} {}", fmt::join(names, ", "), group.columns,
                       how.streams                 ? "in one pass"
                       : how.threads.in_shared > 0 ? "kept in shared memory"
                       : how.threads.keep          ? "kept in registers"
                                                   : "read by each reduction",
                       how.aligned.defined() ? "from aligned places on" : "by one kernel");
}

namespace {

/// Of these sums over all rows, those that read what the group keeps of each.
Tensor sums_of(const RowGroup& group, const std::vector<Tensor>& sums) {
    for (const OperationRef& kept : group.between)
        for (const Tensor& each : sums)
            if (kept->axes.size() == 2 && sums_all_rows(each, Tensor(kept, 0))) return each;
    return {};
}

/// Whether the rows are so many that blocks have several, and threads keep them, for one result.
bool can_sum(const RowGroup& group, const RowSchedule& how) {
    constexpr int64_t least_rows = 1024;
    if (how.streams || !how.threads.keep || how.threads.in_shared > 0 || group.rows.size() != 1 ||
        group.results.size() != 1)
        return false;
    const Operation& result = *group.results[0];
    return group.split.empty() && has_columns(group, result) && result.outputs.size() == 1 && result.axes.size() == 2 &&
           as_constant(group.rows[0]).value_or(0) >= least_rows;
}

}  // namespace

std::optional<Schedule> ChosenRows::choose(const std::vector<Tensor>& outputs, const std::vector<Tensor>& sums,
                                           const RowGrouping& how, const Target& target,
                                           const std::function<std::optional<Schedule>(std::string& why)>& lowered) {
    std::vector<Candidate> candidates;
    for (RowGroup& group : row_groups(outputs, how)) {
        if (!is_worth_sharing(group)) continue;
        Candidate candidate{.sums = sums_of(group, sums)};
        candidate.ways = picked_schedules(group, target);
        if (candidate.sums.defined())
            std::erase_if(candidate.ways, [&](const RowSchedule& each) { return !can_sum(group, each); });
        candidate.group = std::move(group);
        candidates.push_back(std::move(candidate));
    }
    if (auto all = choose_first_ways(candidates, lowered)) return all;
    std::optional<Schedule> best;
    for (const Candidate& candidate : candidates) {
        const std::string& name = candidate.group.made[0]->name;
        bool found = false;
        for (const RowSchedule& each : candidate.ways) {
            std::string why;
            take(candidate, each);
            if (auto schedule = lowered(why)) {
                best = std::move(schedule);
                tell(candidate, each);
                found = true;
                break;
            }
            notes.push_back(fmt::format("not so, {}: {}", text_of(candidate.group, each), why));
            chosen_.pop_back();
        }
        if (!found) in_vain.push_back(name);
        if (!found) tell_rows_apart(name);
        sums_in_vain = sums_in_vain || (!found && candidate.sums.defined());
    }
    return best;
}

/// Most groups have their first ways: one schedule tells, instead of one for each group.
std::optional<Schedule> ChosenRows::choose_first_ways(
    const std::vector<Candidate>& candidates, const std::function<std::optional<Schedule>(std::string& why)>& lowered) {
    if (candidates.size() < 2 || std::ranges::any_of(candidates, [](const Candidate& c) { return c.ways.empty(); }))
        return {};
    for (const Candidate& candidate : candidates) take(candidate, candidate.ways[0]);
    std::string why;
    auto all = lowered(why);
    if (!all) chosen_.clear();
    if (all)
        for (const Candidate& candidate : candidates) tell(candidate, candidate.ways[0]);
    return all;
}

void ChosenRows::take(const Candidate& candidate, const RowSchedule& way) {
    chosen_.push_back({candidate.group, way, tensors_of(candidate.group), candidate.sums});
    if (candidate.sums.defined()) chosen_.back().tensors.push_back(candidate.sums);
}

void ChosenRows::tell(const Candidate& candidate, const RowSchedule& way) {
    notes.push_back(text_of(candidate.group, way));
    if (candidate.sums.defined())
        notes.push_back(fmt::format("'{}': by the kernel of the rows that it sums", candidate.sums.name()));
}

bool ChosenRows::holds(const Schedule& s, Stage stage) const {
    return std::ranges::any_of(chosen_, [&](const Chosen& one) {
        return std::ranges::any_of(one.tensors, [&](const Tensor& t) { return s[t].id == stage.id; });
    });
}

void ChosenRows::schedule(Schedule& s) const {
    for (const Chosen& one : chosen_) schedule_rows(s, one.group, one.how, one.sums);
}

}  // namespace tw::schedules
