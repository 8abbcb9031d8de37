// Neighbouring dimensions of a dense result, or of an input, as one: the same memory, with fewer indices.
#include <algorithm>

#include <fmt/format.h>

#include "dsl/edit.h"
#include "dsl/operand.h"
#include "dsl/parts.h"
#include "dsl/schedule.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {
namespace {

using State = Schedule::State;

/// A number whose digits are the indices of dimensions `first` to `last`, the last one's lowest.
class JoinedAxes {
public:
    JoinedAxes(const Operation& operation, size_t first, size_t last)
        : shape_(operation.shape), first_(first), last_(last) {
        LoopRecord loop;
        loop.extent = constant(Type::I64, 1);
        for (size_t d = first; d <= last; ++d) {
            if (!operation.is_input()) loop.name += (d > first ? "_" : "") + to_string(operation.axes[d]);
            loop.extent = simplify(loop.extent * shape_[d]);
        }
        extent_ = loop.extent;
        variable_ = axis_like(loop);
    }

    const Expr& variable() const { return variable_; }

    /// The joined dimension's in the place of those that it stands for.
    std::vector<Expr> joined(const std::vector<Expr>& all, const Expr& one) const {
        std::vector<Expr> result(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first_));
        result.push_back(one);
        result.insert(result.end(), all.begin() + static_cast<std::ptrdiff_t>(last_) + 1, all.end());
        return result;
    }
    std::vector<Expr> shape() const { return joined(shape_, extent_); }
    std::vector<Expr> indices(const std::vector<Expr>& separate) const {
        Expr number = separate[first_];
        for (size_t d = first_ + 1; d <= last_; ++d) number = number * shape_[d] + separate[d];
        return joined(separate, simplify(number));
    }

    /// The separate axes over the joined one.
    Substitution digits(const std::vector<Expr>& axes) const {
        Substitution values;
        Expr rest = variable_;
        for (size_t d = last_; d > first_; --d) {
            const Expr size = is_constant(shape_[d], 0) ? constant(Type::I64, 1) : shape_[d];  // nothing is divided
            values.emplace_back(axes[d], simplify(rest % size));
            rest = rest / size;
        }
        values.emplace_back(axes[first_], simplify(rest));
        return values;
    }

private:
    const std::vector<Expr> shape_;
    const size_t first_, last_;
    Expr extent_, variable_;
};

std::shared_ptr<const Operation> with_joined(const Operation& operation, const JoinedAxes& axes) {
    Operation result = operation;
    const Substitution digits = axes.digits(operation.axes);
    result.shape = axes.shape();
    result.axes = axes.joined(operation.axes, axes.variable());
    for (Operation::Output& output : result.outputs) output.body = simplify(substitute(output.body, digits));
    result.gradient = nullptr;
    return std::make_shared<const Operation>(std::move(result));
}

void join(StageDefinition& definition, const JoinedAxes& axes) {
    const Substitution digits = axes.digits(definition.axes);
    for (auto* exprs : {&definition.update, &definition.finish, &definition.terms_where, &definition.reduce_extents})
        for (Expr& expr : *exprs) expr = substitute(expr, digits);
    for (auto* exprs : {&definition.update, &definition.finish})
        for (Expr& expr : *exprs) expr = contract(simplify(expr));
    if (!definition.declared) definition.declared = definition.operation;
    definition.operation = with_joined(*definition.operation, axes);
    definition.axes = axes.joined(definition.axes, axes.variable());
}

void redirect_reads(State& state, const Operation* from, const std::shared_ptr<const Operation>& to,
                    const JoinedAxes& axes) {
    for (const Operation*& result : state.result)
        if (result == from) result = to.get();
    for (StageRecord& stage : state.stages)
        for (auto* exprs : {&stage.definition.update, &stage.definition.finish, &stage.definition.place,
                            &stage.definition.terms_where, &stage.definition.reduce_extents})
            for (Expr& root : *exprs)
                root = transform(root, [&](const Expr& e) -> Expr {
                    const Read* read = e.as<Read>();
                    if (!read || read->operation.get() != from) return {};
                    return make_expr(e.type(), Read{to, read->output, axes.indices(read->indices), read->guarded});
                });
}

/// Loops keep their extents as they are.
void check_no_extent_reads(const State& state, const Operation* operation, const std::string& call,
                           std::source_location where) {
    for (const LoopRecord& loop : state.loops) {
        bool reads = false;
        visit(loop.extent, [&](const Expr& e) {
            const Read* read = e.as<Read>();
            reads = reads || (read && read->operation.get() == operation);
        });
        user_check(!reads, where, "{}: the extent of loop '{}' reads '{}'; declare it with fewer dimensions", call,
                   loop.name, operation->name);
    }
}

void check_dimensions(const std::string& call, const std::string& name, int first, int last, size_t rank,
                      std::source_location where) {
    user_check(0 <= first && first < last && last < static_cast<int>(rank), where,
               "{}: '{}' has the dimensions 0 to {}; name the first and the last of neighbours", call, name,
               static_cast<int>(rank) - 1);
}

/// Whether that is what has been done to it: another kernel that reads it may ask for the same.
bool is_joined_so(const Operation& separate, int first, int last, const std::vector<Expr>& shape) {
    const auto rank = static_cast<int>(separate.shape.size());
    if (first < 0 || first >= last || last >= rank) return false;
    const JoinedAxes axes(separate, static_cast<size_t>(first), static_cast<size_t>(last));
    return std::ranges::equal(axes.shape(), shape, equal);
}

std::shared_ptr<const Operation> joined_input(const Operation& input, const JoinedAxes& axes) {
    Operation result = input;
    result.shape = axes.shape();
    return std::make_shared<const Operation>(std::move(result));
}

/// Stages read the input over the joined axis.
void join_input(Edit& edit, const Tensor& input, int first, int last) {
    const Operation& operation = *input.operation();
    const std::string call = fmt::format("join_axes({}, {}, {})", operation.name, first, last);
    check_dimensions(call, operation.name, first, last, operation.shape.size(), edit.where);
    if (const auto before = edit.state.joined_inputs.find(&operation); before != edit.state.joined_inputs.end()) {
        user_check(is_joined_so(operation, first, last, before->second->shape), edit.where,
                   "{}: axes of '{}' are joined already; name all of the neighbours at once", call, operation.name);
        return;
    }
    user_check(
        operation.strides.empty(), edit.where,
        "{}: rows of '{}' have strides of their own, and neighbours of one another may lie apart; declare it with "
        "fewer dimensions, or without strides",
        call, operation.name);
    const bool is_read = std::ranges::any_of(edit.state.stages, [&](const StageRecord& stage) {
        return std::ranges::any_of(reads_of(stage.definition),
                                   [&](const ReadSite& site) { return site.read->operation.get() == &operation; });
    });
    user_check(is_read, edit.where, "{}: no stage of this schedule reads '{}'", call, operation.name);
    check_no_extent_reads(edit.state, &operation, call, edit.where);
    const JoinedAxes axes(operation, static_cast<size_t>(first), static_cast<size_t>(last));
    const auto joined = joined_input(operation, axes);
    redirect_reads(edit.state, &operation, joined, axes);
    edit.state.joined_inputs[&operation] = joined;
    edit.commit(fmt::format("s.join_axes({}, {}, {});", operand_as_cpp(edit, input), first, last),
                fmt::format("join_axes_of {} {} {}", saved_operand(edit, input), first, last));
}

}  // namespace

void Schedule::join_axes(const StageRef& ref, int first, int last, std::source_location where) {
    Edit edit(state_, where);
    if (ref.tensor_.defined() && ref.tensor_.operation()->is_input()) return join_input(edit, ref.tensor_, first, last);
    State& state = edit.state;
    const int stage = edit.stage(ref, "join_axes");
    StageRecord& record = state.stages[stage];
    const std::string call = fmt::format("join_axes({}, {}, {})", record.definition.name, first, last);
    const auto& declared = record.definition.declared;
    if (declared && is_joined_so(*declared, first, last, record.definition.operation->shape)) return;
    check_dimensions(call, record.definition.name, first, last, record.definition.axes.size(), where);
    user_check(record.attach < 0 && record.streams < 0, where,
               "{}: '{}' stands under a loop of another stage; join axes of what is a kernel of its own", call,
               record.definition.name);
    user_check(!record.definition.target && updaters_of(state, stage).empty(), where,
               "{}: elements of '{}' are updated atomically, by their indices; join axes of other stages", call,
               record.definition.name);
    for (size_t k = 0; k < state.outputs.size(); ++k)
        user_check(state.result[k] != record.definition.operation.get() ||
                       std::ranges::none_of(state.strides,
                                            [&](const auto& laid) { return laid.first.same(state.outputs[k]); }),
                   where, "{}: '{}' has strides of its own; leave out the strides, or the join_axes", call,
                   record.definition.name);
    const bool untouched = record.order == record.roots && std::ranges::all_of(record.order, [&](int id) {
                               return state.loops[id].level == Level::Serial && attached_to(state, id).empty();
                           });
    user_check(untouched, where, "{}: loops of '{}' are scheduled already; join its axes first", call,
               record.definition.name);
    const std::shared_ptr<const Operation> separate = record.definition.operation;
    check_no_extent_reads(state, separate.get(), call, where);
    const JoinedAxes axes(*separate, static_cast<size_t>(first), static_cast<size_t>(last));
    for (int id : record.order) state.loops[id].dead_step = edit.step;
    join(record.definition, axes);
    redirect_reads(state, separate.get(), record.definition.operation, axes);
    add_root_loops(state, stage, record.definition.operation->shape);
    edit.commit(fmt::format("s.join_axes({}, {}, {});", edit.stage_as_cpp(stage), first, last),
                fmt::format("join_axes {} {} {}", stage, first, last));
}

}  // namespace tw
