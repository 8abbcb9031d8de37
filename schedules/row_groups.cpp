#include "schedules/row_groups.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "dsl/simplify.h"
#include "schedules/window_terms.h"

namespace tw::schedules {
namespace {

bool are_same(const std::vector<Expr>& a, const std::vector<Expr>& b) {
    return std::ranges::equal(a, b, [](const Expr& x, const Expr& y) { return x.same(y); });
}

bool is_reduction(const Operation& operation) {
    return std::ranges::any_of(operation.outputs, [](const Operation::Output& output) { return reduces(output.body); });
}

bool contains_any(const Expr& expr, const std::vector<Expr>& axes) {
    return std::ranges::any_of(axes, [&](const Expr& axis) { return contains(expr, axis); });
}

}  // namespace

bool same_reduction(const Reduce& a, const Reduce& b) {
    return a.reducer == b.reducer && are_same(a.values, b.values) && are_same(a.axes, b.axes);
}

const Reduce* own_reduction(const Operation& operation) {
    const Reduce* found = nullptr;
    bool only = true;
    if (operation.is_input()) return nullptr;
    for (const Operation::Output& output : operation.outputs)
        visit(output.body, [&](const Expr& e) {
            const Reduce* reduce = e.as<Reduce>();
            if (!reduce) return;
            only = only && (!found || same_reduction(*found, *reduce));
            found = reduce;
        });
    return only ? found : nullptr;
}

Expr flat_index(const std::vector<Expr>& at, const std::vector<Expr>& extents) {
    Expr index = integer(0);
    for (size_t d = 0; d < at.size(); ++d) index = index * extents[d] + at[d];
    return simplify(index);
}

std::optional<int64_t> count_of(const std::vector<Expr>& extents) {
    int64_t count = 1;
    for (const Expr& extent : extents) {
        const auto own = extent.defined() ? as_constant(extent) : std::nullopt;
        if (!own || __builtin_mul_overflow(count, *own, &count)) return {};
    }
    return count;
}

std::vector<Expr> extents_of(const std::vector<Expr>& axes) {
    std::vector<Expr> extents;
    for (const Expr& axis : axes) extents.push_back(axis.as<Variable>()->extent);
    return extents;
}

Expr RowAxes::column() const { return flat_index(columns, extents_of(columns)); }

RowAxes row_axes(const Operation& operation, size_t rank) {
    if (const Reduce* reduction = own_reduction(operation)) return {operation.axes, reduction->axes};
    const auto first = operation.axes.begin() + static_cast<std::ptrdiff_t>(std::min(rank, operation.axes.size()));
    return {{operation.axes.begin(), first}, {first, operation.axes.end()}};
}

RowAxes row_axes(const Operation& operation, size_t rank, const SplitAxes& split) {
    const auto found = split.find(&operation);
    if (found == split.end()) return row_axes(operation, rank);
    RowAxes axes{operation.axes, {found->second.column}};
    axes.rows.back() = found->second.row;
    return axes;
}

std::optional<Expr> row_start(const RowRead& read, const RowAxes& axes) {
    const Operation& of = *read.tensor.operation();
    Expr address = integer(0), stride = integer(1);
    for (size_t d = read.at.size(); d-- > 0;) {
        address = address + read.at[d] * (of.strides.empty() ? stride : of.strides[d]);
        stride = stride * of.shape[d];
    }
    if (!axes.has_columns()) return {};
    const Expr start = simplify(address - axes.column());
    if (contains_any(start, axes.columns)) return {};
    for (const Expr& row : axes.rows)
        if (!is_constant(row.as<Variable>()->extent, 1) && !contains(start, row)) return {};
    return start;
}

RowAxes RowGroup::axes_of(const Operation& operation) const { return row_axes(operation, rows.size(), split); }
std::vector<Expr> RowGroup::at_axes(const Operation& operation, const std::vector<Expr>& indices) const {
    return indices_in_rows(operation, indices, split);
}
std::vector<Expr> RowGroup::row_of(const Operation& operation) const {
    std::vector<Expr> row = axes_of(operation).rows;
    if (const auto found = split.find(&operation); found != split.end())
        row.back() = found->second.in_axis(found->second.axis)[0];
    return row;
}
Expr RowGroup::column_of(const Operation& operation) const {
    const auto found = split.find(&operation);
    return found == split.end() ? axes_of(operation).column() : found->second.in_axis(found->second.axis)[1];
}

bool RowGroup::holds(const OperationRef& operation) const {
    return std::ranges::find(made, operation) != made.end() || std::ranges::find(between, operation) != between.end();
}

bool is_worth_sharing(const RowGroup& group) {
    constexpr int64_t least_alone = 8;
    return group.made.size() > 1 || group.columns >= least_alone;
}

namespace {

/// A group while it grows.
struct Growing {
    std::vector<Expr> rows, own_axes;  ///< extents, and axes that stand for those of all
    int64_t columns = 0;
    std::set<OperationRef> made;
    std::vector<std::pair<Tensor, Expr>> starts;  ///< of the rows that it reads
    SplitAxes split = {};

    RowAxes axes_of(const Operation& operation) const { return row_axes(operation, rows.size(), split); }
};

class Grouping {
public:
    Grouping(const std::vector<Tensor>& outputs, const RowGrouping& how)
        : how_(how), operations_(operations_of(outputs)) {
        for (const Tensor& output : outputs) outputs_.insert(output.operation());
        for (const OperationRef& operation : operations_)
            if (!operation->is_input()) read(operation);
    }

    std::vector<RowGroup> run() {
        for (const OperationRef& operation : operations_)
            if (!operation->is_input() && is_stored(operation) && !how_.is_taken(operation)) put(operation);
        std::vector<RowGroup> found;
        for (const Growing& group : groups_) found.push_back(finished(group));
        return found;
    }

private:
    bool is_stored(const OperationRef& operation) const {
        return operation->is_input() || outputs_.count(operation) || is_reduction(*operation) ||
               how_.is_copy(operation) || how_.is_taken(operation);
    }

    // What is read.

    void read(const OperationRef& operation) {
        std::vector<RowRead>& found = reads_[operation];
        auto add = [&](RowRead read) {
            const bool known = std::ranges::any_of(found, [&](const RowRead& other) {
                return other.tensor.same(read.tensor) && std::ranges::equal(other.at, read.at, equal);
            });
            if (!known) found.push_back(std::move(read));
        };
        for (const Operation::Output& output : operation->outputs)
            visit(output.body, [&](const Expr& e) {
                const Read* own = e.as<Read>();
                if (!own) return;
                readers_[own->operation].insert(operation);
                if (is_stored(own->operation)) return add({{own->operation, own->output}, own->indices, own->guarded});
                Substitution place;
                for (size_t d = 0; d < own->indices.size(); ++d)
                    place.emplace_back(own->operation->axes[d], own->indices[d]);
                for (RowRead through : reads_[own->operation]) {
                    for (Expr& index : through.at) index = simplify(substitute(index, place));
                    through.guarded = through.guarded || own->guarded;
                    add(std::move(through));
                }
            });
    }

    // Which group.

    /// Over [rows.., columns..], or [rows.. columns], or over rows alone: then the group knows how.
    static bool fits(Growing& group, const Operation& operation) {
        const size_t rank = group.rows.size();
        if (group.split.contains(&operation)) return true;
        if (operation.shape.size() < rank ||
            !std::ranges::equal(std::span(operation.shape).first(rank), group.rows, equal))
            return split(group, operation);
        const RowAxes axes = row_axes(operation, rank);
        if (own_reduction(operation) && operation.shape.size() != rank) return false;
        return !axes.has_columns() || count_of(extents_of(axes.columns)) == group.columns;
    }
    /// Whether the last dimension is that of rows and that of columns.
    static bool split(Growing& group, const Operation& operation) {
        const size_t rank = group.rows.size();
        if (rank == 0 || group.columns < 2 || operation.shape.size() != rank || is_reduction(operation)) return false;
        const auto last = as_constant(operation.shape.back()), rows = as_constant(group.rows.back());
        if (!last || !rows || *last != *rows * group.columns ||
            !std::ranges::equal(std::span(operation.shape).first(rank - 1), std::span(group.rows).first(rank - 1),
                                equal))
            return false;
        group.split[&operation] = split_axis(operation.axes.back(), *rows, group.columns);
        return true;
    }
    /// At the reader's own row, and its own column.
    static bool is_aligned(const Growing& group, std::vector<Expr> at, const Operation& of, const RowAxes& reader) {
        const size_t rank = reader.rows.size();
        if (const auto found = group.split.find(&of); found != group.split.end()) {
            const std::vector<Expr> both = found->second.in_axis(at.back());
            at.back() = both[0];
            at.push_back(both[1]);
            return std::ranges::equal(std::span(at).first(rank), reader.rows, equal) && reader.has_columns() &&
                   equal(at.back(), reader.column());
        }
        if (at.size() < rank || !std::ranges::equal(std::span(at).first(rank), reader.rows, equal)) return false;
        if (at.size() == rank) return true;
        if (!reader.has_columns()) return false;
        const auto first = static_cast<std::ptrdiff_t>(rank);
        return equal(flat_index({at.begin() + first, at.end()}, {of.shape.begin() + first, of.shape.end()}),
                     reader.column());
    }
    bool reads_aligned(const Growing& group, const OperationRef& operation) const {
        const RowAxes axes = group.axes_of(*operation);
        return std::ranges::all_of(reads_of(group, operation), [&](const RowRead& read) {
            return !group.made.count(read.tensor.operation()) ||
                   (!read.guarded && is_aligned(group, read.at, *read.tensor.operation(), axes));
        });
    }
    bool reads_member(const Growing& group, const OperationRef& operation) const {
        return std::ranges::any_of(reads_.at(operation),
                                   [&](const RowRead& read) { return group.made.count(read.tensor.operation()); });
    }

    /// Over axes of rows and columns.
    std::vector<RowRead> reads_of(const Growing& group, const OperationRef& operation) const {
        std::vector<RowRead> reads = reads_.at(operation);
        for (RowRead& read : reads) read.at = indices_in_rows(*operation, read.at, group.split);
        return reads;
    }

    /// The rows that an operation reads, over axes of the group.
    std::vector<std::pair<Tensor, Expr>> starts_of(const Growing& group, const OperationRef& operation) const {
        const RowAxes axes = group.axes_of(*operation);
        Substitution names;
        for (size_t d = 0; d < axes.rows.size(); ++d) names.emplace_back(axes.rows[d], group.own_axes[d]);
        std::vector<std::pair<Tensor, Expr>> starts;
        for (const RowRead& read : reads_of(group, operation))
            if (const auto start = read.guarded ? std::nullopt : row_start(read, axes))
                starts.emplace_back(read.tensor, simplify(substitute(*start, names)));
        return starts;
    }
    static bool share_row(const std::vector<std::pair<Tensor, Expr>>& a,
                          const std::vector<std::pair<Tensor, Expr>>& b) {
        return std::ranges::any_of(a, [&](const auto& one) {
            return std::ranges::any_of(
                b, [&](const auto& other) { return one.first.same(other.first) && equal(one.second, other.second); });
        });
    }

    /// A group of its own; nothing where it reduces no rows.
    std::optional<Growing> started(const OperationRef& operation) const {
        const Reduce* reduction = own_reduction(*operation);
        if (!reduction || !reduction->reducer->commutative || operation->axes.empty()) return {};
        const auto columns = count_of(extents_of(reduction->axes));
        if (!columns) return {};
        Growing group{operation->shape, {}, *columns, {operation}, {}, {}};
        for (const Expr& axis : operation->axes)
            group.own_axes.push_back(make_expr(Type::I64, Variable(*axis.as<Variable>())));
        group.starts = starts_of(group, operation);
        return group.starts.empty() ? std::nullopt : std::optional(group);
    }

    void put(const OperationRef& operation) {
        std::optional<Growing> group = started(operation);
        const bool is_element = !is_reduction(*operation);
        if (!group && !is_element) return;
        for (size_t g = groups_.size(); g-- > 0;) {
            Growing other = groups_[g];
            if (group && !std::ranges::equal(group->rows, other.rows, equal)) continue;
            if (!fits(other, *operation) || !reads_aligned(other, operation)) continue;
            if (!belongs(other, operation)) continue;
            Growing joined = group ? *group : Growing{other.rows, other.own_axes, other.columns, {operation}, {}, {}};
            joined.made.insert(other.made.begin(), other.made.end());
            joined.split.insert(other.split.begin(), other.split.end());
            if (needs_itself(joined.made)) continue;
            joined.starts = all_starts(joined);
            group = std::move(joined);
            groups_.erase(groups_.begin() + static_cast<std::ptrdiff_t>(g));
        }
        if (!group) return;
        take_in(*group);
        groups_.push_back(std::move(*group));
    }
    std::vector<std::pair<Tensor, Expr>> all_starts(const Growing& group) const {
        std::vector<std::pair<Tensor, Expr>> all;
        for (const OperationRef& each : group.made)
            for (const auto& start : starts_of(group, each)) all.push_back(start);
        return all;
    }
    bool belongs(const Growing& group, const OperationRef& operation) const {
        return reads_member(group, operation) || share_row(starts_of(group, operation), group.starts);
    }
    /// Outputs that came before and that these read at their own place, or that read the same rows.
    void take_in(Growing& group) const {
        for (const OperationRef& each : operations_) {
            const bool is_element =
                !each->is_input() && is_stored(each) && !is_reduction(*each) && !how_.is_taken(each);
            if (!is_element || group.made.count(each) || is_grouped(each)) continue;
            Growing more = group;
            if (!fits(more, *each)) continue;
            more.made.insert(each);
            const bool is_near = belongs(more, each) || std::ranges::any_of(group.made, [&](const OperationRef& own) {
                                     return std::ranges::any_of(reads_.at(own), [&](const RowRead& read) {
                                         return read.tensor.operation() == each;
                                     });
                                 });
            const bool aligned =
                std::ranges::all_of(more.made, [&](const OperationRef& member) { return reads_aligned(more, member); });
            if (!is_near || !aligned || needs_itself(more.made)) continue;
            group = std::move(more);
            group.starts = all_starts(group);
        }
    }
    bool is_grouped(const OperationRef& operation) const {
        return std::ranges::any_of(groups_, [&](const Growing& group) { return group.made.count(operation); });
    }

    /// Whether what these are computed from is computed from one of these by another kernel.
    bool needs_itself(const std::set<OperationRef>& kernel) const {
        std::set<OperationRef> seen;
        std::vector<OperationRef> left;
        auto add_reads = [&](const OperationRef& of) {
            for (const RowRead& read : reads_.at(of)) {
                const OperationRef& each = read.tensor.operation();
                if (!each->is_input() && seen.insert(each).second) left.push_back(each);
            }
        };
        for (const OperationRef& member : kernel) seen.insert(member);
        for (const OperationRef& member : kernel) add_reads(member);
        while (!left.empty()) {
            const OperationRef next = left.back();
            left.pop_back();
            std::set<OperationRef> with{next};
            for (const Growing& group : groups_)
                if (group.made.count(next) &&
                    std::ranges::none_of(group.made, [&](const OperationRef& each) { return kernel.count(each); }))
                    with = group.made;
            for (const OperationRef& each : with)
                for (const RowRead& read : reads_.at(each)) {
                    const OperationRef& of = read.tensor.operation();
                    if (kernel.count(of)) return true;
                    if (!of->is_input() && seen.insert(of).second) left.push_back(of);
                }
        }
        return false;
    }

    // What comes of it.

    RowGroup finished(Growing group) const {
        RowGroup result{.rows = group.rows,
                        .columns = group.columns,
                        .made = {},
                        .between = {},
                        .results = {},
                        .reads = {},
                        .split = {}};
        for (const OperationRef& operation : operations_)
            if (group.made.count(operation)) {
                result.made.push_back(operation);
                result.reads.emplace_back(operation, reads_of(group, operation));
                if (outputs_.count(operation) || how_.is_copy(operation) || is_read_elsewhere(group, operation))
                    result.results.push_back(operation);
            }
        for (size_t k = operations_.size(); k-- > 0;)
            if (stands_between(result, group, operations_[k])) result.between.push_back(operations_[k]);
        std::ranges::reverse(result.between);
        auto is_it = [](const Operation* operation) {
            return [operation](const OperationRef& each) { return each.get() == operation; };
        };
        std::erase_if(group.split, [&](const auto& each) {
            return std::ranges::none_of(result.made, is_it(each.first)) &&
                   std::ranges::none_of(result.between, is_it(each.first));
        });
        result.split = std::move(group.split);
        return result;
    }
    bool is_read_elsewhere(const Growing& group, const OperationRef& operation) const {
        return std::ranges::any_of(reads_, [&](const auto& each) {
            return is_stored(each.first) && !group.made.count(each.first) &&
                   std::ranges::any_of(each.second,
                                       [&](const RowRead& read) { return read.tensor.operation() == operation; });
        });
    }
    /// Readers come first.
    bool stands_between(const RowGroup& result, Growing& group, const OperationRef& operation) const {
        const auto readers = readers_.find(operation);
        if (operation->is_input() || is_stored(operation) || readers == readers_.end() || !fits(group, *operation))
            return false;
        const auto is_here = [&](const OperationRef& reader) { return result.holds(reader); };
        if (std::ranges::none_of(readers->second, is_here)) return false;
        return std::ranges::all_of(readers->second, [&](const OperationRef& reader) {
            if (!is_here(reader)) return how_.is_sum(reader);
            const RowAxes axes = group.axes_of(*reader);
            bool aligned = true;
            for (const Operation::Output& output : reader->outputs)
                visit(output.body, [&](const Expr& e) {
                    const Read* read = e.as<Read>();
                    if (read && read->operation == operation)
                        aligned =
                            aligned && !read->guarded &&
                            is_aligned(group, indices_in_rows(*reader, read->indices, group.split), *operation, axes);
                });
            return aligned;
        });
    }

    const RowGrouping& how_;
    std::set<OperationRef> outputs_;
    const std::vector<OperationRef> operations_;          // producers first
    std::map<OperationRef, std::vector<RowRead>> reads_;  // of what lies in memory
    std::map<OperationRef, std::set<OperationRef>> readers_;
    std::vector<Growing> groups_;
};

}  // namespace

std::vector<RowGroup> row_groups(const std::vector<Tensor>& outputs, const RowGrouping& how) {
    return Grouping(outputs, how).run();
}

}  // namespace tw::schedules
