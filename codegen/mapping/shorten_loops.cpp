#include "codegen/mapping/shorten_loops.h"

#include <algorithm>
#include <set>

#include "codegen/access/conditions.h"
#include "codegen/mapping/bindings.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

using Buffers = std::set<const BufferNode*>;

/// Shared memory of which threads sum elements side by side, in unrolled loops: copies fill it to the end of the tile, so
/// that no term needs a mask.
Buffers summed_side_by_side(const Nest& nest) {
    Buffers buffers;
    for (const LeafPath& path : leaf_paths(nest.body)) {
        const bool unrolled = std::ranges::any_of(
            path.loops, [](const For* loop) { return loop->level == Level::Unroll && !loop->reduces; });
        if (path.leaf->kind != Leaf::Kind::Update || !unrolled) continue;
        for (const StoreTo& store : path.leaf->stores)
            visit(store.value, [&](const Expr& e) {
                const Load* load = e.as<Load>();
                if (load && load->buffer->memory == Memory::Shared) buffers.insert(load->buffer.get());
            });
    }
    return buffers;
}

/// How many of the loop's first iterations the masks in its body let through, at most `extent`.
int64_t used_iterations(const Stmt& body, const Expr& variable, int64_t extent, const Buffers& whole) {
    if (const For* loop = body.as<For>()) return used_iterations(loop->body, variable, extent, whole);
    if (const Allocate* allocate = body.as<Allocate>()) return used_iterations(allocate->body, variable, extent, whole);
    int64_t used = 0;
    if (const Sequence* block = body.as<Sequence>()) {
        for (const Stmt& kid : block->stmts) used = std::max(used, used_iterations(kid, variable, extent, whole));
        return used;
    }
    const Leaf& leaf = *body.as<Leaf>();
    used = extent;
    if (leaf.kind == Leaf::Kind::Copy && whole.contains(leaf.stores[0].buffer.get())) return used;
    for (const Expr& part : conjuncts_of(leaf.mask))
        if (auto largest = largest_allowed(part, variable)) used = std::min(used, *largest + 1);
    return std::max<int64_t>(used, 0);
}

For shortened(const For& loop, const Buffers& whole) {
    bool bound = loop.level != Level::Serial && loop.level != Level::Unroll;
    auto extent = as_constant(loop.extent);
    if (bound || !extent) return loop;
    int64_t used = used_iterations(loop.body, loop.variable, *extent, whole);
    if (used == *extent) return loop;
    For result = loop;
    result.extent = constant(Type::I64, used);
    result.variable =
        index_variable(loop.variable.as<Variable>()->name, 0, std::max<int64_t>(used - 1, 0));  // for what bounds prove
    result.body = map_exprs(loop.body, [&](const Expr& e) {
        return simplify(substitute(e, {{loop.variable, result.variable}}));
    });
    return result;
}

Stmt shorten(const Stmt& stmt, const Buffers& whole) {
    if (const For* loop = stmt.as<For>()) {
        For result = shortened(*loop, whole);
        result.body = shorten(result.body, whole);
        return make_stmt(std::move(result));
    }
    if (const Allocate* allocate = stmt.as<Allocate>())
        return make_stmt(Allocate{allocate->buffer, shorten(allocate->body, whole)});
    const Sequence* block = stmt.as<Sequence>();
    if (!block) return stmt;
    std::vector<Stmt> stmts;
    for (const Stmt& kid : block->stmts) stmts.push_back(shorten(kid, whole));
    return make_stmt(Sequence{std::move(stmts)});
}

}  // namespace

Nest shorten_loops(const Nest& nest) {
    Nest result = nest;
    result.body = shorten(nest.body, summed_side_by_side(nest));
    return result;
}

}  // namespace tw::codegen
