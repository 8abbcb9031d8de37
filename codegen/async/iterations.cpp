#include "codegen/async/iterations.h"

#include <algorithm>

#include "dsl/simplify.h"

namespace tw::codegen {

Expr in_iteration(const TileLoop& loop, const Expr& expr, const Expr& iteration) {
    return simplify(substitute(expr, {{loop.variable, iteration}}));
}

Expr iteration_exists(const TileLoop& loop, const Expr& iteration) {
    Expr condition = simplify(iteration < cast_unchecked(Type::I64, loop.extent));
    return iteration.same(loop.variable) || prove(condition) == true ? all_of({}) : condition;
}

bool equally_long(const TileKernel& kernel, const std::vector<TileLoop>& loops) {
    std::vector<Expr> known;  // of the time that it is reached
    if (kernel.persistent)
        for (const GridCoordinate& coordinate : kernel.grid_coordinates) known.push_back(coordinate.variable);
    for (const TileLoop& loop : loops) {
        bool by_data = false;
        visit(loop.extent, [&](const Expr& e) { by_data = by_data || e.as<Load>(); });
        auto decides = [&](const Expr& variable) { return contains(loop.extent, variable); };
        bool around = &loop != &loops[0];  // the outermost is reached once
        if (around && (by_data || std::ranges::any_of(known, decides))) return false;
        known.push_back(loop.variable);
    }
    return true;
}

bool is_resident(const TileKernel& kernel, const TileLoop& around, const TileOp& copy) {
    if (!around.is_block || !kernel.persistent || copy.role == 0 || kernel.cluster > 1) return false;
    return !mentions(copy, around.variable) &&
           std::ranges::none_of(kernel.grid_coordinates,
                                [&](const GridCoordinate& coordinate) { return mentions(copy, coordinate.variable); });
}

}  // namespace tw::codegen
