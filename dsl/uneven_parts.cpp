// Parts of reductions of which elements decide how many terms they have: as many parts as the longest has, each with
// what terms are left.
#include <algorithm>

#include "dsl/parts.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {
namespace {

using State = Schedule::State;

/// The split of a reduce axis, as long as elements say, that made the loop; null if there is none.
const Relation* uneven_split(const State& state, int owner, int loop) {
    for (const Relation& relation : state.stages[owner].relations)
        if (relation.kind == Relation::Kind::Split && (relation.outer == loop || relation.inner == loop) &&
            state.loops[relation.whole].reduces && depends_on_element(state.loops[relation.whole].extent))
            return &relation;
    return nullptr;
}

/// The number of the reduce axis that the loop runs along, if it is a root; else -1.
int axis_of_root(const State& state, int owner, int loop) {
    const StageRecord& record = state.stages[owner];
    for (size_t r = record.definition.axes.size(); r < record.roots.size(); ++r)
        if (record.roots[r] == loop) return static_cast<int>(r - record.definition.axes.size());
    return -1;
}

/// Whether there is a constant that lengths reach and no type or size alone says.
bool is_bounded(const Expr& length) {
    constexpr int64_t most_of_i32 = (int64_t{1} << 31) - 1;
    const auto most = bounds_of(length).max;
    return most && *most < most_of_i32 && std::ranges::none_of(variables_of(length), [](const Expr& variable) {
               return variable.as<Variable>()->kind == VariableKind::Size;
           });
}

Expr greatest_length(const Expr& extent) {
    const auto most = bounds_of(extent).max;
    return integer(std::max<int64_t>(most.value_or(0), 0));
}

}  // namespace

LoopRecord loop_of_parts(const State& state, int along) {
    LoopRecord loop = state.loops[along];
    if (depends_on_element(loop.extent)) loop.extent = greatest_length(loop.extent);
    return loop;
}

Expr length_in_part(const State& state, int stage, int owner, int along, int loop, const Expr& part) {
    const std::vector<Expr>& lengths = state.stages[stage].definition.reduce_extents;
    if (lengths.empty()) return state.loops[loop].extent;
    const Relation* split = uneven_split(state, owner, along);
    if (!split || (split->outer != loop && split->inner != loop)) {
        const int axis = axis_of_root(state, owner, loop);
        return axis < 0 ? state.loops[loop].extent : lengths[static_cast<size_t>(axis)];
    }
    const Expr& length = lengths[static_cast<size_t>(axis_of_root(state, owner, split->whole))];
    if (split->outer == along) return simplify(max(min(length - part * split->size, split->size), 0));
    return simplify((max(length - part, 0) + (split->size - 1)) / split->size);
}

bool is_uneven_in_parts(const State& state, int owner, int along, const Relation& relation) {
    const Relation* split = uneven_split(state, owner, along);
    return split && split->whole == relation.whole;
}

void check_uneven_parts(const State& state, int owner, int along, const std::string& call, std::source_location where) {
    const StageRecord& record = state.stages[owner];
    if (record.definition.reduce_extents.empty()) return;
    auto stands = [&](int loop) { return std::ranges::find(record.order, loop) != record.order.end(); };
    bool is_plain = axis_of_root(state, owner, along) < 0 || !depends_on_element(state.loops[along].extent);
    for (const Relation& relation : record.relations) {
        const LoopRecord& whole = state.loops[relation.whole];
        if (!whole.reduces) continue;
        const bool splits_parts = is_uneven_in_parts(state, owner, along, relation);
        is_plain = is_plain && stands(relation.outer) && stands(relation.inner) &&
                   (splits_parts || !depends_on_element(whole.extent));
    }
    user_check(is_plain, where,
               "{}: elements decide how many terms '{}' has; split the loop as long as they say once, into parts and "
               "what is in one, and share out one of the two before it is split again",
               call, record.definition.name);
    const Relation* split = uneven_split(state, owner, along);
    user_check(!split || is_bounded(state.loops[split->whole].extent), where,
               "{}: nothing bounds how many terms an element of '{}' has, {}, so there is no number of parts; write it "
               "as min(.., most)",
               call, record.definition.name, split ? to_string(state.loops[split->whole].extent) : "");
}

}  // namespace tw
