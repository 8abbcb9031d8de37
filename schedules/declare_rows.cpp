#include "schedules/declare_rows.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>

#include <fmt/format.h>

#include "dsl/simplify.h"
#include "schedules/free_names.h"
#include "schedules/replace_tensors.h"
#include "schedules/row_groups.h"
#include "schedules/window_terms.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

// Reductions inside of elements.

/// The axes of an operation, or of a reduction around, that the values depend on.
std::vector<Expr> free_axes(const Operation& operation, const Reduce& reduction) {
    std::vector<Expr> found;
    auto holds = [&](const Expr& axis) {
        return std::ranges::any_of(reduction.values, [&](const Expr& value) { return contains(value, axis); });
    };
    for (const Expr& axis : operation.axes)
        if (holds(axis)) found.push_back(axis);
    for (const Expr& value : reduction.values)
        for (const Expr& variable : variables_of(value)) {
            auto is_it = [&](const Expr& axis) { return axis.same(variable); };
            if (variable.as<Variable>()->kind == VariableKind::Index && variable.as<Variable>()->extent.defined() &&
                std::ranges::none_of(found, is_it) && std::ranges::none_of(reduction.axes, is_it))
                found.push_back(variable);
        }
    return found;
}

/// Whether its terms are elements side by side of rows that these axes tell.
bool reduces_rows(const Reduce& reduction, const std::vector<Expr>& rows) {
    if (!reduction.reducer->commutative || rows.empty() || !count_of(extents_of(reduction.axes))) return false;
    bool found = false;
    for (const Expr& value : reduction.values)
        visit(value, [&](const Expr& e) {
            if (const Read* read = e.as<Read>())
                found = found || row_start({Tensor(read->operation, read->output), read->indices, read->guarded},
                                           {rows, reduction.axes});
        });
    return found;
}

/// A reduction that holds no other, and is none of each element's own.
std::optional<Reduce> inner_reduction(const Operation& operation) {
    std::optional<Reduce> found;
    const Reduce* own = own_reduction(operation);
    for (const Operation::Output& output : operation.outputs)
        visit(output.body, [&](const Expr& e) {
            const Reduce* reduce = e.as<Reduce>();
            if (!reduce || found || std::ranges::any_of(reduce->values, reduces)) return;
            const std::vector<Expr> rows = free_axes(operation, *reduce);
            if (!reduces_rows(*reduce, rows)) return;
            const size_t rank = rows.size();
            const bool is_of_rows = rank < operation.axes.size() &&
                                    std::ranges::equal(rows, std::span(operation.axes).first(rank), equal) &&
                                    count_of({operation.shape.begin() + static_cast<std::ptrdiff_t>(rank),
                                              operation.shape.end()}) == count_of(extents_of(reduce->axes));
            if (!own || is_of_rows) found = *reduce;
        });
    return found;
}

Tensor declared_apart(const std::string& name, const Operation& operation, const Reduce& reduction) {
    const std::vector<Expr> rows = free_axes(operation, reduction);
    Shape shape;
    for (const Expr& extent : extents_of(rows)) shape.emplace_back(extent);
    auto body = [&](const std::vector<Expr>& at) {
        Substitution names;
        for (size_t d = 0; d < rows.size(); ++d) names.emplace_back(rows[d], at[d]);
        Reduce own = reduction;
        for (Expr& value : own.values) value = substitute(value, names);
        std::vector<Expr> components;
        for (size_t c = 0; c < own.values.size(); ++c) {
            own.component = static_cast<int>(c);
            components.push_back(make_expr(own.values[c].type(), own));
        }
        return components;
    };
    return compute_tuple(name, shape, body, reduction.where)[0];
}

std::vector<Tensor> with_reductions_apart(const std::vector<Tensor>& outputs, FreeNames& names) {
    Replacement whole;
    for (const OperationRef& given : operations_of(outputs)) {
        if (given->is_input()) continue;
        OperationRef operation = whole.of(Tensor(given, 0)).operation();
        while (const auto inner = inner_reduction(*operation)) {
            const Tensor apart =
                declared_apart(names.take(operation->name + "_" + inner->reducer->name), *operation, *inner);
            const std::vector<Expr> rows = free_axes(*operation, *inner);
            const auto bodies = changed_together(bodies_of(*operation), [&](const Expr& all) {
                return transform(all, [&](const Expr& e) -> Expr {
                    const Reduce* reduce = e.as<Reduce>();
                    if (!reduce || !same_reduction(*reduce, *inner)) return {};
                    return make_expr(e.type(), Read{apart.operation(), reduce->component, rows});
                });
            });
            operation = declared_again(*operation, operation->name, bodies);
            whole.put(Tensor(given, 0), Tensor(operation, 0));
        }
    }
    std::vector<Tensor> result;
    for (const Tensor& output : outputs) result.push_back(whole.of(output));
    return result;
}

// What is kept.

/// Indices of the dimensions of the element of that number.
std::vector<Expr> digits_of(const Expr& number, const std::vector<Expr>& extents) {
    std::vector<Expr> digits(extents.size());
    Expr rest = number;
    for (size_t d = extents.size(); d-- > 0;) {
        digits[d] = d == 0 ? rest : simplify(rest % extents[d]);
        rest = simplify(rest / extents[d]);
    }
    return digits;
}

/// A row that a group reads.
struct KeptRow {
    Tensor of;
    Expr start;                 ///< over the axes of the group's first operation
    std::set<OperationRef> by;  ///< stages that read it
    Tensor copy = {};
};

class Declaring {
public:
    Declaring(const std::vector<Tensor>& outputs, std::vector<RowGroup> groups, FreeNames& names)
        : outputs_(outputs), operations_(operations_of(outputs)), groups_(std::move(groups)), names_(names) {}

    DeclaredRows run() {
        find_homes();
        for (const RowGroup& group : groups_) kept_.push_back(kept_rows(group));
        find_contexts();
        for (const OperationRef& operation : operations_)
            if (!operation->is_input()) declare(operation);
        DeclaredRows result;
        for (const Tensor& output : outputs_) result.outputs.push_back(seen(output.operation(), output.output(), -1));
        result.copies = copies_;
        return result;
    }

private:
    void find_homes() {
        for (size_t g = 0; g < groups_.size(); ++g)
            for (const auto* part : {&groups_[g].made, &groups_[g].between})
                for (const OperationRef& each : *part) home_[each] = static_cast<int>(g);
    }
    int home_of(const OperationRef& operation) const {
        const auto found = home_.find(operation);
        return found == home_.end() ? -1 : found->second;
    }
    bool is_element(const OperationRef& operation) const {
        return !operation->is_input() && home_of(operation) < 0 && !holds(outputs_, operation) &&
               std::ranges::none_of(operation->outputs, [](const auto& output) { return reduces(output.body); });
    }
    static bool holds(const std::vector<Tensor>& tensors, const OperationRef& operation) {
        return std::ranges::any_of(tensors, [&](const Tensor& t) { return t.operation() == operation; });
    }

    static void for_each_read(const Operation& operation, const std::function<void(const Read&)>& see) {
        for (const Operation::Output& output : operation.outputs)
            visit(output.body, [&](const Expr& e) {
                if (const Read* read = e.as<Read>()) see(*read);
            });
    }

    // Rows.

    /// Where the row begins that the operation reads, over the axes of the group's first one.
    std::optional<Expr> start_of(const RowGroup& group, const Operation& reader, const Read& read) const {
        const RowAxes axes = group.axes_of(reader);
        if (read.guarded) return {};
        const auto start = row_start({Tensor(read.operation, read.output), group.at_axes(reader, read.indices)}, axes);
        if (!start) return {};
        Substitution names;
        const RowAxes first = group.axes_of(*group.made[0]);
        for (size_t d = 0; d < axes.rows.size(); ++d) names.emplace_back(axes.rows[d], first.rows[d]);
        return simplify(substitute(*start, names));
    }
    /// Elements that one stage alone reads are made there.
    std::map<OperationRef, OperationRef> stages_of(const RowGroup& group) const {
        std::map<OperationRef, OperationRef> stage;
        for (const OperationRef& each : group.made) stage[each] = each;
        for (size_t k = group.between.size(); k-- > 0;) {
            std::set<OperationRef> readers;
            for (const OperationRef& reader : operations_)
                if (!reader->is_input())
                    for_each_read(*reader, [&](const Read& read) {
                        if (read.operation == group.between[k]) readers.insert(reader);
                    });
            stage[group.between[k]] = readers.size() == 1 ? stage.at(*readers.begin()) : group.between[k];
        }
        return stage;
    }
    std::vector<KeptRow> kept_rows(const RowGroup& group) const {
        std::vector<KeptRow> rows;
        for (const auto& [operation, stage] : in_order(stages_of(group)))
            for_each_read(*operation, [&, operation = operation, stage = stage](const Read& read) {
                if (group.holds(read.operation)) return;
                const auto start = start_of(group, *operation, read);
                if (!start) return;
                const Tensor of(read.operation, read.output);
                for (KeptRow& row : rows)
                    if (row.of.same(of) && equal(row.start, *start)) return void(row.by.insert(stage));
                rows.push_back({of, *start, {stage}});
            });
        std::erase_if(rows, [&](const KeptRow& row) { return row.by.size() < 2 || is_element(row.of.operation()); });
        return rows;
    }
    std::vector<std::pair<OperationRef, OperationRef>> in_order(
        const std::map<OperationRef, OperationRef>& stages) const {
        std::vector<std::pair<OperationRef, OperationRef>> result;
        for (const OperationRef& operation : operations_)
            if (const auto found = stages.find(operation); found != stages.end()) result.push_back(*found);
        return result;
    }

    // Who reads what.

    /// For each element that lies in no memory, the groups for which it is declared; -1: all else.
    void find_contexts() {
        for (size_t k = operations_.size(); k-- > 0;) {
            const OperationRef& operation = operations_[k];
            if (operation->is_input()) continue;
            const std::set<int> own = contexts_of(operation);
            for_each_read(*operation,
                          [&](const Read& read) { contexts_[read.operation].insert(own.begin(), own.end()); });
        }
    }
    std::set<int> contexts_of(const OperationRef& operation) const {
        if (!is_element(operation)) return {home_of(operation)};
        const auto found = contexts_.find(operation);
        return found == contexts_.end() ? std::set<int>() : found->second;
    }
    /// A result of a group that reads it, too.
    bool is_split(const OperationRef& operation) const {
        const int home = home_of(operation);
        if (home < 0) return false;
        const RowGroup& group = groups_[static_cast<size_t>(home)];
        const auto found = contexts_.find(operation);
        return std::ranges::find(group.results, operation) != group.results.end() && found != contexts_.end() &&
               found->second.count(home);
    }

    // Declarations.

    Tensor seen(const OperationRef& operation, int output, int context) const {
        if (operation->is_input()) return {operation, output};
        const int of = is_element(operation) || (is_split(operation) && home_of(operation) == context) ? context : -1;
        const Tensor& first = declared_.at({operation, of});
        return {first.operation(), first.output() + output};
    }

    void declare(const OperationRef& operation) {
        if (is_element(operation)) {
            for (int context : contexts_of(operation))
                declared_[{operation, context}] = for_context(operation, context);
            return;
        }
        const int home = home_of(operation);
        if (!is_split(operation)) {
            declared_[{operation, -1}] = again(operation, operation->name, home);
            return;
        }
        const Tensor inner = again(operation, names_.take(operation->name + "_kept"), home, false);
        declared_[{operation, home}] = inner;
        declared_[{operation, -1}] = copy_of(*operation, inner);
        if (!holds(outputs_, operation)) copies_.push_back(operation->name);
    }
    /// An element as the context sees it; one of those that differ keeps the name.
    Tensor for_context(const OperationRef& operation, int context) {
        const Tensor made = again(operation, operation->name, context);
        for (int other : contexts_of(operation)) {
            const auto before = declared_.find({operation, other});
            if (before != declared_.end() && before->second.operation() != made.operation())
                return again(operation, names_.take(operation->name), context, false);
        }
        return made;
    }
    static Tensor copy_of(const Operation& operation, const Tensor& inner) {
        std::vector<Expr> bodies;
        for (size_t k = 0; k < operation.outputs.size(); ++k)
            bodies.push_back(
                make_expr(operation.outputs[k].type, Read{inner.operation(), static_cast<int>(k), operation.axes}));
        return {declared_again(operation, operation.name, bodies), 0};
    }

    /// The operation itself if it reads nothing else than before.
    Tensor again(const OperationRef& operation, const std::string& name, int context, bool named = true) {
        const std::vector<Expr> own = bodies_of(*operation);
        std::vector<Expr> bodies =
            changed_together(own, [&](const Expr& all) { return body_of(operation, all, context); });
        bool same = name == operation->name &&
                    std::ranges::equal(own, bodies, [](const Expr& a, const Expr& b) { return a.same(b); });
        if (home_of(operation) >= 0 && context >= 0) same = with_one_axis(*operation, bodies) && same;
        if (same) return {operation, 0};
        if (named) return {declared_again(*operation, name, bodies), 0};
        Operation unnamed = *operation;
        for (Operation::Output& output : unnamed.outputs) output.name.clear();
        return {declared_again(unnamed, name, bodies), 0};
    }
    Expr body_of(const OperationRef& operation, const Expr& body, int context) {
        const bool is_member = context >= 0 && home_of(operation) == context;
        return transform(body, [&](const Expr& e) -> Expr {
            const Read* read = e.as<Read>();
            if (!read) return {};
            if (is_member)
                if (const Tensor row = kept_copy(*operation, *read, context); row.defined()) {
                    const RowGroup& group = groups_[static_cast<size_t>(context)];
                    std::vector<Expr> at = group.row_of(*operation);
                    at.push_back(group.column_of(*operation));
                    return make_expr(e.type(), Read{row.operation(), 0, at});
                }
            const Tensor other = seen(read->operation, read->output, context);
            if (other.same(Tensor(read->operation, read->output))) return {};
            return make_expr(e.type(), Read{other.operation(), other.output(), read->indices, read->guarded});
        });
    }
    /// Declared where it is read first.
    Tensor kept_copy(const Operation& reader, const Read& read, int context) {
        const RowGroup& group = groups_[static_cast<size_t>(context)];
        std::vector<KeptRow>& rows = kept_[static_cast<size_t>(context)];
        if (group.holds(read.operation) || rows.empty()) return {};
        const auto start = start_of(group, reader, read);
        if (!start) return {};
        for (KeptRow& row : rows) {
            if (row.of.operation() != read.operation || row.of.output() != read.output || !equal(row.start, *start))
                continue;
            if (!row.copy.defined()) row.copy = declared_row(group, reader, read);
            return row.copy;
        }
        return {};
    }
    Tensor declared_row(const RowGroup& group, const Operation& reader, const Read& read) {
        const RowAxes axes = group.axes_of(reader);
        Shape shape;
        for (const Expr& extent : group.rows) shape.emplace_back(extent);
        shape.emplace_back(group.columns);
        const Tensor of = seen(read.operation, read.output, -1);
        auto body = [&](const std::vector<Expr>& at) {
            Substitution places;
            for (size_t d = 0; d < axes.rows.size(); ++d) places.emplace_back(axes.rows[d], at[d]);
            const std::vector<Expr> digits = digits_of(at.back(), extents_of(axes.columns));
            for (size_t d = 0; d < digits.size(); ++d) places.emplace_back(axes.columns[d], digits[d]);
            std::vector<Operand> indices;
            for (const Expr& index : group.at_axes(reader, read.indices))
                indices.emplace_back(simplify(substitute(index, places)));
            return of.read(indices);
        };
        return compute(names_.take(of.name() + "_row"), shape, body, reader.where);
    }

    /// In the place of several axes of a reduction; whether there was nothing to do.
    static bool with_one_axis(const Operation& operation, std::vector<Expr>& bodies) {
        const Reduce* given = own_reduction(operation);
        if (!given || given->axes.size() == 1) return true;
        const Axis all = reduce_axis("k", *count_of(extents_of(given->axes)));
        const std::vector<Expr> digits = digits_of(all.variable, extents_of(given->axes));
        Substitution places;
        for (size_t d = 0; d < digits.size(); ++d) places.emplace_back(given->axes[d], digits[d]);
        std::vector<Expr> values;
        for (Expr& body : bodies)
            body = transform(body, [&](const Expr& e) -> Expr {
                const Reduce* reduce = e.as<Reduce>();
                if (!reduce) return {};
                Reduce flat = *reduce;
                if (values.empty())
                    for (const Expr& value : flat.values) values.push_back(simplify(substitute(value, places)));
                flat.values = values;
                flat.axes = {all.variable};
                return make_expr(e.type(), flat);
            });
        return false;
    }

    const std::vector<Tensor>& outputs_;
    const std::vector<OperationRef> operations_;  // producers first
    const std::vector<RowGroup> groups_;
    FreeNames& names_;
    std::map<OperationRef, int> home_;
    std::vector<std::vector<KeptRow>> kept_;
    std::map<OperationRef, std::set<int>> contexts_;
    std::map<std::pair<OperationRef, int>, Tensor> declared_;
    std::vector<std::string> copies_;
};

}  // namespace

std::vector<Tensor> reductions_apart(const std::vector<Tensor>& outputs) try {
    FreeNames names(outputs);
    return with_reductions_apart(outputs, names);
} catch (const Error&) {  // what compute() refuses, it alone decides
    return outputs;
}

DeclaredRows declare_rows(const std::vector<Tensor>& outputs, const std::vector<std::string>& without) try {
    FreeNames names(outputs);
    const std::vector<Tensor> apart = with_reductions_apart(outputs, names);
    std::vector<RowGroup> groups = row_groups(apart);
    std::erase_if(groups, [&](const RowGroup& group) {
        return !is_worth_sharing(group) || std::ranges::any_of(group.made, [&](const OperationRef& each) {
            return std::ranges::find(without, each->name) != without.end();
        });
    });
    if (groups.empty()) return {apart, {}, {}};
    return Declaring(apart, std::move(groups), names).run();
} catch (const Error& error) {  // what compute() refuses, it alone decides
    return {outputs, {}, {fmt::format("rows are as they were declared: {}", error.what())}};
}

}  // namespace tw::schedules
