// Divisions of many elements by one number: what belongs to the divisor alone is computed once.
#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "codegen/access/access.h"
#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"

namespace tw::codegen {
namespace {

constexpr int64_t many_dividends = 4;

/// What an iteration of an unrolled loop has of its own.
struct OwnOfIterations {
    std::vector<Expr> variables;
    std::set<const BufferNode*> written;

    explicit OwnOfIterations(const ThreadLoop& loop) {
        variables.push_back(loop.variable);
        visit(loop.body, [&](const ThreadStmt& stmt) {
            if (const ThreadLoop* inner = stmt.as<ThreadLoop>()) variables.push_back(inner->variable);
            if (const ThreadLet* let = stmt.as<ThreadLet>()) variables.push_back(let->variable);
            if (const ThreadDeclare* declare = stmt.as<ThreadDeclare>()) written.insert(declare->buffer.get());
            for (const MemoryAccess& access : memory_accesses(stmt))
                if (access.writes) written.insert(access.place.buffer.get());
        });
    }

    /// Whether all iterations have the same value of it, and registers hold what it reads.
    bool all_have(const Expr& expr) const {
        bool common = true;
        visit(expr, [&](const Expr& node) {
            const Load* load = node.as<Load>();
            common = common && !node.as<Exchange>() &&
                     (!load || (load->buffer->memory == Memory::Registers && !written.contains(load->buffer.get())));
        });
        return common && std::ranges::none_of(variables, [&](const Expr& each) { return contains(expr, each); });
    }
};

}  // namespace

ThreadKernel share_divisors(const ThreadKernel& kernel) {
    std::set<std::string> shared;
    ThreadKernel result = kernel;
    result.body = transform(kernel.body, [&](const ThreadStmt& stmt) -> ThreadStmt {
        const ThreadLoop* loop = stmt.as<ThreadLoop>();
        if (!loop || !loop->unroll || as_constant(loop->extent).value_or(0) < many_dividends) return {};
        const OwnOfIterations own(*loop);
        ThreadLoop changed = *loop;
        changed.body = map_all_expressions(loop->body, [&](const Expr& root) {
            return transform(root, [&](const Expr& e) -> Expr {
                const Binary* quotient = e.type() == Type::F32 ? e.as<Binary>() : nullptr;
                if (!quotient || quotient->op != BinaryOp::Div || quotient->b.as<FloatConstant>()) return {};
                if (!own.all_have(quotient->b) || own.all_have(quotient->a)) return {};
                shared.insert(to_string(quotient->b));
                return make_expr(f32, Binary{BinaryOp::DivShared, quotient->a, quotient->b});
            });
        });
        return make_thread(std::move(changed), stmt.step());
    });
    for (const std::string& divisor : shared)
        result.notes.push_back(fmt::format("divided by {}: its reciprocal is computed once, and corrected", divisor));
    return result;
}

}  // namespace tw::codegen
