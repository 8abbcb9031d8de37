#include "codegen/tile_passes/compare_masks.h"

#include <algorithm>

#include "codegen/access/conditions.h"
#include "codegen/tile_passes/stored_elements.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

/// The iteration that an op belongs to, and a condition of its own in terms of it.
struct OfIteration {
    Expr iteration;
    bool is_single;  // in no loop: the condition stands as it is
    Expr condition;
};

/// `common` stands for the iteration in the condition. Loops of one iteration are left out.
OfIteration of_iteration(const OpInLoops& place, const Expr& condition, const Expr& common) {
    Substitution only;
    for (const Expr& variable : place.around)
        if (bounds_of(variable).max == 0) only.emplace_back(variable, integer(0));
    OfIteration result{simplify(substitute(place.op.iteration, only)), true, simplify(substitute(condition, only))};
    const Affine affine = affine_of(result.iteration);
    for (const Expr& variable : place.around) {
        if (!contains(result.iteration, variable)) continue;
        result.is_single = false;
        auto step = coefficient(affine, variable);
        if (!step || (*step != 1 && *step != -1)) continue;
        const Expr rest = simplify(result.iteration - variable * *step);
        result.condition = simplify(substitute(result.condition, {{variable, simplify((common - rest) * *step)}}));
    }
    return result;
}

/// What is left of the condition if both are known to be equal: a variable of the first is told by the rest.
Expr where_equal(const Expr& condition, const Expr& one, const Expr& other) {
    for (const auto& [term, factor] : affine_of(one).terms)
        if (term.as<Variable>() && (factor == 1 || factor == -1))
            return simplify(substitute(condition, {{term, simplify(term - (one - other) * factor)}}));
    return condition;
}

}  // namespace

Expr with_uniform_parts(const TileOp& op, const Expr& mask) {
    std::vector<Expr> parts;
    for (Expr part : conjuncts_of(mask)) {
        for (const OpLoop& loop : op.loops) {
            auto extent = as_constant(loop.extent);
            if (!extent || *extent < 1) continue;
            if (Expr uniform = uniform_over(part, loop.variable, *extent); uniform.defined()) part = uniform;
        }
        parts.push_back(part);
    }
    return all_of(parts);
}

Substitution to_reader(const TileOp& fill, const StoreTo& store, const Load& load) {
    Substitution result;
    for (size_t d = 0; d < load.indices.size(); ++d)
        if (store.indices[d].as<Variable>())
            result.emplace_back(store.indices[d], load.indices[d]);
        else if (store.buffer->memory == Memory::Registers)
            for (auto& digit : digits_of(store.indices[d], load.indices[d], fill)) result.push_back(std::move(digit));
    return result;
}

bool is_masked_by(const OpInLoops& fill, const StoreTo& store, const OpInLoops& reader, const Load& load,
                  const Expr& asked, std::set<size_t>& relied) {
    std::vector<Expr> masks = conjuncts_of(fill.op.mask), parts{asked};
    const size_t relied_on = masks.size();
    const Select* choice = store.value.as<Select>();  // which is zero itself where that is false
    if (choice && is_zero(choice->no))
        for (const Expr& part : conjuncts_of(choice->condition)) masks.push_back(part);
    if (reader.op.iteration.defined() && fill.op.iteration.defined()) {
        const Expr common = index_variable("iteration", 0);
        const OfIteration read = of_iteration(reader, asked, common), filled = of_iteration(fill, asked, common);
        const bool one = read.is_single || filled.is_single;
        if (one && prove(read.iteration == filled.iteration) == false) return true;
        const Expr at_fill = where_equal(read.condition, read.is_single ? read.iteration : common, filled.iteration);
        if (prove(at_fill) == true) return true;
        const Expr known = read.is_single ? read.iteration : filled.iteration;
        auto in_both = [&](const Expr& e) { return one ? simplify(substitute(e, {{common, known}})) : e; };
        parts = {in_both(read.condition), at_fill};
        for (Expr& own : masks) own = in_both(of_iteration(fill, own, common).condition);
    }
    const Substitution element = to_reader(fill.op, store, load);
    for (size_t own = 0; own < masks.size(); ++own) {
        const Expr of_reader = simplify(substitute(masks[own], element));
        auto tells = [&](const Expr& part) {
            return follows_from(part, of_reader) || follows_from(part, with_uniform_parts(reader.op, of_reader)) ||
                   follows_from_all(part, {of_reader});
        };
        if (!std::ranges::any_of(parts, tells)) continue;
        if (own < relied_on) relied.insert(own);
        return true;
    }
    return false;
}

TileOp with_uniform_masks(const TileOp& op) {
    TileOp result = op;
    result.mask = with_uniform_parts(op, op.mask);
    if (auto update = std::get_if<UpdateOp>(&result.action); update && update->readers_mask.defined())
        update->readers_mask = with_uniform_parts(op, update->readers_mask);
    return result;
}

Expr zero_of(Type type) { return is_float(type) ? constant(type, 0.0) : constant(type, int64_t{0}); }

}  // namespace tw::codegen
