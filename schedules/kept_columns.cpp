#include "schedules/kept_columns.h"

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "codegen/cost/predict_time.h"
#include "dsl/edit.h"
#include "dsl/simplify.h"
#include "schedules/calibrated_speeds.h"
#include "schedules/free_names.h"
#include "schedules/replace_tensors.h"
#include "schedules/row_groups.h"
#include "schedules/unit_product.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

bool reads_itself(const Read& read, const std::vector<Expr>& at) {
    return std::ranges::equal(read.indices, at, [](const Expr& a, const Expr& b) { return equal(a, b); });
}

std::vector<Expr> without(std::vector<Expr> axes, size_t dimension) {
    axes.erase(axes.begin() + static_cast<std::ptrdiff_t>(dimension));
    return axes;
}

/// What a declaration is made of, if it has that form.
struct KeptColumns {
    std::vector<int64_t> shape;  ///< of the elements
    size_t along = 0;            ///< their dimension of terms
    std::vector<Tensor> kept;    ///< inputs that several stages read
    int64_t bytes = 1;           ///< of the widest element that is loaded or stored

    /// Columns that lie side by side: of all dimensions behind the terms.
    int64_t width() const {
        int64_t width = 1;
        for (size_t d = along + 1; d < shape.size(); ++d) width *= shape[d];
        return width;
    }
};

class Finder {
public:
    explicit Finder(const std::vector<Tensor>& outputs) : outputs_(outputs), operations_(operations_of(outputs)) {}

    std::optional<KeptColumns> find() {
        if (!find_elements() || !find_terms()) return {};
        const std::set<const Operation*> behind = behind_reductions();
        bool has_elements = false;
        for (const OperationRef& operation : operations_) {
            if (operation->is_input()) continue;
            if (operation->outputs.size() != 1 || !is_one_of_them(*operation)) return {};
            has_elements = has_elements || (is_element(*operation) && behind.contains(operation.get()));
        }
        find_kept();
        if (!has_elements || found_.kept.empty()) return {};
        return found_;
    }

private:
    bool is_output(const OperationRef& operation) const { return holds(outputs_, Tensor(operation, 0)); }
    static const Reduce* reduction_of(const Operation& operation) {
        return operation.outputs.size() == 1 ? only_reduction(operation.outputs[0].body) : nullptr;
    }
    static std::optional<std::vector<int64_t>> extents_of_operation(const Operation& operation) {
        std::vector<int64_t> extents;
        for (const Expr& extent : operation.shape) {
            const auto number = as_constant(extent);
            if (!number || *number == 0) return {};
            extents.push_back(*number);
        }
        return extents;
    }

    bool find_elements() {
        for (const OperationRef& operation : operations_) {
            if (operation->is_input() || !is_output(operation) || reduction_of(*operation)) continue;
            const auto extents = extents_of_operation(*operation);
            if (extents && extents->size() > found_.shape.size()) found_.shape = *extents;
        }
        return found_.shape.size() >= 2;
    }
    /// Where the first reduction's axis stands in what it reads.
    bool find_terms() {
        for (const OperationRef& operation : operations_) {
            const Reduce* reduction = operation->is_input() ? nullptr : reduction_of(*operation);
            if (!reduction || reduction->axes.size() != 1 || operation->axes.size() + 1 != found_.shape.size())
                continue;
            for (size_t d = 0; d + 1 < found_.shape.size(); ++d) {
                std::vector<Expr> at = operation->axes;
                at.insert(at.begin() + static_cast<std::ptrdiff_t>(d), reduction->axes[0]);
                bool is_read = false;
                for (const Expr& value : reduction->values)
                    visit(value, [&](const Expr& e) {
                        const Read* read = e.as<Read>();
                        is_read = is_read || (read && reads_itself(*read, at));
                    });
                if (!is_read) continue;
                found_.along = d;
                column_shape_ = found_.shape;
                column_shape_.erase(column_shape_.begin() + static_cast<std::ptrdiff_t>(d));
                return true;
            }
        }
        return false;
    }

    bool is_element(const Operation& operation) const { return extents_of_operation(operation) == found_.shape; }
    bool is_column(const Operation& operation) const { return extents_of_operation(operation) == column_shape_; }

    bool is_one_of_them(const Operation& operation) const {
        const Expr& body = operation.outputs[0].body;
        const Reduce* reduction = reduction_of(operation);
        int reductions = 0;
        visit(body, [&](const Expr& e) { reductions += e.as<Reduce>() != nullptr; });
        if (reductions != (reduction ? 1 : 0)) return false;
        if (!reduction && is_element(operation)) return reads_its_own(body, operation.axes, true);
        if (!is_column(operation)) return false;
        std::vector<Expr> at = operation.axes;
        if (!reduction) {
            at.insert(at.begin() + static_cast<std::ptrdiff_t>(found_.along), integer(-1));  // no element is read
            return reads_its_own(body, at, false);
        }
        if (reduction->axes.size() != 1 || !reduction->reducer->commutative) return false;
        if (as_constant(reduction->axes[0].as<Variable>()->extent) != found_.shape[found_.along]) return false;
        at.insert(at.begin() + static_cast<std::ptrdiff_t>(found_.along), reduction->axes[0]);
        return reads_its_own(body, at, true);
    }
    /// Whether what is computed is read at the own place: elements at these indices, numbers of columns without terms.
    bool reads_its_own(const Expr& body, const std::vector<Expr>& at, bool has_elements) const {
        const std::vector<Expr> column = without(at, found_.along);
        bool does = true;
        visit(body, [&](const Expr& e) {
            const Read* read = e.as<Read>();
            if (!read || read->operation->is_input()) return;
            const bool of_elements = has_elements && is_element(*read->operation);
            does = does && reads_itself(*read, of_elements ? at : column);
        });
        return does;
    }

    /// Those that read a reduction, directly or through others; producers stand first.
    std::set<const Operation*> behind_reductions() const {
        std::set<const Operation*> behind;
        for (const OperationRef& operation : operations_) {
            if (operation->is_input()) continue;
            for (const Operation::Output& output : operation->outputs)
                visit(output.body, [&](const Expr& e) {
                    const Read* read = e.as<Read>();
                    if (!read || read->operation->is_input()) return;
                    if (reduction_of(*read->operation) || behind.contains(read->operation.get()))
                        behind.insert(operation.get());
                });
        }
        return behind;
    }

    /// Inputs of the elements' shape, which are read at the own place alone, by several stages.
    void find_kept() {
        for (const OperationRef& input : operations_) {
            if (!input->is_input() || !is_element(*input)) continue;
            std::set<const Operation*> makers, seen;
            bool is_own = true;
            for (const OperationRef& reader : operations_) {
                if (reader->is_input()) continue;
                const Reduce* reduction = reduction_of(*reader);
                std::vector<Expr> at = reader->axes;
                if (reduction) at.insert(at.begin() + static_cast<std::ptrdiff_t>(found_.along), reduction->axes[0]);
                visit(reader->outputs[0].body, [&](const Expr& e) {
                    const Read* read = e.as<Read>();
                    if (!read || read->operation != input) return;
                    is_own = is_own && reads_itself(*read, at);
                    add_stages(*reader, makers, seen);
                });
            }
            if (!is_own) continue;
            found_.bytes = std::max<int64_t>(found_.bytes, bytes_of(Tensor(input, 0).type()));
            if (makers.size() > 1) found_.kept.emplace_back(input, 0);
        }
        for (const Tensor& output : outputs_)
            if (is_element(*output.operation()))
                found_.bytes = std::max<int64_t>(found_.bytes, bytes_of(output.type()));
    }
    /// The operation if it is a stage of its own, and those in which it stands.
    void add_stages(const Operation& operation, std::set<const Operation*>& makers,
                    std::set<const Operation*>& seen) const {
        if (!seen.insert(&operation).second) return;
        if (reduction_of(operation)) {
            makers.insert(&operation);
            return;
        }
        for (const OperationRef& reader : operations_) {
            if (reader.get() == &operation && is_output(reader)) makers.insert(&operation);
            if (reader->is_input()) continue;
            bool reads = false;
            visit(reader->outputs[0].body, [&](const Expr& e) {
                const Read* read = e.as<Read>();
                reads = reads || (read && read->operation.get() == &operation);
            });
            if (reads) add_stages(*reader, makers, seen);
        }
    }

    const std::vector<Tensor>& outputs_;
    std::vector<OperationRef> operations_;
    KeptColumns found_;
    std::vector<int64_t> column_shape_;
};

/// How threads stand in a block: each has `neighbours` elements of each `rows`-th term.
struct Threads {
    int64_t rows, lanes, neighbours;
    int64_t blocks;  ///< of a multiprocessor, at the same time
};

/// A few terms for each thread, and threads enough that some load while others compute. Of two computations on an H200,
/// wider rows, fewer or more threads took 1.03 to 1.5 times as long, registers in the place of shared memory 1.25 to
/// 1.4 times.
std::optional<Threads> threads_of(const KeptColumns& columns, const Target& target) {
    constexpr int64_t vector_bytes = 16, most_lanes = 4, steps = 8, most_threads = 1024, least_threads = 128;
    constexpr int64_t beside = 16 << 10;  // where threads meet, and what a block has for the system
    const int64_t width = columns.width(), terms = columns.shape[columns.along];
    Threads threads{1, 1, vector_bytes / columns.bytes, 1};
    while (width % threads.neighbours != 0) threads.neighbours /= 2;
    // Powers of 2, by which lanes exchange sums, and tiles that are no wider than rows.
    const auto vectors = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(width / threads.neighbours)));
    threads.lanes = std::min(vectors, most_lanes);
    const auto rows = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>((terms + steps - 1) / steps)));
    threads.rows = std::min(rows, most_threads / threads.lanes);
    int64_t bytes = beside;
    for (const Tensor& kept : columns.kept) bytes += terms * threads.lanes * threads.neighbours * bytes_of(kept.type());
    if (bytes > target.shared_bytes) return {};
    const int64_t of_block = std::max(threads.rows * threads.lanes, least_threads);
    threads.blocks = std::clamp<int64_t>(most_threads / of_block, 1, target.shared_bytes_per_multiprocessor / bytes);
    return threads;
}

/// The declaration with copies of what is kept, and of outputs that others read.
struct Declared {
    std::vector<Tensor> outputs, kept;
};

Declared declare(const std::vector<Tensor>& outputs, const KeptColumns& columns) {
    FreeNames names(outputs);
    Replacement replaced;
    Declared declared;
    auto copy_of = [](const std::string& name, const Tensor& tensor) {
        return compute(name, {tensor.shape().begin(), tensor.shape().end()}, [&](const std::vector<Expr>& at) {
            return tensor.read({at.begin(), at.end()});
        });
    };
    for (const Tensor& input : columns.kept) {
        declared.kept.push_back(copy_of(names.take(input.name() + "_kept"), input));
        replaced.put(input, declared.kept.back());
    }
    std::set<const Operation*> read;
    const auto operations = operations_of(outputs);
    for (const OperationRef& operation : operations)
        if (!operation->is_input())
            visit(operation->outputs[0].body, [&](const Expr& e) {
                if (const Read* of = e.as<Read>()) read.insert(of->operation.get());
            });
    std::map<const Operation*, Tensor> copies;
    for (const OperationRef& operation : operations) {
        const Tensor output(operation, 0);
        if (!holds(outputs, output) || !read.contains(operation.get())) continue;
        copies[operation.get()] = copy_of(output.name(), replaced.named(names.take(output.name() + "_kept"), output));
    }
    for (const Tensor& output : outputs) {
        const auto copy = copies.find(output.operation().get());
        declared.outputs.push_back(copy == copies.end() ? replaced.of(output) : copy->second);
    }
    return declared;
}

class Scheduling {
public:
    Scheduling(const Declared& declared, const KeptColumns& columns, const Threads& threads, const Target& target)
        : declared_(declared), columns_(columns), threads_(threads), s_(declared.outputs, target) {}

    Schedule run() {
        for (const Stage& stage : s_.all_stages())
            if (!s_.reduces(stage) && !is_one_of(declared_.outputs, stage) && !is_one_of(declared_.kept, stage))
                s_.inline_stage(stage);
        join_columns();
        const Tensor& leading = *std::ranges::find_if(
            declared_.outputs, [&](const Tensor& t) { return t.rank() == static_cast<int>(columns_.shape.size()); });
        const Loop block = lead(s_[leading]);
        std::vector<Stage> stages = s_.all_stages();
        for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage)
            if (stage->id != s_[leading].id) follow(*stage, block);
        if (threads_.blocks > 1) s_.occupancy(leading, static_cast<int>(threads_.blocks));
        return std::move(s_);
    }

private:
    bool is_one_of(const std::vector<Tensor>& tensors, const Stage& stage) const {
        return std::ranges::any_of(tensors, [&](const Tensor& t) { return s_[t].id == stage.id; });
    }

    /// Dimensions behind the terms are one, whatever lines these are of: tiles of it begin at whole sectors, and none
    /// ends with each line.
    void join_columns() {
        const auto first = static_cast<int>(columns_.along) + 1, last = static_cast<int>(columns_.shape.size()) - 1;
        if (first == last) return;
        for (const Stage& stage : s_.all_stages()) {
            const int without = has_terms(stage) ? 0 : 1;
            s_.join_axes(stage, first - without, last - without);
        }
        for (const OperationRef& input : operations_of(declared_.outputs)) {
            if (!input->is_input()) continue;
            const auto rank = static_cast<int>(input->shape.size()), without = last + 1 - rank;
            bool is_alike = without == 0 || without == 1;
            for (int d = first; is_alike && d <= last; ++d)
                is_alike = as_constant(input->shape[d - without]) == columns_.shape[d];
            if (is_alike) s_.join_axes(Tensor(input, 0), first - without, last - without);
        }
        rank_ = columns_.along + 2;
    }
    bool has_terms(const Stage& stage) const { return s_.data_loops(stage).size() == rank_; }

    Loop lead(const Stage& stage) {
        std::vector<Loop> outside = s_.data_loops(stage);
        const Loop terms = outside[columns_.along], columns = outside.back();
        outside.pop_back();
        outside.erase(outside.begin() + static_cast<std::ptrdiff_t>(columns_.along));
        const auto [tile, in_tile] =
            s_.split(columns, threads_.lanes * threads_.neighbours, Tail::Mask, {"tile", "in_tile"});
        outside.push_back(tile);
        spread(terms, in_tile, outside);
        const Loop block = outside.size() == 1 ? tile : s_.fuse({outside.begin(), outside.end()}, "block");
        s_.bind(block, grid.x);
        return block;
    }

    void follow(const Stage& stage, const Loop& block) {
        s_.at(stage, block);
        const bool reduces = s_.reduces(stage);
        if (is_one_of(declared_.kept, stage))
            s_.set_memory(stage, Memory::Shared);
        else if (!is_one_of(declared_.outputs, stage))
            s_.set_memory(stage, Memory::Registers);
        const std::vector<Loop> loops = s_.data_loops(stage);
        if (reduces)
            spread(s_.reduce(stage), loops.back(), {});
        else if (loops.size() == rank_)
            spread(loops[columns_.along], loops.back(), {});
        else
            bind(vectors(loops.back()), {});
    }

    /// Of neighbouring columns, and those in one.
    std::vector<Loop> vectors(const Loop& columns) {
        if (threads_.neighbours == 1) return {columns};
        const auto [column, element] = s_.split(columns, threads_.neighbours, Tail::Mask, {"column", "element"});
        return {column, element};
    }
    /// The columns' loops, those of vectors innermost; threads take the loops in front of them, too.
    void bind(const std::vector<Loop>& columns, std::vector<Loop> threads) {
        threads.push_back(columns[0]);
        s_.bind(threads, thread);
        if (columns.size() > 1) s_.bind(columns[1], vector);
    }

    void spread(const Loop& terms, const Loop& columns, std::vector<Loop> order) {
        const std::vector<Loop> vector = vectors(columns);
        const auto [step, row] = s_.split(terms, threads_.rows, Tail::Mask, {"step", "row"});
        order.insert(order.end(), {row, vector[0], step});
        if (vector.size() > 1) order.push_back(vector[1]);
        s_.order(order);
        bind(vector, {row});
        s_.unroll(step);
    }

    const Declared& declared_;
    const KeptColumns& columns_;
    Threads threads_;
    Schedule s_;
    size_t rank_ = columns_.shape.size();  ///< of elements
};

}  // namespace

std::optional<Schedule> kept_columns(const std::vector<Tensor>& outputs, const Target& target) {
    const std::optional<KeptColumns> columns = Finder(outputs).find();
    const std::optional<Threads> threads = columns ? threads_of(*columns, target) : std::nullopt;
    if (!threads) return {};
    return Scheduling(declare(outputs, *columns), *columns, *threads, target).run();
}

Schedule with_kept_columns(const std::vector<Tensor>& outputs, const Target& target,
                           const std::function<Schedule()>& otherwise) {
    const codegen::DeviceSpeeds& speeds = calibrated_speeds(target);
    auto seconds_of = [&](const Schedule& s) { return codegen::predict_time(s.tree(), target, speeds).seconds; };
    const std::string who = fmt::format("'{}': columns", outputs[0].name());
    std::optional<Schedule> kept;
    std::string refused;
    double alone = 0;
    try {
        kept = kept_columns(outputs, target);
        if (kept) alone = seconds_of(*kept);
    } catch (const Error& error) {
        kept.reset(), refused = error.what();
    }
    Schedule other = otherwise();
    if (!refused.empty()) Edit::note(other, fmt::format("{} do not stay in a block's memory: {}", who, refused));
    if (!kept) return other;
    const double apart = seconds_of(other);
    const std::string times = fmt::format("{:.4f} ms by the model of time, {:.4f} apart", alone * 1e3, apart * 1e3);
    // Two such kernels took 1.36 and 1.46 times as long for each predicted second as those apart.
    constexpr double liked = 1.45;
    const bool is_faster = alone * liked < apart;
    Schedule& taken = is_faster ? *kept : other;
    Edit::note(taken, fmt::format("{} {}stay in a block's memory: {}", who, is_faster ? "" : "do not ", times));
    return std::move(taken);
}

}  // namespace tw::schedules
