#include "schedules/choose_rows.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "dsl/simplify.h"
#include "schedules/choices.h"
#include "schedules/elements_beside_sums.h"
#include "schedules/replace_tensors.h"

namespace tw::schedules {
namespace {

constexpr int64_t vector_bytes = 16, long_vectors = 64;
constexpr int64_t most_kept_bytes = 512;  // of a thread, in registers: half of those that it may have

/// What the loads and stores along rows allow.
struct Vectors {
    int64_t widest = 1;      ///< elements of 16 bytes of the widest type
    int64_t neighbours = 1;  ///< of these, as many as lie at multiples of their bytes in all rows
    Tensor apart = {};       ///< whose rows begin elsewhere
    Type type = f32;         ///< the widest
};

bool has_columns(const RowGroup& group, const Operation& operation) {
    return !own_reduction(operation) && group.axes_of(operation).has_columns();
}

Vectors vectors_of(const RowGroup& group) {
    struct Rows {
        Tensor of;
        int64_t divisor;
    };
    std::vector<Rows> all;
    for (const auto& [operation, reads] : group.reads)
        for (const RowRead& read : reads)
            if (const auto start = read.guarded ? std::nullopt : row_start(read, group.axes_of(*operation)))
                all.push_back({read.tensor, divisor_of(*start)});
    for (const OperationRef& result : group.results)
        if (has_columns(group, *result))
            for (size_t k = 0; k < result->outputs.size(); ++k)
                all.push_back({{result, static_cast<int>(k)}, group.columns});
    Vectors found;
    for (const Rows& rows : all)
        if (tw::bytes_of(rows.of.type()) > tw::bytes_of(found.type) || &rows == &all[0]) found.type = rows.of.type();
    found.widest = std::max<int64_t>(vector_bytes / tw::bytes_of(found.type), 1);
    found.neighbours = found.widest;
    for (const Rows& rows : all) {
        if (rows.divisor % found.widest != 0 && !found.apart.defined()) found.apart = rows.of;
        found.neighbours = std::gcd(found.neighbours, rows.divisor);
    }
    return found;
}

bool reads(const Operation& reader, const OperationRef& operation) {
    bool found = false;
    for (const Operation::Output& output : reader.outputs)
        visit(output.body, [&](const Expr& e) {
            const Read* read = e.as<Read>();
            found = found || (read && read->operation == operation);
        });
    return found;
}

/// What threads keep of each column: elements that several stages read.
std::vector<OperationRef> kept_operations(const RowGroup& group) {
    std::vector<OperationRef> kept;
    for (const OperationRef& operation : group.between) {
        if (!has_columns(group, *operation)) continue;
        std::set<OperationRef> readers;
        for (const auto* part : {&group.made, &group.between})
            for (const OperationRef& reader : *part)
                if (reads(*reader, operation)) readers.insert(reader);
        if (readers.size() > 1) kept.push_back(operation);
    }
    return kept;
}

/// Bytes of a column of these.
int64_t bytes_of(const std::vector<OperationRef>& operations) {
    int64_t bytes = 0;
    for (const OperationRef& operation : operations)
        for (const Operation::Output& output : operation->outputs) bytes += tw::bytes_of(output.type);
    return bytes;
}

/// Of these, the ones that are not made into another: its elements take their registers.
std::vector<OperationRef> kept_last(std::vector<OperationRef> kept) {
    const std::vector<OperationRef> all = kept;
    std::erase_if(kept, [&](const OperationRef& each) {
        return std::ranges::any_of(all, [&](const OperationRef& other) { return reads(*other, each); });
    });
    return kept;
}

int64_t reductions_of(const RowGroup& group) {
    return std::ranges::count_if(group.made, [](const OperationRef& each) { return own_reduction(*each) != nullptr; });
}

/// Whether combining adds floats: each sum is rounded.
bool adds_floats(const Operation& operation) {
    const Reduce* reduction = own_reduction(operation);
    return reduction && std::ranges::any_of(reduction->reducer->combined, [](const Expr& combined) {
               const Binary* sum = combined.as<Binary>();
               return sum && sum->op == BinaryOp::Add && is_float(combined.type());
           });
}

/// Whether combining two values divides, as running means do: few threads share such rows.
bool divides_terms(const Operation& operation) {
    const Reduce* reduction = own_reduction(operation);
    bool found = false;
    if (reduction)
        for (const Expr& combined : reduction->reducer->combined)
            visit(combined, [&](const Expr& e) {
                const Binary* quotient = e.as<Binary>();
                found = found || (quotient && quotient->op == BinaryOp::Div);
            });
    return found;
}

/// Of rows that are read once and not kept: several blocks side by side, one of which loads while another combines its
/// parts, and enough threads in all where there are few rows. Of sums of floats more threads, so that each adds few
/// terms one after another.
int64_t threads_of_one_pass(const RowGroup& group) {
    constexpr int64_t threads_wanted = 132 * 2048, least = 256, most = 1024;  // those that an H200 holds
    constexpr int64_t most_of_a_sum = 64;
    const bool adds = std::ranges::any_of(group.made, [](const OperationRef& each) { return adds_floats(*each); });
    const int64_t terms = adds ? most_of_a_sum : group.columns;
    const int64_t rows = count_of(group.rows).value_or(threads_wanted);
    int64_t threads = most;
    while (threads > least && rows * threads > threads_wanted && threads / 2 * terms >= group.columns) threads /= 2;
    return threads;
}

/// Whether a thread's registers have room for what it computes of several elements at a time, too: the compiler makes
/// floats of them when they are first used, and keeps those.
bool has_registers(const std::vector<OperationRef>& kept, int64_t elements, int64_t most_bytes) {
    return kept.size() < 2 || elements * static_cast<int64_t>(kept.size() * sizeof(float)) <= most_bytes;
}

/// Bytes of registers of a column of these: an element that is loaded alone takes a whole one.
int64_t bytes_of_registers(const std::vector<OperationRef>& kept, int64_t neighbours) {
    constexpr int64_t of_register = 4;
    int64_t bytes = 0;
    for (const OperationRef& operation : kept)
        for (const Operation::Output& output : operation->outputs)
            bytes +=
                neighbours == 1 ? std::max<int64_t>(tw::bytes_of(output.type), of_register) : tw::bytes_of(output.type);
    return bytes;
}

/// Of rows that are too long for fewer, all threads that a block may have keep a part, in as many registers as these
/// leave each of them: rows that are read once take less time than what other blocks meanwhile gain by overlapping.
RowThreads kept_by_all(const RowGroup& group, RowThreads shape, const std::vector<OperationRef>& kept) {
    constexpr int64_t threads = 1024, most_bytes = 160;  // of 256 in registers
    const int64_t elements = (group.columns + threads - 1) / threads;
    const bool divides = std::ranges::any_of(group.made, [](const OperationRef& each) { return divides_terms(*each); });
    // Of several reductions, the compiler keeps the floats that the first one makes for the next.
    const int64_t bytes =
        reductions_of(group) > 1 ? static_cast<int64_t>(sizeof(float)) : bytes_of_registers(kept, shape.neighbours);
    if (kept.empty() || divides || elements * bytes > most_bytes || !has_registers(kept, elements, most_bytes))
        return shape;
    shape.threads = threads;
    shape.keep = true;
    return shape;
}

/// More threads for rows of which each keeps much.
RowThreads threads_of(const RowGroup& group, const Vectors& vectors, const std::vector<OperationRef>& kept) {
    constexpr int64_t most_threads = 512, threads_of_block = 128, most_floats = 352;
    RowThreads shape = row_threads(group.columns, vectors.widest);
    shape.neighbours = vectors.neighbours;
    const bool is_one_pass = reductions_of(group) == 1 && std::ranges::none_of(group.results, [&](const auto& each) {
                                 return has_columns(group, *each);
                             });
    if (!shape.keep && is_one_pass) shape.threads = threads_of_one_pass(group);
    if (!shape.keep) return is_one_pass ? shape : kept_by_all(group, shape, kept_last(kept));
    auto is_too_much = [&](int64_t threads) {
        const int64_t elements = (group.columns + threads - 1) / threads;
        return elements * bytes_of(kept) > most_kept_bytes || !has_registers(kept_last(kept), elements, most_floats);
    };
    int64_t threads = shape.threads;
    while (is_too_much(threads) && threads < most_threads) threads *= 2;
    shape.keep = !is_too_much(threads);
    if (shape.keep) shape.threads = threads;
    shape.rows = std::max<int64_t>(threads_of_block / shape.threads, 1);
    return shape;
}

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

std::vector<RowSchedule> row_schedules(const RowGroup& group) {
    const Vectors vectors = vectors_of(group);
    const std::vector<OperationRef> elements = kept_operations(group);
    const bool stores_rows =
        std::ranges::any_of(group.results, [&](const OperationRef& each) { return has_columns(group, *each); });
    RowThreads threads = threads_of(group, vectors, elements);
    if (const auto rows = count_of(group.rows))  // of no more rows than there are: nobody repeats one
        threads.rows = std::min(threads.rows, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(*rows))));
    std::vector<RowSchedule> found;
    // What few threads hold whole needs no corrections on the way, and few steps to combine their parts.
    constexpr int64_t threads_of_warp = 32;
    const bool is_short = threads.keep && threads.threads <= threads_of_warp;
    if (is_short) found.push_back({.threads = threads});
    const bool may_stream = group.split.empty() && !is_short && reads_in_exponents(group);
    const bool aligns = vectors.neighbours < vectors.widest && group.columns >= long_vectors * vectors.widest;
    const RowSchedule aligned{
        .streams = true, .chunks = row_chunks(group.columns, vectors.widest, vectors.type), .aligned = vectors.apart};
    const bool streams = may_stream && reductions_of(group) != 1 && (!threads.keep || !stores_rows);
    if (streams && aligns) found.push_back(aligned);
    if (streams)
        found.push_back({.streams = true, .chunks = row_chunks(group.columns, vectors.neighbours, vectors.type)});
    if (!is_short) found.push_back({.threads = threads});
    const bool kept = threads.keep && !elements.empty();
    threads.keep = false;
    if (kept) found.push_back({.threads = threads});
    if (may_stream && !streams && aligns && stores_rows) found.push_back(aligned);
    return found;
}

namespace {

std::string way_of(const RowSchedule& how) {
    return how.streams ? how.aligned.defined() ? "aligned" : "streamed" : how.threads.keep ? "kept" : "read";
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
std::vector<RowSchedule> picked_schedules(const RowGroup& group) {
    std::vector<RowSchedule> all = row_schedules(group);
    if (!Choices::current()) return all;
    const std::string& name = group.made[0]->name;
    std::vector<std::string> ways;
    for (const RowSchedule& each : all) ways.push_back(way_of(each));
    ways.push_back("apart");
    const std::string taken = pick(name, "way", ways, ways[0]);
    if (taken == "apart") return {};
    const auto first = std::ranges::find(all, taken, way_of);
    std::rotate(all.begin(), first, first + 1);
    all[0] = pick_threads(name, all[0]);
    return all;
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
    if (sums.defined())
        schedule_rows_and_sums(s, results[0], stages, how.threads, sums);
    else if (how.streams)
        schedule_streamed_rows(s, results, stages, how.chunks, how.aligned);
    else
        schedule_cooperative_rows(s, results, stages, how.threads, split);
}

std::string text_of(const RowGroup& group, const RowSchedule& how) {
    std::vector<std::string> names;
    for (const OperationRef& result : group.results)
        for (size_t k = 0; k < result->outputs.size(); ++k)
            if (k == 0 || !result->outputs[k].name.empty())
                names.push_back("'" + Tensor(result, static_cast<int>(k)).name() + "'");
    return fmt::format("{}: rows of {} elements, {} {}", fmt::join(names, ", "), group.columns,
                       how.streams        ? "in one pass"
                       : how.threads.keep ? "kept in registers"
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
    if (how.streams || !how.threads.keep || group.rows.size() != 1 || group.results.size() != 1) return false;
    const Operation& result = *group.results[0];
    return group.split.empty() && has_columns(group, result) && result.outputs.size() == 1 && result.axes.size() == 2 &&
           as_constant(group.rows[0]).value_or(0) >= least_rows;
}

}  // namespace

std::optional<Schedule> ChosenRows::choose(const std::vector<Tensor>& outputs, const std::vector<Tensor>& sums,
                                           const RowGrouping& how,
                                           const std::function<std::optional<Schedule>(std::string& why)>& lowered) {
    std::optional<Schedule> best;
    for (const RowGroup& group : row_groups(outputs, how)) {
        if (!is_worth_sharing(group)) continue;
        const Tensor summed = sums_of(group, sums);
        std::string why;
        bool found = false;
        for (const RowSchedule& each : picked_schedules(group)) {
            if (summed.defined() && !can_sum(group, each)) continue;
            chosen_.push_back({group, each, tensors_of(group), summed});
            if (summed.defined()) chosen_.back().tensors.push_back(summed);
            if (auto schedule = lowered(why)) {
                best = std::move(schedule);
                notes.push_back(text_of(group, each));
                if (summed.defined())
                    notes.push_back(fmt::format("'{}': by the kernel of the rows that it sums", summed.name()));
                found = true;
                break;
            }
            notes.push_back(fmt::format("not so, {}: {}", text_of(group, each), why));
            chosen_.pop_back();
        }
        if (!found) in_vain.push_back(group.made[0]->name);
        sums_in_vain = sums_in_vain || (!found && summed.defined());
    }
    return best;
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
