#include "codegen/thread_passes/hoist_conditions.h"

#include <algorithm>

#include "codegen/thread_ir/thread_walk.h"

namespace tw::codegen {
namespace {

void conjuncts(const Expr& condition, std::vector<Expr>& found) {
    auto binary = condition.as<Binary>();
    if (!binary || binary->op != BinaryOp::And) return found.push_back(condition);
    conjuncts(binary->a, found);
    conjuncts(binary->b, found);
}

/// Whether an element that the loop writes may be read in it: then it needs barriers, which conditions must not
/// enclose.
bool exchanges(const ThreadStmt& loop, const ThreadKernel& kernel) {
    std::vector<MemoryAccess> all;
    visit(loop, [&](const ThreadStmt& stmt) {
        for (const MemoryAccess& access : memory_accesses(stmt))
            if (access.place.buffer->memory != Memory::Registers) all.push_back(access);
    });
    return std::any_of(all.begin(), all.end(), [&](const MemoryAccess& a) {
        return a.writes && std::any_of(all.begin(), all.end(), [&](const MemoryAccess& b) {
                   return !b.writes && array_of(a.place.buffer, kernel) == array_of(b.place.buffer, kernel);
               });
    });
}

/// for i {if (a && b(i)) s}  ->  if (a) for i {if (b(i)) s}
ThreadStmt condition_out_of(const ThreadStmt& stmt, const ThreadLoop& loop, const ThreadKernel& kernel) {
    auto body = statements(loop.body);
    auto branch = body.size() == 1 ? body[0].as<ThreadIf>() : nullptr;
    if (!branch || exchanges(stmt, kernel)) return {};
    std::vector<Expr> all, outside, inside;
    conjuncts(branch->condition, all);
    for (const Expr& condition : all)
        (contains(condition, loop.variable) || reads_memory(condition) ? inside : outside).push_back(condition);
    if (outside.empty()) return {};
    ThreadStmt rest =
        inside.empty() ? branch->body : make_thread(ThreadIf{all_of(inside), branch->body}, body[0].step());
    return make_thread(ThreadIf{all_of(outside), with_children(stmt, {rest})}, body[0].step());
}

/// if (a) if (b) s  ->  if (a && b) s
ThreadStmt joined_conditions(const ThreadStmt& stmt, const ThreadIf& branch) {
    auto body = statements(branch.body);
    auto inner = body.size() == 1 ? body[0].as<ThreadIf>() : nullptr;
    if (!inner) return {};
    return make_thread(ThreadIf{binary(BinaryOp::And, branch.condition, inner->condition), inner->body}, stmt.step());
}

}  // namespace

ThreadStmt hoist_conditions(const ThreadKernel& kernel) {
    return transform(kernel.body, [&](const ThreadStmt& stmt) -> ThreadStmt {
        if (auto loop = stmt.as<ThreadLoop>()) return condition_out_of(stmt, *loop, kernel);
        if (auto branch = stmt.as<ThreadIf>()) return joined_conditions(stmt, *branch);
        return {};
    });
}

}  // namespace tw::codegen
