#include "codegen/drop_single_loops.h"

#include <algorithm>

#include "dsl/simplify.h"

namespace tw::codegen {

namespace {

/// `has_roles`: they meet in pipelined loops, also where these have one iteration.
void collect_single(const Stmt& stmt, bool has_roles, Substitution& zeros) {
    if (const For* loop = stmt.as<For>()) {
        bool keep = has_roles && loop->stages > 1;
        if (is_constant(loop->extent, 1) && !keep) zeros.emplace_back(loop->variable, constant(Type::I64, int64_t{0}));
        return collect_single(loop->body, has_roles, zeros);
    }
    if (const Allocate* allocate = stmt.as<Allocate>()) return collect_single(allocate->body, has_roles, zeros);
    if (const Sequence* block = stmt.as<Sequence>())
        for (const Stmt& kid : block->stmts) collect_single(kid, has_roles, zeros);
}

Stmt without_single(const Stmt& stmt, const Substitution& zeros) {
    auto at_zero = [&](const Expr& e) { return simplify(substitute(e, zeros)); };
    const For* loop = stmt.as<For>();
    auto dropped = [&](const auto& zero) { return zero.first.same(loop->variable); };
    if (loop && std::any_of(zeros.begin(), zeros.end(), dropped)) return without_single(loop->body, zeros);
    if (loop) {
        For copy = *loop;
        copy.extent = at_zero(loop->extent);
        copy.body = without_single(loop->body, zeros);
        return make_stmt(std::move(copy));
    }
    if (const Allocate* allocate = stmt.as<Allocate>())
        return make_stmt(Allocate{allocate->buffer, without_single(allocate->body, zeros)});
    const Sequence* block = stmt.as<Sequence>();
    if (!block) return map_exprs(stmt, at_zero);
    std::vector<Stmt> stmts;
    for (const Stmt& kid : block->stmts) stmts.push_back(without_single(kid, zeros));
    return make_stmt(Sequence{std::move(stmts)});
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

Nest drop_single_loops(const Nest& nest) {
    Substitution zeros;
    collect_single(nest.body, !nest.roles.empty(), zeros);
    Nest result = nest;
    result.body = zeros.empty() ? drop(nest.body) : without_single(nest.body, zeros);
    return zeros.empty() ? result : drop_single_loops(result);  // extents inside may have become 1
}

}  // namespace tw::codegen
