// Names that passes give apart, to the same digit of a thread's index for instance, are one name once the values are
// known to be equal.
#include <map>
#include <optional>

#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

/// What a variable is another name for, if all lets of it say the same.
using Aliases = std::map<const ExprNode*, std::optional<Expr>>;

Aliases aliases_in(const ThreadStmt& root) {
    Aliases aliases;
    visit(root, [&](const ThreadStmt& stmt) {
        if (auto loop = stmt.as<ThreadLoop>()) aliases[loop->variable.id()] = {};  // in another role, say
        auto let = stmt.as<ThreadLet>();
        if (!let) return;
        bool names = let->value.as<Variable>() && let->value.type() == let->variable.type();
        auto [known, is_new] =
            aliases.try_emplace(let->variable.id(), names ? std::optional(let->value) : std::nullopt);
        if (!is_new && known->second && !known->second->same(let->value)) known->second = {};
    });
    return aliases;
}

}  // namespace

ThreadKernel drop_aliases(const ThreadKernel& kernel) {
    const Aliases aliases = aliases_in(kernel.body);
    auto meant = [&](Expr variable) {
        for (auto found = aliases.find(variable.id()); found != aliases.end() && found->second;
             found = aliases.find(variable.id()))
            variable = *found->second;
        return variable;
    };
    ThreadKernel result = kernel;
    result.body = transform(kernel.body, [&](const ThreadStmt& stmt) -> ThreadStmt {
        auto let = stmt.as<ThreadLet>();
        if (let && !meant(let->variable).same(let->variable)) return make_thread(ThreadBlock{});
        ThreadStmt mapped = map_expressions(stmt, [&](const Expr& root) {
            return transform(root, [&](const Expr& expr) {
                if (!expr.as<Variable>()) return Expr();
                Expr variable = meant(expr);
                return variable.same(expr) ? Expr() : variable;
            });
        });
        return mapped.as<ThreadBlock>() ? block_of({mapped}) : mapped;
    });
    return result;
}

}  // namespace tw::codegen
