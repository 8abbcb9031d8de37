// What all iterations of an unrolled loop compute is computed in front of it, once. Compilers see as much; so do
// readers then, and the model of time.
#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/evaluation.h"
#include "codegen/thread_passes/own_of_iterations.h"
#include "codegen/thread_passes/thread_passes.h"
#include "dsl/deep.h"

namespace tw::codegen {
namespace {

constexpr int64_t least_in_common = 3;  // operations that the copies save together, for a name

/// Of computing the expression, what it reads aside.
int64_t operations_of(const Expr& expr) {
    std::set<const ExprNode*> seen;
    int64_t operations = 0;
    visit(expr, [&](const Expr& node) {
        if (!is_float(node.type()) || children(node).empty() || node.as<Load>() || !seen.insert(node.id()).second)
            return;
        const Unary* unary = node.as<Unary>();
        operations += unary && unary->op >= UnaryOp::Sqrt ? 2 : 1;
    });
    return operations;
}

/// One unrolled loop: what varies in it, and what has left it.
class CommonParts {
public:
    CommonParts(const ThreadLoop& loop, const std::set<const BufferNode*>& constant, int& counter)
        : loop_(loop), constant_(constant), copies_(*as_constant(loop.extent)), counter_(counter), own_(loop) {
        visit(loop.body, [&](const ThreadStmt& stmt) {
            acts_ = acts_ || stmt.as<Instruction>() || stmt.as<ThreadBarrier>() || stmt.as<ThreadAccess>();
        });
    }

    /// The loop, behind what its iterations have in common; nothing if that is nothing.
    std::vector<ThreadStmt> taken_out(int step) {
        if (acts_) return {};
        step_ = step;
        std::vector<ThreadStmt> body;
        for (const ThreadStmt& stmt : statements(loop_.body)) {
            const ThreadLet* let = stmt.as<ThreadLet>();
            if (let && is_float(let->value.type()) && is_common(let->value)) {
                in_front_.push_back(stmt);
                std::erase_if(own_.variables, [&](const Expr& variable) { return variable.same(let->variable); });
            } else if (let || stmt.as<ThreadStore>()) {
                body.push_back(map_expressions(stmt, [&](const Expr& expr) { return without_common(expr); }));
            } else {
                body.push_back(stmt);
            }
        }
        if (in_front_.empty()) return {};
        ThreadLoop changed = loop_;
        changed.body = block_of(body);
        in_front_.push_back(make_thread(std::move(changed), step));
        return std::move(in_front_);
    }

private:
    bool is_common(const Expr& expr) const { return own_.all_have(expr, constant_); }

    /// Names in the place of parts that are common and evaluated in any case.
    Expr without_common(const Expr& expr) {
        return with_room_for(expr, [&] { return named(expr); });
    }
    Expr named(const Expr& expr) {
        if (!is_float(expr.type()) || expr.as<Load>() || children(expr).empty()) return expr;
        if (operations_of(expr) * (copies_ - 1) >= least_in_common && is_common(expr)) return name_of_part(expr);
        std::vector<Expr> kids = children(expr);
        for (size_t k = 0; k < kids.size(); ++k)
            if (!is_guarded(expr, k)) kids[k] = named(kids[k]);
        return with_children(expr, kids);
    }
    Expr name_of_part(const Expr& expr) {
        for (const ThreadStmt& stmt : in_front_)
            if (equal(stmt.as<ThreadLet>()->value, expr)) return stmt.as<ThreadLet>()->variable;
        const Expr variable =
            make_expr(expr.type(), Variable{.name = fmt::format("common_{}", ++counter_), .min = {}, .max = {}});
        in_front_.push_back(make_thread(ThreadLet{variable, expr}, step_));
        return variable;
    }

    const ThreadLoop& loop_;
    const std::set<const BufferNode*>& constant_;
    const int64_t copies_;
    int& counter_;
    OwnOfIterations own_;
    bool acts_ = false;
    int step_ = -1;
    std::vector<ThreadStmt> in_front_;
};

}  // namespace

ThreadKernel hoist_common(const ThreadKernel& kernel) {
    std::set<const BufferNode*> constant;
    for (size_t k = 0; k < kernel.arguments.size(); ++k)
        if (!kernel.written[k]) constant.insert(kernel.arguments[k].get());
    for (const auto& [out, in] : kernel.aliases) constant.erase(in.get());
    int counter = 0;
    ThreadKernel result = kernel;
    result.body = transform(kernel.body, [&](const ThreadStmt& stmt) -> ThreadStmt {
        if (stmt.as<ThreadBlock>()) return block_of({stmt});
        const ThreadLoop* loop = stmt.as<ThreadLoop>();
        if (!loop || !loop->unroll || loop->ends_at > 0 || as_constant(loop->extent).value_or(0) < 2) return {};
        const std::vector<ThreadStmt> stmts = CommonParts(*loop, constant, counter).taken_out(stmt.step());
        return stmts.empty() ? ThreadStmt() : block_of(stmts);
    });
    return result;
}

}  // namespace tw::codegen
