#include "codegen/mapping/remove_unit_loops.h"

#include <algorithm>

#include "dsl/simplify.h"

namespace tw::codegen {

namespace {

/// `zeros`: the variables of dropped loops around. Segments of a loop that was cut have their loops inside in common,
/// and not always the same extents. Roles meet in pipelined loops, and boxes arrive in them, also where they have one
/// iteration.
Stmt without_single(const Stmt& stmt, bool keeps_pipelines, const Substitution& zeros) {
    auto at_zero = [&](const Expr& e) { return zeros.empty() ? e : simplify(substitute(e, zeros)); };
    if (const For* loop = stmt.as<For>()) {
        For copy = *loop;
        copy.extent = at_zero(loop->extent);
        bool keep = keeps_pipelines && loop->stages > 1;
        if (is_constant(copy.extent, 1) && !keep) {
            Substitution inside = zeros;
            inside.emplace_back(loop->variable, constant(Type::I64, int64_t{0}));
            return without_single(loop->body, keeps_pipelines, inside);
        }
        copy.body = without_single(loop->body, keeps_pipelines, zeros);
        return make_stmt(std::move(copy));
    }
    if (const Allocate* allocate = stmt.as<Allocate>())
        return make_stmt(Allocate{allocate->buffer, without_single(allocate->body, keeps_pipelines, zeros)});
    const Sequence* block = stmt.as<Sequence>();
    if (!block) return zeros.empty() ? stmt : map_exprs(stmt, at_zero);
    std::vector<Stmt> stmts;
    for (const Stmt& kid : block->stmts) stmts.push_back(without_single(kid, keeps_pipelines, zeros));
    return make_stmt(Sequence{std::move(stmts)});
}

bool asks_for_boxes(const Stmt& stmt) {
    if (const Leaf* leaf = stmt.as<Leaf>())
        return leaf->via.copy == Copy::Tma && leaf->stores[0].buffer->memory == Memory::Shared;
    if (const For* loop = stmt.as<For>()) return asks_for_boxes(loop->body);
    if (const Allocate* allocate = stmt.as<Allocate>()) return asks_for_boxes(allocate->body);
    return std::ranges::any_of(stmt.as<Sequence>()->stmts, asks_for_boxes);
}

bool is_empty(const Stmt& stmt) {
    const Sequence* block = stmt.as<Sequence>();
    return block && block->stmts.empty();
}

Stmt drop(const Stmt& stmt) {
    const Stmt nothing = make_stmt(Sequence{});
    if (const For* loop = stmt.as<For>()) {
        if (is_constant(loop->extent, 0)) return nothing;
        Stmt body = drop(loop->body);
        if (is_empty(body)) return nothing;
        For copy = *loop;
        copy.body = body;
        return make_stmt(std::move(copy));
    }
    if (const Allocate* allocate = stmt.as<Allocate>()) {
        Stmt body = drop(allocate->body);
        return is_empty(body) ? nothing : make_stmt(Allocate{allocate->buffer, body});
    }
    const Sequence* block = stmt.as<Sequence>();
    if (!block) return is_constant(stmt.as<Leaf>()->mask, 0) ? nothing : stmt;
    std::vector<Stmt> stmts;
    for (const Stmt& kid : block->stmts)
        if (Stmt kept = drop(kid); !is_empty(kept)) stmts.push_back(kept);
    return sequence(std::move(stmts));
}

}  // namespace

Nest remove_unit_loops(const Nest& nest) {
    Nest result = nest;
    result.body = drop(without_single(nest.body, !nest.roles.empty() || asks_for_boxes(nest.body), {}));
    return result;
}

}  // namespace tw::codegen
