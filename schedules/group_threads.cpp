#include "schedules/group_threads.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <set>

#include "dsl/simplify.h"
#include "schedules/long_reductions.h"

namespace tw::schedules {
namespace {

constexpr int64_t vector_bytes = 16;
constexpr int64_t most_kept_bytes = 512;  // of a thread, in registers: half of those that it may have

RowVectors vectors_of(const RowGroup& group) {
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
    RowVectors found;
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

/// Of these, the ones that are not made of another.
std::vector<OperationRef> kept_first(std::vector<OperationRef> kept) {
    const std::vector<OperationRef> all = kept;
    std::erase_if(kept, [&](const OperationRef& each) {
        return std::ranges::any_of(all, [&](const OperationRef& other) { return reads(*each, other); });
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
    return reduction && combining_divides(*reduction->reducer);
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

bool stores_rows(const RowGroup& group) {
    return std::ranges::any_of(group.results, [&](const OperationRef& each) { return has_columns(group, *each); });
}

/// More threads for rows of which each keeps much.
RowThreads threads_of(const RowGroup& group, const RowVectors& vectors, const std::vector<OperationRef>& kept) {
    constexpr int64_t most_threads = 512, threads_of_block = 128, most_floats = 352, warp = 32, few_vectors = 7;
    RowThreads shape = row_threads(group.columns, vectors.widest);
    shape.neighbours = vectors.neighbours;
    // Many narrow vectors a thread, whose neighbours read elsewhere: rows of 62 by pairs took twice as long by 4
    // threads as by 8, rows of 97 one by one 1.7 times as long by 8 as by 16; rows of 50 by pairs 1.1 times by 8.
    while (shape.threads < warp && shape.threads * shape.neighbours * few_vectors < group.columns) {
        shape.threads *= 2;
        shape.rows = std::max<int64_t>(threads_of_block / shape.threads, 1);
    }
    const bool is_one_pass = reductions_of(group) == 1 && !stores_rows(group);
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

/// Of what is kept in shared memory: nothing of short rows, which registers hold.
std::optional<RowThreads> threads_in_shared(const RowGroup& group, const RowVectors& vectors,
                                            const std::vector<OperationRef>& kept, const Target& target) {
    constexpr int64_t least_bytes = 16384, many = 1 << 20;
    const int64_t bytes = group.columns * bytes_of(kept_first(kept));
    if (kept.empty() || !group.split.empty() || bytes < least_bytes) return {};
    return row_threads_in_shared(bytes, count_of(group.rows).value_or(many), vectors.neighbours, target);
}

/// Tensors of which the group's reductions read an element for each column.
int64_t operands_of_reductions(const RowGroup& group) {
    std::set<std::pair<const Operation*, int>> operands;
    for (const auto& [operation, reads] : group.reads) {
        if (!own_reduction(*operation)) continue;
        const RowAxes axes = group.axes_of(*operation);
        auto depends_on_columns = [&](const Expr& index) {
            return std::ranges::any_of(axes.columns, [&](const Expr& column) { return contains(index, column); });
        };
        for (const RowRead& read : reads)
            if (std::ranges::any_of(read.at, depends_on_columns))
                operands.insert({read.tensor.operation().get(), read.tensor.output()});
    }
    return static_cast<int64_t>(operands.size());
}

/// Whether rows are better kept in shared memory: registers have no room for them, or for one block or few threads of a
/// multiprocessor only, as they hold floats of all that reductions read, and shared memory has room for more blocks.
bool is_better_in_shared(const RowThreads& shape, const RowThreads& shared, const RowGroup& group,
                         const std::vector<OperationRef>& kept) {
    constexpr int64_t registers = 65536, registers_beside = 20, few_threads = 512;
    constexpr int64_t all_threads = 1024, most_floats = 48;  // of each of so many: more spill
    constexpr int64_t most_bytes = 190 << 10;  // of several operands: the first cache has no room for others then
    const std::vector<OperationRef> first = kept_first(kept);
    if (!shape.keep) {
        // What exponents read goes through in one pass, with an exponential of each element less.
        const bool halves_stream = reductions_of(group) > 1 && first.size() < kept.size() && bytes_of(first) < 4;
        return !halves_stream && (first.size() == 1 || group.columns * bytes_of(first) <= most_bytes);
    }
    const int64_t vectors = shape.threads * shape.neighbours;
    const int64_t elements = (group.columns + vectors - 1) / vectors * shape.neighbours;
    const int64_t floats = elements * operands_of_reductions(group);
    if (shape.threads == all_threads) return floats > most_floats || (kept.size() > 1 && shared.in_shared > 1);
    const int64_t blocks = std::max<int64_t>(registers / (shape.threads * (registers_beside + floats)), 1);
    return (blocks == 1 || blocks * shape.threads * shape.rows <= few_threads) && shared.in_shared > blocks;
}

/// Two operands that all threads read: loops of few steps are unrolled whole, and spill unless vectors are short.
bool spills_as_read(const RowThreads& threads, const RowGroup& group) {
    constexpr int64_t all_threads = 1024, least_steps = 5, most_steps = 8, long_vector = 8;
    const int64_t steps = group.columns / (threads.threads * threads.neighbours);
    return !threads.keep && threads.threads == all_threads && threads.neighbours == long_vector &&
           steps >= least_steps && steps <= most_steps && operands_of_reductions(group) == 2;
}

}  // namespace

bool has_columns(const RowGroup& group, const Operation& operation) {
    return !own_reduction(operation) && group.axes_of(operation).has_columns();
}

GroupThreads group_threads(const RowGroup& group, const Target& target) {
    const std::vector<OperationRef> kept = kept_operations(group);
    const RowVectors vectors = vectors_of(group);
    GroupThreads found{.vectors = vectors,
                       .threads = threads_of(group, vectors, kept),
                       .shared = threads_in_shared(group, vectors, kept, target),
                       .reductions = reductions_of(group),
                       .has_kept = !kept.empty(),
                       .stores_rows = stores_rows(group)};
    found.prefers_shared =
        found.shared && found.stores_rows && is_better_in_shared(found.threads, *found.shared, group, kept);
    if (spills_as_read(found.threads, group)) found.threads.neighbours /= 2;
    if (const auto rows = count_of(group.rows))  // of no more rows than there are: nobody repeats one
        found.threads.rows =
            std::min(found.threads.rows, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(*rows))));
    return found;
}

}  // namespace tw::schedules
