// Scans in parts: the total of each part, a scan of the totals, and scans that begin anew with each part.
#include "dsl/scan_parts.h"

#include <algorithm>

#include "dsl/parts.h"
#include "dsl/simplify.h"
#include "dsl/stream.h"
#include "support/error.h"

namespace tw {
namespace {

using State = Schedule::State;

/// An axis as long as this.
Expr axis_of(const std::string& name, const Expr& extent) {
    return axis_like({.name = name, .variable = {}, .extent = extent});
}

/// The reduction alone, over these axes: its accumulators, fresh ones, are its outputs.
StageDefinition reduction_over(const StageDefinition& scan, const std::string& name, const std::vector<Expr>& axes,
                               const std::vector<Expr>& shape) {
    StageDefinition made = scan;
    made.name = name;
    made.axes = axes;
    made.update.clear();
    made.terms_where.clear();
    made.declared = nullptr;
    auto operation = std::make_shared<Operation>();
    operation->name = name;
    operation->where = scan.operation->where;
    operation->shape = shape;
    operation->axes = axes;
    for (Expr& accumulator : made.accumulators) {
        accumulator = make_expr(accumulator.type(), Variable{.name = "accumulator", .kind = VariableKind::Scalar});
        operation->outputs.push_back({accumulator.type(), accumulator});
    }
    made.finish = made.accumulators;
    made.operation = operation;
    return made;
}

/// What a scan of whole rows is made of when it is taken apart.
class Parts {
public:
    Parts(Edit& edit, int stage, const Relation& split)
        : edit_(edit), state_(edit.state), stage_(stage), split_(split), whole_(state_.stages[stage].definition) {
        const StageRecord& record = state_.stages[stage];
        const int runs = record.scan->loop;
        for (const Relation& relation : record.relations)
            if (relation.kind == Relation::Kind::Mirror && relation.inner == runs) mirrored_ = relation.whole;
        const auto root = std::ranges::find(record.roots, mirrored_ >= 0 ? mirrored_ : runs);
        axis_ = static_cast<size_t>(root - record.roots.begin());
        extent_ = state_.loops[runs].extent;
        num_parts_ = state_.loops[split.outer].extent;
        exclusive_ = record.scan->is_exclusive;
    }

    /// Whether the loop runs along one data axis as a whole.
    bool is_of_an_axis() const { return axis_ < whole_.axes.size(); }

    int run() {
        const int totals = add_stage(state_, totals_of_parts(), edit_.step);
        const int before = add_stage(state_, before_parts(state_.stages[totals].definition), edit_.step);
        LoopRecord& along = state_.loops[state_.stages[before].roots[axis_]];
        along.reduces = true;
        const Expr part = state_.stages[before].definition.axes[axis_];
        state_.stages[before].scan = ScanRecord{state_.stages[before].roots[axis_], part, true};
        begin_anew(state_.stages[before].definition);
        return totals;
    }

private:
    /// The index of the axis at which the iteration of the running loop is.
    Expr element_at(const Expr& iteration) const { return mirrored_ >= 0 ? extent_ - 1 - iteration : iteration; }

    std::vector<Expr> shape_of_parts() const {
        std::vector<Expr> shape = whole_.operation->shape;
        shape[axis_] = num_parts_;
        return shape;
    }

    StageDefinition totals_of_parts() {
        const std::string& name = state_.loops[split_.outer].name;
        std::vector<Expr> axes = fresh_axes(name);
        const Expr term = axis_of(state_.loops[split_.inner].name, split_.size);
        const Expr iteration = axes[axis_] * split_.size + term;
        StageDefinition made =
            reduction_over(whole_, unique_stage_name(state_, whole_.name + "_partial"), axes, shape_of_parts());
        Substitution values = over(axes, element_at(iteration));
        for (size_t c = 0; c < made.accumulators.size(); ++c)
            values.emplace_back(whole_.accumulators[c], made.accumulators[c]);
        for (const Expr& update : whole_.update) made.update.push_back(simplify(substitute(update, values)));
        for (const Expr& where : whole_.terms_where) made.terms_where.push_back(simplify(substitute(where, values)));
        if (split_.masked) made.terms_where.push_back(simplify(iteration < extent_));
        made.reduce_axes = {term};
        return made;
    }

    StageDefinition before_parts(const StageDefinition& totals) {
        std::vector<Expr> axes = fresh_axes(state_.loops[split_.outer].name);
        StageDefinition made =
            reduction_over(whole_, unique_stage_name(state_, whole_.name + "_before"), axes, shape_of_parts());
        made.update = combined_with(made.accumulators, true, totals, axes);
        return made;
    }

    /// What is left: elements of a part, behind what comes before it.
    void begin_anew(const StageDefinition& before) {
        StageRecord& record = state_.stages[stage_];
        const Expr iteration = simplify(element_at(record.definition.axes[axis_]));
        std::vector<Expr> part = record.definition.axes;
        part[axis_] = simplify(iteration / split_.size);
        Substitution results;
        const std::vector<Expr> values = combined_with(record.definition.accumulators, false, before, part);
        for (size_t c = 0; c < values.size(); ++c) results.emplace_back(record.definition.accumulators[c], values[c]);
        for (Expr& expr : record.definition.finish) expr = contract(simplify(substitute(expr, results)));
        for (int loop : record.order) state_.loops[loop].dead_step = edit_.step;
        add_root_loops(state_, stage_, record.definition.operation->shape);
        add_loops_of_parts(iteration);
    }

    void add_loops_of_parts(const Expr& iteration) {
        int whole = state_.stages[stage_].roots[axis_];
        auto replace = [&](int loop, const std::vector<int>& by) {
            std::vector<int>& order = state_.stages[stage_].order;
            const auto place = order.erase(std::ranges::find(order, loop));
            order.insert(place, by.begin(), by.end());
            state_.loops[loop].dead_step = edit_.step;
        };
        if (mirrored_ >= 0) {
            const int back = state_.add_loop(state_.loops[whole].name, extent_, stage_, false);
            state_.stages[stage_].relations.push_back({Relation::Kind::Mirror, whole, -1, back, extent_});
            replace(whole, {back});
            whole = back;
        }
        const std::string outer_name = state_.loops[split_.outer].name, inner_name = state_.loops[split_.inner].name;
        const int outer = state_.add_loop(outer_name, num_parts_, stage_, false);
        const int inner = state_.add_loop(inner_name, split_.size, stage_, true);
        state_.stages[stage_].relations.push_back(
            {Relation::Kind::Split, whole, outer, inner, split_.size, split_.masked});
        replace(whole, {outer, inner});
        const Expr length = simplify(iteration % split_.size + (exclusive_ ? 0 : 1));
        state_.stages[stage_].scan = ScanRecord{inner, length, exclusive_};
    }

    /// combine(accumulator, element of the other reduction), or the other way round.
    std::vector<Expr> combined_with(const std::vector<Expr>& accumulators, bool accumulator_first,
                                    const StageDefinition& other, const std::vector<Expr>& element) const {
        Substitution operands;
        for (size_t c = 0; c < accumulators.size(); ++c) {
            const Expr read = make_expr(accumulators[c].type(), Read{other.operation, static_cast<int>(c), element});
            operands.emplace_back(whole_.reducer->left[c], accumulator_first ? accumulators[c] : read);
            operands.emplace_back(whole_.reducer->right[c], accumulator_first ? read : accumulators[c]);
        }
        std::vector<Expr> values;
        for (const Expr& combined : whole_.reducer->combined)
            values.push_back(contract(simplify(substitute(combined, operands))));
        return values;
    }

    std::vector<Expr> fresh_axes(const std::string& part) const {
        std::vector<Expr> axes;
        for (size_t d = 0; d < whole_.axes.size(); ++d)
            axes.push_back(d == axis_ ? axis_of(part, num_parts_)
                                      : axis_of(name_of(whole_.axes[d]), whole_.operation->shape[d]));
        return axes;
    }

    Substitution over(const std::vector<Expr>& axes, const Expr& element) const {
        Substitution values;
        for (size_t d = 0; d < axes.size(); ++d)
            values.emplace_back(whole_.axes[d], d == axis_ ? simplify(element) : axes[d]);
        return values;
    }

    Edit& edit_;
    State& state_;
    int stage_;
    Relation split_;
    StageDefinition whole_;
    int mirrored_ = -1;
    size_t axis_ = 0;
    Expr extent_, num_parts_;
    bool exclusive_ = false;
};

}  // namespace

int scan_in_parts(Edit& edit, int stage, int along, const std::string& call) {
    State& state = edit.state;
    const StageRecord& record = state.stages[stage];
    const std::string& name = record.definition.name;
    for (int loop : record.order)
        user_check(attached_to(state, loop).empty(), edit.where,
                   "{}: stages stand under loop '{}' of '{}'; do this step before they are placed", call,
                   state.loops[loop].name, name);
    const auto split = std::ranges::find_if(record.relations, [&](const Relation& relation) {
        return relation.kind == Relation::Kind::Split && relation.outer == along && relation.whole == record.scan->loop;
    });
    const bool is_split = split != record.relations.end();
    user_check(is_split && Parts(edit, stage, *split).is_of_an_axis(), edit.where,
               "{}: '{}' is not the outer part of a split of '{}', along which '{}' runs from the first element to the "
               "last; split that once, and name its outer part",
               call, state.loops[along].name, state.loops[record.scan->loop].name, name);
    return Parts(edit, stage, *split).run();
}

}  // namespace tw
