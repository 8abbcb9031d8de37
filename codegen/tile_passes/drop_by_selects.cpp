#include "codegen/tile_passes/drop_by_selects.h"

#include <algorithm>

#include "codegen/access/conditions.h"
#include "codegen/tile_passes/compare_masks.h"
#include "dsl/signs.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

constexpr int most_makers = 4;  // one made of the other

/// Whether the condition reads an element of an argument that may be none where the part does not hold.
bool reads_beyond(const Expr& condition, const Expr& part) {
    const std::vector<Expr> variables = variables_of(part);
    bool beyond = false;
    visit(condition, [&](const Expr& e) {
        const Load* load = e.as<Load>();
        if (!load || load->buffer->memory != Memory::Global) return;
        for (const Expr& variable : variables) beyond = beyond || contains(e, variable);
    });
    return beyond;
}

/// The value where the part does not hold, with what registers hold written out, and what selects take there.
Expr value_without(const Expr& value, const Expr& part, const std::vector<Expr>& held, const MakerOf& maker_of,
                   int makers = 0) {
    auto fails = [&](const Expr& condition) {  // with what is held, it would tell that the part does
        for (const Expr& own : conjuncts_of(condition)) {
            if (makers == 0 && reads_beyond(own, part)) return false;  // what fails behind it comes too late
            std::vector<Expr> known = held;
            known.push_back(own);
            if (follows_from_all(part, known)) return true;
        }
        return false;
    };
    return transform(value, [&](const Expr& e) -> Expr {
        if (const Select* select = e.as<Select>()) return fails(select->condition) ? select->no : Expr();
        const Load* load = e.as<Load>();
        const TileOp* maker = load && makers < most_makers ? maker_of(*load) : nullptr;
        if (!maker) return {};
        const StoreTo& store = maker->stores[0];
        const Expr made = substitute(store.value, to_reader(*maker, store, *load));
        return cast_unchecked(e.type(), value_without(made, part, held, maker_of, makers + 1));
    });
}

/// Whether nothing of a term is left in the value, which is then known, and may be computed, where there is no term.
bool is_free_of_terms(const Expr& value, const Expr& part, const IsStored& is_stored, const Expr& accumulator = {}) {
    const std::vector<Expr> variables = variables_of(part);
    bool is_free = true;
    visit(value, [&](const Expr& e) {
        const Load* load = e.as<Load>();
        if (!load || (accumulator.defined() && equal(e, accumulator))) return;
        is_free = is_free && is_stored(*load, part);
        for (const Expr& variable : variables) is_free = is_free && !contains(e, variable);
    });
    return is_free;
}

}  // namespace

bool counts_nothing(const TileOp& op, const Expr& part, const std::vector<Expr>& held, const MakerOf& maker_of,
                    const IsStored& is_stored) {
    const StoreTo& store = op.stores[0];
    const Expr accumulator = make_expr(store.buffer->type, Load{store.buffer, store.indices});
    const Expr value = value_without(store.value, part, held, maker_of);
    return is_free_of_terms(value, part, is_stored, accumulator) && leaves_as_it_is(value, accumulator);
}

bool is_zero_without(const TileOp& op, const Expr& part, const std::vector<Expr>& held, const MakerOf& maker_of,
                     const IsStored& is_stored) {
    const Expr value = value_without(op.stores[0].value, part, held, maker_of);
    return is_free_of_terms(value, part, is_stored) && vanishes(simplify(value));
}

}  // namespace tw::codegen
