#include <algorithm>

#include <fmt/format.h>

#include "codegen/tile_passes/tile_passes.h"
#include "dsl/tensor.h"

namespace tw::codegen {
namespace {

bool writes(const TileOp& op, const Buffer& buffer) {
    return std::ranges::any_of(op.stores, [&](const StoreTo& store) { return store.buffer == buffer; });
}

/// The update in the statement whose lanes have parts of what the op has set to the identity, or nullptr.
const TileOp* shared_update(const TileStmt& stmt, const TileOp& init) {
    const TileOp* found = nullptr;
    visit(stmt, [&](const TileStmt& part) {
        const TileOp* op = part.as<TileOp>();
        const UpdateOp* update = op ? op->as<UpdateOp>() : nullptr;
        if (update && !update->sharing.empty() && writes(*op, init.stores[0].buffer)) found = op;
    });
    return found;
}

/// Combines along one coordinate, in all of the others that the update stands in or that tell the places apart.
TileOp combine(const TileOp& init, const TileOp& update, const ThreadCoordinate& along,
               const std::vector<ThreadCoordinate>& coordinates) {
    const UpdateOp& action = *update.as<UpdateOp>();
    const ReducerNode& reducer = *action.reducer;
    TileOp op = init;
    op.action = CombineOp{{along.variable, along.extent, reducer.left, reducer.right}};
    op.step = update.step;
    for (size_t c = 0; c < op.stores.size(); ++c) op.stores[c].value = reducer.combined[c];
    op.threads.clear();
    for (const ThreadCoordinate& coordinate : coordinates) {
        auto is = [&](const ThreadCoordinate& other) { return other.variable.same(coordinate.variable); };
        if (is(along) || std::ranges::any_of(action.around, is) || mentions(init, coordinate.variable))
            op.threads.push_back(coordinate);
    }
    std::ranges::stable_sort(op.threads, [](const auto& a, const auto& b) { return a.stride > b.stride; });
    return op;
}

/// Adds a note for each reduction to the kernel's.
TileStmt with_combines(const TileStmt& stmt, TileKernel& kernel) {
    TileStmt inside = map_children(stmt, [&](const TileStmt& kid) { return with_combines(kid, kernel); });
    const TileBlock* block = inside.as<TileBlock>();
    if (!block) return inside;
    std::vector<TileStmt> stmts = block->stmts;
    for (const TileStmt& kid : block->stmts) {
        const TileOp* init = kid.as<TileOp>();
        if (!init || !init->is<InitOp>()) continue;
        auto last = std::find_if(stmts.rbegin(), stmts.rend(),
                                 [&](const TileStmt& other) { return shared_update(other, *init); });
        if (last == stmts.rend()) continue;
        const TileOp& update = *shared_update(*last, *init);
        std::vector<TileStmt> combines;
        std::vector<ThreadCoordinate> sharing = update.as<UpdateOp>()->sharing;
        std::ranges::sort(sharing, {}, &ThreadCoordinate::stride);  // lanes, then warps, which meet in shared memory
        for (const ThreadCoordinate& along : sharing)
            combines.push_back(make_tile(combine(*init, update, along, kernel.thread_coordinates)));
        kernel.notes.push_back(
            fmt::format("{}: lanes combine their parts of it, so that terms are added in another order", init->name));
        stmts.insert(last.base(), combines.begin(), combines.end());
    }
    return make_tile(TileBlock{std::move(stmts)});
}

}  // namespace

TileKernel combine_lanes(const TileKernel& kernel) {
    TileKernel result = kernel;
    result.body = with_combines(kernel.body, result);
    return result;
}

}  // namespace tw::codegen
