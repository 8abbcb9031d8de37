#include "verify/branch_as_selects.h"

#include "codegen/thread_ir/thread_walk.h"

namespace tw::fuzz {
namespace {

using namespace codegen;  // NOLINT: the thread IR is all that this file is about

bool reads(const Expr& expr, const codegen::Buffer& buffer) {
    bool found = false;
    visit(expr, [&](const Expr& e) {
        const Load* load = e.as<Load>();
        found = found || (load && load->buffer == buffer);
    });
    return found;
}

bool can_be_kept(const ThreadStmt& stmt, const Expr& condition) {
    if (const auto* store = stmt.as<ThreadStore>())
        return !store->atomic && store->to.buffer->memory == Memory::Registers && !reads(condition, store->to.buffer);
    return stmt.as<ThreadBlock>() || stmt.as<ThreadLoop>() || stmt.as<ThreadLet>() || stmt.as<ThreadComment>();
}

}  // namespace

std::optional<ThreadStmt> branch_as_selects(const ThreadIf& branch) {
    bool possible = true;
    visit(branch.body, [&](const ThreadStmt& stmt) { possible = possible && can_be_kept(stmt, branch.condition); });
    if (!possible) return {};
    return transform(branch.body, [&](const ThreadStmt& stmt) -> ThreadStmt {
        const auto* store = stmt.as<ThreadStore>();
        if (!store) return {};
        const Expr own = make_expr(store->to.buffer->type, Load{store->to.buffer, store->to.indices});
        const Expr value = select_unchecked(branch.condition, store->value, own);
        return make_thread(ThreadStore{store->to, value, {}}, stmt.step());
    });
}

}  // namespace tw::fuzz
