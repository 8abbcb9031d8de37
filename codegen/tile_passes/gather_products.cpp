#include <algorithm>

#include "codegen/tile_passes/tile_passes.h"

namespace tw::codegen {
namespace {

constexpr int64_t most_iterations = 16;
constexpr int64_t most_products = 64;  // of a group over several terms, which are unrolled

void flatten(const TileStmt& stmt, std::vector<TileStmt>& list) {
    const TileBlock* block = stmt.as<TileBlock>();
    if (!block) return list.push_back(stmt);
    for (const TileStmt& kid : block->stmts) flatten(kid, list);
}

bool is_same_place(const Access& a, const Access& b) {
    return a.buffer == b.buffer && std::ranges::equal(a.indices, b.indices, equal);
}

/// The ops of one group of products, all of the same sums, from the reads of operands to the wait and what it ends;
/// empty if there is more.
std::vector<TileOp> group_in(const TileStmt& body) {
    std::vector<TileStmt> list;
    flatten(body, list);
    std::vector<TileOp> ops;
    const Access* sums = nullptr;
    int groups = 0;
    for (const TileStmt& stmt : list) {
        const TileOp* op = stmt.as<TileOp>();
        const bool belongs = op && (op->is<AccessOp>() || lone_instruction<WgmmaFenceOperand>(*op) ||
                                    lone_instruction<WgmmaFence>(*op) || lone_instruction<Wgmma>(*op) ||
                                    lone_instruction<WgmmaCommit>(*op) || lone_instruction<WgmmaWait>(*op));
        if (!belongs) return {};
        if (const Wgmma* product = lone_instruction<Wgmma>(*op)) {
            if (sums && !is_same_place(*sums, product->sums.place)) return {};
            sums = &product->sums.place;
        }
        groups += lone_instruction<WgmmaCommit>(*op) != nullptr;
        ops.push_back(*op);
    }
    return sums && groups == 1 ? ops : std::vector<TileOp>();
}

/// Whether the n-th iteration has the n-th part of the sums.
bool has_own_sums(const std::vector<TileOp>& group, const Expr& variable) {
    return std::ranges::any_of(group, [&](const TileOp& op) {
        const Wgmma* product = lone_instruction<Wgmma>(op);
        return product && std::ranges::any_of(product->sums.place.indices,
                                              [&](const Expr& index) { return index.same(variable); });
    });
}

/// Whether iterations add to the same sums, and few enough to be a group: their operands are all there.
bool has_the_same_sums(const std::vector<TileOp>& group, const TileLoop& loop) {
    return std::ranges::all_of(group, [&](const TileOp& op) {
        if (op.is<AccessOp>()) return true;
        const Wgmma* product = lone_instruction<Wgmma>(op);
        if (!product) return !mentions(op, loop.variable);
        if (!mentions(op, loop.variable)) return false;
        int64_t products = require_constant(loop.extent);
        for (const OpLoop& inner : op.loops) products *= as_constant(inner.extent).value_or(most_products + 1);
        return products <= most_products && std::ranges::none_of(product->sums.place.indices, [&](const Expr& index) {
                   return contains(index, loop.variable);
               });
    });
}

/// The loop in each of the ops that differ from iteration to iteration, inside of those over terms, or around all if it
/// is one of those.
TileStmt gathered(const TileLoop& loop, const std::vector<TileOp>& group) {
    TileBlock block;
    for (TileOp op : group) {
        if (mentions(op, loop.variable)) {
            OpLoop own{.variable = loop.variable, .extent = loop.extent, .reduces = loop.reduces};
            if (!op.is<AccessOp>()) own.execution = Execution::Unroll;
            const auto inner =
                std::ranges::find_if(op.loops, [&](const OpLoop& l) { return own.reduces || !l.reduces; });
            op.loops.insert(inner, own);
        }
        block.stmts.push_back(make_tile(std::move(op)));
    }
    return make_tile(std::move(block));
}

TileStmt rewrite(const TileStmt& stmt) {
    const TileStmt inside = map_children(stmt, rewrite);
    const TileLoop* loop = inside.as<TileLoop>();
    if (!loop || loop->stages > 1 || loop->is_block) return inside;
    const auto extent = as_constant(loop->extent);
    if (!extent || *extent < 1 || *extent > most_iterations) return inside;
    const std::vector<TileOp> group = group_in(loop->body);
    const bool together =
        loop->reduces ? !group.empty() && has_the_same_sums(group, *loop) : has_own_sums(group, loop->variable);
    return together ? gathered(*loop, group) : inside;
}

}  // namespace

TileKernel gather_products(const TileKernel& kernel) {
    TileKernel result = kernel;
    result.body = rewrite(kernel.body);
    return result;
}

}  // namespace tw::codegen
