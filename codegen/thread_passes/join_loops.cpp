// Loops that passes make of one, such as those over the parts of a matrix that a thread has, are one again where all
// that is inside counts by both together.
#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

/// The loop if all of its iterations stand side by side.
const ThreadLoop* unrolled(const ThreadStmt& stmt) {
    const ThreadLoop* loop = stmt.as<ThreadLoop>();
    return loop && loop->unroll && loop->ends_at == 0 && as_constant(loop->extent) ? loop : nullptr;
}

bool mentions(const ThreadStmt& root, const Expr& variable) {
    bool found = false;
    visit(root, [&](const ThreadStmt& stmt) {
        for (const Expr& expr : expressions(stmt)) found = found || contains(expr, variable);
    });
    return found;
}

bool divides(const Expr& root, const Expr& variable) {
    bool found = false;
    visit(root, [&](const Expr& e) {
        const Binary* node = e.as<Binary>();
        bool division = node && (node->op == BinaryOp::Div || node->op == BinaryOp::Mod);
        found = found || (division && contains(node->a, variable));
    });
    return found;
}

/// The body by one variable in place of two, outer * extent + inner; undefined where that needs divisions.
ThreadStmt by_one(const ThreadStmt& body, const Expr& outer, const Expr& inner, int64_t extent, const Expr& joined) {
    const Substitution values{{outer, joined / extent}, {inner, joined % extent}};
    bool fits = true;
    ThreadStmt result = map_all_expressions(body, [&](const Expr& expr) {
        if (!contains(expr, outer) && !contains(expr, inner)) return expr;
        Expr changed = simplify(substitute(expr, values));
        fits = fits && !divides(changed, joined);
        return changed;
    });
    return fits ? result : ThreadStmt();
}

ThreadStmt joined(const ThreadStmt& stmt) {
    const ThreadLoop* outer = unrolled(stmt);
    const std::vector<ThreadStmt> inside = outer ? statements(outer->body) : std::vector<ThreadStmt>();
    const ThreadLoop* inner = inside.size() == 1 ? unrolled(inside[0]) : nullptr;
    if (!inner || outer->unroll_by != inner->unroll_by) return {};
    const int64_t extent = require_constant(inner->extent), all = require_constant(outer->extent) * extent;
    if (!mentions(inner->body, outer->variable) || !mentions(inner->body, inner->variable)) return {};
    Expr variable = index_variable("element", 0, all - 1);
    ThreadLoop one = *inner;
    one.variable = variable;
    one.extent = constant(inner->extent.type(), all);
    one.body = by_one(inner->body, outer->variable, inner->variable, extent, variable);
    return one.body.defined() ? make_thread(std::move(one), stmt.step()) : ThreadStmt();
}

}  // namespace

ThreadKernel join_loops(const ThreadKernel& kernel) {
    ThreadKernel result = kernel;
    result.body = transform(kernel.body, joined);
    return result;
}

}  // namespace tw::codegen
