#include "dsl/matrix_copy.h"

#include <algorithm>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "dsl/operand.h"
#include "dsl/schedule.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {
namespace {

using State = Schedule::State;

const Read* read_in(const Expr& element) {
    const Select* choice = element.as<Select>();
    return (choice ? choice->yes : element).as<Read>();
}

Expr zero(Type type) { return is_float(type) ? constant(type, 0.0) : constant(type, int64_t{0}); }

bool is_read_of(const Expr& expr, const Operation* source, int output) {
    const Read* read = expr.as<Read>();
    return read && read->operation.get() == source && read->output == output;
}

/// A choice that needs no other memory than the element.
bool is_padded(const Expr& expr, const Operation* source, int output) {
    const Select* choice = expr.as<Select>();
    return choice && is_read_of(choice->yes, source, output) && !reads_tensors(choice->condition) &&
           (choice->no.as<IntConstant>() || choice->no.as<FloatConstant>());
}

/// Whether the condition is the bound, or has it as a part.
bool says(const Expr& condition, const Expr& bound) {
    const Binary* both = condition.as<Binary>();
    if (both && both->op == BinaryOp::And) return says(both->a, bound) || says(both->b, bound);
    return equal(simplify(condition), simplify(bound));
}

/// Where the conditions hold; an element that is padded itself has one of its own.
bool stays_inside(const Expr& factor, std::vector<Expr> conditions) {
    const Cast* cast = factor.as<Cast>();
    const Select* choice = (cast ? cast->a : factor).as<Select>();
    if (choice && !reads_tensors(choice->condition) && !reads_tensors(choice->no)) {
        conditions.push_back(choice->condition);
        return stays_inside(choice->yes, conditions);
    }
    bool inside = true;
    auto holds = [&](const Expr& bound) {
        return prove(bound) == true || std::ranges::any_of(conditions, [&](const Expr& e) { return says(e, bound); });
    };
    visit(factor, [&](const Expr& e) {
        const Read* read = e.as<Read>();
        for (size_t d = 0; read && d < read->indices.size(); ++d)
            inside = inside && holds(read->indices[d] >= 0) && holds(read->indices[d] < read->operation->shape[d]);
    });
    return inside;
}

/// A guarded product that is added to an accumulator.
struct GuardedProduct {
    Expr accumulator, condition;
    Binary product;
};
std::optional<GuardedProduct> guarded_product(const StageDefinition& reduction) {
    if (reduction.update.size() != 1) return {};
    const Binary* sum = reduction.update[0].as<Binary>();
    if (!sum || sum->op != BinaryOp::Add) return {};
    for (const auto& [accumulator, term] : {std::pair(sum->a, sum->b), std::pair(sum->b, sum->a)}) {
        std::vector<Expr> conditions;
        Expr inside = term;
        for (const Select* guard = inside.as<Select>(); guard && is_zero(guard->no); guard = inside.as<Select>()) {
            conditions.push_back(guard->condition);
            inside = guard->yes;
        }
        const Binary* product = inside.as<Binary>();
        if (product && product->op == BinaryOp::Mul && accumulator.same(reduction.accumulators[0]) &&
            !conditions.empty() && std::ranges::none_of(conditions, reads_tensors))
            return GuardedProduct{accumulator, all_of(conditions), *product};
    }
    return {};
}

/// The axes on which the element depends, in their order; last those along rows of the tensor.
std::vector<LoopAxes::Axis> axes_of(const LoopAxes& axes, const Expr& element) {
    std::vector<LoopAxes::Axis> found;
    for (const LoopAxes::Axis& axis : axes.axes())
        if (contains(element, axis.variable)) found.push_back(axis);
    const Expr& row = read_in(element)->indices.back();
    std::ranges::stable_partition(found, [&](const LoopAxes::Axis& axis) { return !contains(row, axis.variable); });
    return found;
}

/// Loops that stand for no axes.
void check_axes(const State& state, int reader, const std::string& call, std::source_location where) {
    const StageRecord& record = state.stages[reader];
    for (const Relation& relation : record.relations) {
        const std::string& loop = state.loops[relation.whole].name;
        user_check(relation.kind != Relation::Kind::Align, where,
                   "{}: '{}' of '{}' is aligned with addresses, and not every element of a matrix would be where its "
                   "row begins; stage without align, or the tensor as it is",
                   call, loop, record.definition.name);
        user_check(record.attach < 0 || relation.kind != Relation::Kind::Fuse || state.loops[relation.whole].reduces,
                   where,
                   "{}: '{}' stands under a loop of another stage, and its fused loop '{}' runs along a part of no "
                   "one axis; join the axes before, with join_axes",
                   call, record.definition.name, loop);
    }
}

/// Whether the stage stands under the loop, of whichever stage.
bool stands_under(const State& state, int stage, int loop) {
    for (; state.stages[stage].attach >= 0; stage = state.loops[state.stages[stage].attach].stage) {
        const int attach = state.stages[stage].attach;
        if (state.loops[loop].stage == state.loops[attach].stage) return state.position(loop) <= state.position(attach);
    }
    return false;
}

/// The copy stands under a loop of its reader, of a reduction one that runs over terms, or under one around it.
void check_loop(const State& state, int reader, int under, const std::string& call, std::source_location where) {
    const std::string& name = state.stages[reader].definition.name;
    const int owner = state.loops[under].stage;
    const bool around = owner != reader && stands_under(state, reader, under);
    const bool reduces = state.stages[reader].definition.reducer != nullptr;
    const bool own = owner == reader && (!reduces || state.position(under) >= state.first_reduce(reader));
    user_check(
        own || around, where,
        "{}: the copy lies as the loops of '{}' run, for the terms that one iteration reads; name a loop of '{}' "
        "from its outermost reduce loop on, or one around '{}'",
        call, name, name, name);
}

}  // namespace

const std::vector<Expr>& terms_of(const StageDefinition& reader) {
    return reader.reducer ? reader.update : reader.finish;
}

Expr element_read(const StageDefinition& reader, const std::shared_ptr<const Operation>& source, int output,
                  std::source_location where) {
    Expr found;
    auto take = [&](const Expr& element) {
        user_check(!found.defined() || equal(found, element), where,
                   "stage(.., As::Matrix): the terms of '{}' read '{}' in several ways, {} and {}; a matrix has one "
                   "element for each of them. Stage the operand as it is, or declare what they read as a tensor of its "
                   "own",
                   reader.name, source->name, to_string(found), to_string(element));
        found = element;
    };
    std::set<const ExprNode*> chosen;
    for (const Expr& term : terms_of(reader))
        visit(term, [&](const Expr& e) {
            if (!is_padded(e, source.get(), output)) return;
            take(e);
            chosen.insert(e.as<Select>()->yes.id());
        });
    for (const Expr& term : terms_of(reader))
        visit(term, [&](const Expr& e) {
            if (is_read_of(e, source.get(), output) && !chosen.contains(e.id())) take(e);
        });
    return found;
}

bool move_guard(StageDefinition& reduction, const std::shared_ptr<const Operation>& source, int output) {
    const auto guarded = guarded_product(reduction);
    if (!guarded) return false;
    auto reads = [&](const Expr& factor) {
        bool found = false;
        visit(factor, [&](const Expr& e) { found = found || is_read_of(e, source.get(), output); });
        return found;
    };
    Expr own = guarded->product.a, other = guarded->product.b;
    if (reads(other)) std::swap(own, other);
    if (!reads(own) || reads(other) || !stays_inside(other, reduction.terms_where)) return false;
    own = transform(own, [&](const Expr& e) {
        return is_read_of(e, source.get(), output) ? select(guarded->condition, e, zero(e.type())) : Expr();
    });
    reduction.update[0] = contract(guarded->accumulator + own * other);
    return true;
}

void guard_before_casts(StageDefinition& reduction, const std::shared_ptr<const Operation>& source, int output) {
    for (Expr& update : reduction.update)
        update = transform(update, [&](const Expr& e) -> Expr {
            const Select* choice = e.as<Select>();
            const Cast* cast = choice && is_zero(choice->no) ? choice->yes.as<Cast>() : nullptr;
            if (!cast || !is_read_of(cast->a, source.get(), output) || reads_tensors(choice->condition)) return {};
            return make_expr(e.type(), Cast{select(choice->condition, cast->a, zero(cast->a.type()))});
        });
}

StageDefinition matrix_copy(const LoopAxes& axes, const Expr& element, const std::string& name) {
    const Expr over_axes = axes.over_axes(element);
    const Read& read = *read_in(over_axes);
    std::vector<Expr> inside = axes.conditions_of_terms();
    for (size_t d = 0; d < read.indices.size(); ++d) {
        inside.push_back(simplify(read.indices[d] >= 0));
        inside.push_back(simplify(read.indices[d] < read.operation->shape[d]));
    }
    const Select* choice = over_axes.as<Select>();
    std::erase_if(inside, [](const Expr& part) { return prove(part) == true; });
    if (choice) inside.insert(inside.begin(), choice->condition);
    const Expr there = simplify(all_of(inside));

    auto operation = std::make_shared<Operation>();
    operation->name = name;
    operation->where = read.operation->where;
    for (const LoopAxes::Axis& axis : axes_of(axes, over_axes)) {
        operation->axes.push_back(axis.variable);
        operation->shape.push_back(axis.extent);
    }
    const Type type = over_axes.type();
    Expr body = make_expr(type, Read{read.operation, read.output, read.indices, true});
    if (is_constant(there, 1))
        body = make_expr(type, Read{read.operation, read.output, read.indices});
    else
        body = select(there, body, choice ? choice->no : zero(type));
    operation->outputs = {{type, body}};
    return {name, operation, operation->axes, {}, {}, {}, {}, {body}};
}

Expr read_of_matrix(const StageDefinition& copy, const LoopAxes& axes) {
    std::vector<Expr> indices;
    for (const Expr& own : copy.axes)
        indices.push_back(std::ranges::find_if(axes.axes(), [&](const LoopAxes::Axis& axis) {
                              return axis.variable.same(own);
                          })->index);
    return make_expr(copy.operation->outputs[0].type, Read{copy.operation, 0, indices});
}

Stage Schedule::stage(const StageRef& consumer, const StageRef& operand, Memory memory, Loop loop, As as,
                      std::source_location where) {
    if (as == As::Tensor) return stage(consumer, operand, memory, loop, where);
    Edit edit(state_, where);
    State& state = edit.state;
    const int reader = edit.stage(consumer, "stage"), under = edit.alive(loop, "stage");
    const OperandOf source = operand_of(edit, operand);
    const std::string& name = state.stages[reader].definition.name;
    const std::string call = fmt::format("stage({}, {}, {}, {}, As::Matrix)", name, source.operation->name,
                                         memory_text(memory), state.loops[under].name);
    check_loop(state, reader, under, call, where);
    check_axes(state, reader, call, where);
    guard_before_casts(state.stages[reader].definition, source.operation, source.output);
    if (move_guard(state.stages[reader].definition, source.operation, source.output))
        state.notes.push_back(
            fmt::format("[{}] '{}': terms whose condition does not hold are products with a zero of "
                        "'{}' now, and NaN where the other factor is infinite or NaN",
                        edit.step, name, source.operation->name));
    const Expr element = element_read(state.stages[reader].definition, source.operation, source.output, where);
    user_check(element.defined(), where, "{}: the terms of '{}' do not read '{}'", call, name, source.operation->name);
    const LoopAxes axes(state, reader, element);
    user_check(read_in(axes.over_axes(element)), where,
               "{}: all elements of '{}' that '{}' reads are padding, outside of it; leave the product out", call,
               source.operation->name, name);
    StageDefinition definition = matrix_copy(
        axes, element, unique_stage_name(state, fmt::format("{}_{}", source.operation->name, tw::to_string(memory))));
    const Expr there = read_of_matrix(definition, axes);
    StageDefinition& reading = state.stages[reader].definition;
    for (Expr& term : reading.reducer ? reading.update : reading.finish)
        term = transform(term, [&](const Expr& e) { return equal(e, element) ? there : Expr(); });
    const int copy = add_stage(state, std::move(definition), edit.step);
    StageRecord& record = state.stages[copy];
    record.is_copy = true;
    record.rounded = copied_rounding(state, record);
    record.attach = under;
    record.memory = memory;
    check_rules(state, where);
    fit_root_loops(state, copy, where);
    const std::string into = edit.stage_as_cpp(reader), from = operand_as_cpp(edit, operand),
                      around = edit.loop_as_cpp(under), made = edit.stage_as_cpp(copy);
    edit.commit(
        fmt::format("Stage {} = s.stage({}, {}, {}, {}, As::Matrix);", made, into, from, memory_text(memory), around),
        fmt::format("stage_as_matrix {} {} {} {}", reader, saved_operand(edit, operand), tw::to_string(memory), under));
    return state_->handle_of_stage(copy);
}

}  // namespace tw
