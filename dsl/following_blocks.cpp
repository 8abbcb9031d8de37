// What a leader reads at an index that is none of its axes: pixels as places of a raster, rows of a batch one behind
// the other. Where its loops count such an index through, block by block, followers that read the same can go along it.
#include <algorithm>
#include <map>

#include "dsl/following.h"
#include "dsl/simplify.h"

namespace tw {
using State = Schedule::State;

std::vector<int> loops_to(const State& state, int stage, int loop) {
    const auto& order = state.stages[stage].order;
    return {order.begin(), order.begin() + state.position(loop) + 1};
}

bool is_made_for(const State& state, int leader, int stage) {
    int around = stage;
    while (state.stages[around].attach >= 0 && leader_of(state, around) != leader) around = leader_of(state, around);
    const StageRecord& inside = state.stages[around];
    const bool made_there = !state.stages[stage].inlined && inside.attach >= 0 && !inside.after;
    return made_there && !accesses(state, state.stages[leader].definition, leader, stage).empty();
}

bool is_read_by(const State& state, int leader, int stage) {
    if (is_made_for(state, leader, stage)) return true;
    const StageRecord& before = state.stages[stage];
    return stage != leader && !before.inlined && before.attach < 0 &&
           reads_stage(state.stages[leader].definition, before.definition);
}

std::vector<Access> accesses(const State& state, const StageDefinition& definition, int around, int target) {
    std::vector<Access> found;
    for (const ReadSite& site : reads_of(definition)) {
        int producer = state.stage_of(site.read->operation.get());
        if (producer == target) found.push_back(site.read->indices);
        if (producer < 0 || producer == target || !stands_in(state, producer, around)) continue;
        const StageDefinition& through = state.stages[producer].definition;
        Substitution axes;
        for (size_t d = 0; d < through.axes.size(); ++d) axes.emplace_back(through.axes[d], site.read->indices[d]);
        for (Access access : accesses(state, through, around, target)) {
            for (Expr& index : access) index = simplify(substitute(index, axes));
            found.push_back(std::move(access));
        }
    }
    return found;
}

Access indices_read(const State& state, int leader, int stage) {
    const std::vector<Access> found = accesses(state, state.stages[leader].definition, leader, stage);
    Access indices = found[0];
    for (size_t d = 0; d < indices.size(); ++d)
        for (const Access& access : found)
            if (indices[d].defined() && !equal(access[d], found[0][d])) indices[d] = {};
    return indices;
}

namespace {

std::optional<Blocks> blocks_of(const State& state, int leader, int loop, const Expr& index,
                                std::source_location where) {
    const auto box = box_read_in_iteration(state, leader, loop, Memory::Registers, {index}, where);
    if (!box) return {};
    Affine first = affine_of(box->lo[0]);
    if (first.offset != 0 || first.terms.empty()) return {};
    std::ranges::sort(first.terms, {}, [](const auto& term) { return term.second; });
    Blocks blocks{.index = index, .first = box->lo[0], .size = first.terms[0].second, .all = {}, .loops = {}};
    blocks.all = constant(Type::I64, blocks.size);
    const std::vector<int> around = loops_to(state, leader, loop);
    for (const auto& [atom, coefficient] : first.terms) {
        const auto found = std::ranges::find_if(around, [&](int l) { return state.loops[l].variable.same(atom); });
        if (found == around.end() || !is_constant(blocks.all, coefficient)) return {};
        blocks.all = simplify(blocks.all * state.loops[*found].extent);
        blocks.loops.push_back(*found);
    }
    return blocks;
}

}  // namespace

std::vector<Blocks> blocks_made(const State& state, int leader, int loop, std::source_location where) {
    std::vector<Blocks> all;
    const auto& axes = state.stages[leader].definition.axes;
    if (state.stages[leader].attach >= 0 || state.position(loop) >= state.around_results(leader)) return all;
    for (size_t s = 0; s < state.stages.size(); ++s) {
        if (!is_read_by(state, leader, static_cast<int>(s))) continue;
        for (const Expr& index : indices_read(state, leader, static_cast<int>(s))) {
            auto is_index = [&](const Expr& other) { return equal(other, index); };
            if (!index.defined() || std::ranges::any_of(axes, is_index)) continue;
            if (std::ranges::any_of(all, [&](const Blocks& blocks) { return is_index(blocks.index); })) continue;
            if (auto blocks = blocks_of(state, leader, loop, index, where)) all.push_back(*blocks);
        }
    }
    return all;
}

namespace {

/// The values of loops that lead to the leader's element.
std::map<int, Expr> loops_leading_to(const State& state, int leader, const Access& element,
                                     std::source_location where) {
    const Region region = region_of(state, leader, where);
    const StageRecord& made = state.stages[leader];
    std::map<int, Expr> value;
    for (size_t d = 0; d < made.roots.size() && d < region.lo.size(); ++d)
        if (element[d].defined()) value[made.roots[d]] = simplify(element[d] - region.lo[d]);
    add_parts_of_loops(state, made, value);
    return value;
}

}  // namespace

bool in_same_iteration(const State& state, int leader, int loop, const Access& one, const Access& other,
                       std::source_location where) {
    const std::map<int, Expr> first = loops_leading_to(state, leader, one, where),
                              second = loops_leading_to(state, leader, other, where);
    return std::ranges::all_of(loops_to(state, leader, loop), [&](int around) {
        if (!first.contains(around) || !second.contains(around)) return true;
        return prove(simplify(first.at(around)) == simplify(second.at(around))) == true;
    });
}

}  // namespace tw
