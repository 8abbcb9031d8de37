// The primitive that has a loop begin where elements lie at multiples of a vector.
#include <algorithm>

#include "dsl/edit.h"
#include "dsl/operand.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {

using State = Schedule::State;

namespace {

/// Where the element stands in memory, in elements.
Expr place_in_memory(const Operation& operation, const std::vector<Expr>& indices) {
    Expr place = constant(Type::I64, int64_t{0}), stride = constant(Type::I64, int64_t{1});
    for (size_t d = indices.size(); d-- > 0;) {
        if (!operation.strides.empty()) stride = operation.strides[d];
        place = place + indices[d] * stride;
        if (operation.strides.empty()) stride = stride * operation.shape[d];
    }
    return simplify(place);
}

class Alignment {
public:
    Alignment(const State& state, int loop, const Operation& operand, int64_t elements, std::source_location where)
        : state_(state), loop_(state.loops[loop]), operand_(operand), elements_(elements), where_(where) {
        const StageRecord& record = state.stages[loop_.stage];
        const auto root = std::ranges::find(record.roots, loop);
        user_check(root != record.roots.end(), where,
                   "align({}, {}, {}): the loop is no axis of '{}'; align it before {}", loop_.name, operand.name,
                   elements, record.definition.name, "it is split or fused");
        user_check(record.attach < 0 && record.streams < 0, where,
                   "align({}, {}, {}): '{}' stands in another kernel, whose loops say where its own begin; align loops "
                   "of the kernel's own stage",
                   loop_.name, operand.name, elements, record.definition.name);
        const auto axis = static_cast<size_t>(root - record.roots.begin());
        const StageDefinition& definition = record.definition;
        axis_ = axis < definition.axes.size() ? definition.axes[axis]
                                              : definition.reduce_axes[axis - definition.axes.size()];
    }

    /// How many iterations earlier the loop begins, over variables of the stage's root loops.
    Expr shift() const {
        const StageRecord& record = state_.stages[loop_.stage];
        std::optional<Expr> found;
        for (const Expr& place : places()) {
            const auto step = coefficient(affine_of(place), axis_);
            if (!step || *step != 1) continue;
            const Expr begin = simplify(substitute(place, {{axis_, constant(Type::I64, int64_t{0})}}));
            const Expr shift = simplify(begin % elements_);
            user_check(!found || equal(*found, shift), where_,
                       "align({}, {}, {}): '{}' is read at places that begin differently ({} and {} modulo {}), so no "
                       "loop has all of them at multiples; stage what one of them reads",
                       loop_.name, operand_.name, elements_, operand_.name, to_string(*found), to_string(shift),
                       elements_);
            found = shift;
        }
        user_check(
            found.has_value(), where_,
            "align({}, {}, {}): no access of '{}' by '{}' goes to the next element with the next iteration; name "
            "what is accessed along the loop",
            loop_.name, operand_.name, elements_, operand_.name, record.definition.name);
        return over_roots(*found);
    }

private:
    std::vector<Expr> places() const {
        const StageDefinition& definition = state_.stages[loop_.stage].definition;
        std::vector<Expr> found;
        for (const ReadSite& site : reads_of(definition))
            if (site.read->operation.get() == &operand_) found.push_back(place_in_memory(operand_, site.read->indices));
        if (definition.operation.get() == &operand_) found.push_back(place_in_memory(operand_, definition.axes));
        return found;
    }

    Expr over_roots(const Expr& shift) const {
        const StageRecord& record = state_.stages[loop_.stage];
        Substitution roots;
        for (size_t d = 0; d < record.definition.axes.size(); ++d)
            roots.emplace_back(record.definition.axes[d], state_.loops[record.roots[d]].variable);
        const Expr over = substitute(shift, roots);
        const bool by_others =
            std::ranges::none_of(record.definition.reduce_axes, [&](const Expr& axis) { return contains(over, axis); });
        user_check(by_others && !reads_tensors(over), where_,
                   "align({}, {}, {}): where '{}' begins depends on data or on terms ({}), not on the element alone",
                   loop_.name, operand_.name, elements_, operand_.name, to_string(shift));
        return over;
    }

    const State& state_;
    const LoopRecord& loop_;
    const Operation& operand_;
    const int64_t elements_;
    std::source_location where_;
    Expr axis_;
};

}  // namespace

Loop Schedule::align(Loop loop, const StageRef& operand, int64_t elements, std::source_location where) {
    Edit edit(state_, where);
    State& state = edit.state;
    const int id = edit.alive(loop, "align");
    const LoopRecord whole = state.loops[id];
    const OperandOf source = operand_of(edit, operand);
    user_check(elements >= 1 && elements <= 64 && (elements & (elements - 1)) == 0, where,
               "align({}, {}, {}): vectors have 1, 2, 4, up to 64 elements", whole.name, source.operation->name,
               elements);
    require_serial(edit, id, "align");
    user_check(attached_to(state, id).empty(), where, "align({}, ..): '{}' stands under it; align the loop before at",
               whole.name, attached_to(state, id).empty() ? "" : stage_text(state, attached_to(state, id)[0]));
    const Expr shift = Alignment(state, id, *source.operation, elements, where).shift();
    const bool shifts = !is_constant(shift, 0);
    const Expr extent = shifts ? simplify(whole.extent + (elements - 1)) : whole.extent;
    const int aligned = state.add_loop(whole.name, extent, whole.stage, whole.reduces);
    StageRecord& record = state.stages[whole.stage];
    *std::ranges::find(record.order, id) = aligned;
    record.relations.push_back({Relation::Kind::Align, id, -1, aligned, shift, shifts});
    state.loops[id].dead_step = edit.step;
    const std::string cut = edit.loop_as_cpp(id), from = operand_as_cpp(edit, operand),
                      made = edit.loop_as_cpp(aligned);
    edit.commit(fmt::format("Loop {} = s.align({}, {}, {});", made, cut, from, elements),
                fmt::format("align {} {} {}", id, saved_operand(edit, operand), elements));
    return state_->handle_of_loop(aligned);
}

}  // namespace tw
