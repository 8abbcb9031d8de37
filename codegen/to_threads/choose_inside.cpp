#include "codegen/to_threads/choose_inside.h"

#include <algorithm>

#include "codegen/access/conditions.h"
#include "codegen/thread_ir/thread_walk.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

Expr zero_of(Type type) { return is_float(type) ? constant(type, 0.0) : constant(type, 0); }

bool any_reads_memory(const std::vector<Expr>& conditions) {
    return std::ranges::any_of(conditions, [](const Expr& condition) { return reads_memory(condition); });
}

/// The condition in the first iteration of the loop, if that holds wherever the condition does: of places below an end,
/// which grow along the loop.
std::optional<Expr> at_first(const Expr& condition, const Expr& variable) {
    const Binary* below = condition.as<Binary>();
    if (!below || (below->op != BinaryOp::Less && below->op != BinaryOp::LessEqual) || contains(below->b, variable))
        return {};
    const Substitution first{{variable, constant(variable.type(), 0)}};
    if (prove(simplify(below->a - substitute(below->a, first)) >= 0) != true) return {};
    return simplify(substitute(condition, first));
}

/// The reads of memory in the value, under conditions on no more loops than each depends on; undefined if there is one
/// for which there are none.
class Guarding {
public:
    Guarding(const std::vector<OpLoop>& tile, const std::vector<Expr>& conditions)
        : tile_(tile), conditions_(conditions) {}

    Expr guarded(const Expr& value) {
        if (const Load* load = value.as<Load>(); load && load->buffer->memory != Memory::Registers) {
            const std::optional<Expr> condition = condition_of(value);
            fits = fits && condition;
            return fits ? select_unchecked(*condition, value, zero_of(value.type())) : value;
        }
        if (value.as<Select>()) return value;  // reads on its sides have conditions of their own
        std::vector<Expr> kids = children(value);
        for (Expr& kid : kids) kid = guarded(kid);
        return with_children(value, kids);
    }

    bool fits = true;

private:
    std::optional<Expr> condition_of(const Expr& load) const {
        std::vector<Expr> own;
        for (Expr condition : conditions_) {
            for (const OpLoop& loop : tile_) {
                if (contains(load, loop.variable) || !contains(condition, loop.variable)) continue;
                const std::optional<Expr> first = at_first(condition, loop.variable);
                if (!first) return {};
                condition = *first;
            }
            own.push_back(condition);
        }
        return simplify(all_of(own));
    }

    const std::vector<OpLoop>& tile_;
    const std::vector<Expr>& conditions_;
};

/// Whether each iteration's element is one that the array has: what is left out at an edge may lie outside of it.
bool stays_inside(const Buffer& array, const std::vector<Expr>& indices) {
    for (size_t d = 0; d < array->shape.size(); ++d)
        if (prove(indices[d] >= 0) != true || prove(indices[d] < array->shape[d]) != true) return false;
    return true;
}

bool registers_stay_inside(const ThreadStore& store) {
    bool inside = stays_inside(store.to.buffer, store.to.indices);
    visit(store.value, [&](const Expr& e) {
        const Load* load = e.as<Load>();
        if (load && load->buffer->memory == Memory::Registers)
            inside = inside && stays_inside(load->buffer, load->indices);
    });
    return inside;
}

bool has_choices(const Expr& value) {
    bool found = false;
    visit(value, [&](const Expr& e) { found = found || e.as<Select>(); });
    return found;
}

}  // namespace

void choose_inside(OpTile& tile) {
    std::vector<Expr> inner, outer;
    for (const Expr& condition : tile.conditions) {
        auto depends = [&](const OpLoop& loop) { return contains(condition, loop.variable); };
        (std::ranges::any_of(tile.tile, depends) ? inner : outer).push_back(condition);
    }
    Guarding guarding(tile.tile, inner);
    std::vector<ThreadStore> stores = tile.stores;
    for (ThreadStore& store : stores) {
        if (has_choices(store.value) || !registers_stay_inside(store)) return;
        const Expr before = make_expr(store.to.buffer->type, Load{store.to.buffer, store.to.indices});
        store.value = select_unchecked(all_of(inner), guarding.guarded(store.value), before);
    }
    if (!guarding.fits || any_reads_memory(inner)) return;
    tile.stores = std::move(stores);
    tile.conditions = std::move(outer);
    tile.reads_ahead = true;
}

}  // namespace tw::codegen
