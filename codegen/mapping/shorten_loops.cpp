#include "codegen/mapping/shorten_loops.h"

#include <algorithm>

#include "codegen/access/conditions.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

/// How many of the loop's first iterations the masks in its body let through, at most `extent`.
int64_t used_iterations(const Stmt& body, const Expr& variable, int64_t extent) {
    if (const For* loop = body.as<For>()) return used_iterations(loop->body, variable, extent);
    if (const Allocate* allocate = body.as<Allocate>()) return used_iterations(allocate->body, variable, extent);
    int64_t used = 0;
    if (const Sequence* block = body.as<Sequence>()) {
        for (const Stmt& kid : block->stmts) used = std::max(used, used_iterations(kid, variable, extent));
        return used;
    }
    used = extent;
    for (const Expr& part : conjuncts_of(body.as<Leaf>()->mask))
        if (auto largest = largest_allowed(part, variable)) used = std::min(used, *largest + 1);
    return std::max<int64_t>(used, 0);
}

For shortened(const For& loop) {
    bool bound = loop.level != Level::Serial && loop.level != Level::Unroll;
    auto extent = as_constant(loop.extent);
    if (bound || !extent) return loop;
    int64_t used = used_iterations(loop.body, loop.variable, *extent);
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

Stmt shorten(const Stmt& stmt) {
    if (const For* loop = stmt.as<For>()) {
        For result = shortened(*loop);
        result.body = shorten(result.body);
        return make_stmt(std::move(result));
    }
    if (const Allocate* allocate = stmt.as<Allocate>())
        return make_stmt(Allocate{allocate->buffer, shorten(allocate->body)});
    const Sequence* block = stmt.as<Sequence>();
    if (!block) return stmt;
    std::vector<Stmt> stmts;
    for (const Stmt& kid : block->stmts) stmts.push_back(shorten(kid));
    return make_stmt(Sequence{std::move(stmts)});
}

}  // namespace

Nest shorten_loops(const Nest& nest) {
    Nest result = nest;
    result.body = shorten(nest.body);
    return result;
}

}  // namespace tw::codegen
