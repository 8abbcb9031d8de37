#include "codegen/to_threads/op_tile.h"

#include <algorithm>

#include "dsl/simplify.h"

namespace tw::codegen {

bool OpTile::has_inner_conditions() const {
    return std::any_of(conditions.begin(), conditions.end(), [&](const Expr& condition) {
        return std::any_of(tile.begin(), tile.end(),
                           [&](const OpLoop& loop) { return contains(condition, loop.variable); });
    });
}

void OpTile::replace(const Expr& variable, const Expr& value) {
    auto replaced = [&](const Expr& e) { return simplify(substitute(e, {{variable, value}})); };
    for (ThreadStore& store : stores) {
        for (Expr& index : store.to.indices) index = replaced(index);
        store.value = replaced(store.value);
    }
    for (Expr& condition : conditions) condition = replaced(condition);
}

}  // namespace tw::codegen
