// Divisions of many elements by one number: what belongs to the divisor alone is computed once.
#include <set>

#include <fmt/format.h>

#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/own_of_iterations.h"
#include "codegen/thread_passes/thread_passes.h"

namespace tw::codegen {
namespace {

constexpr int64_t many_dividends = 4;
constexpr int64_t most_divisors = 16;  // whose reciprocals a thread keeps at the same time

}  // namespace

ThreadKernel share_divisors(const ThreadKernel& kernel) {
    std::set<std::string> shared;
    ThreadKernel result = kernel;
    result.body = transform(kernel.body, [&](const ThreadStmt& stmt) -> ThreadStmt {
        const ThreadLoop* loop = stmt.as<ThreadLoop>();
        if (!loop || !loop->unroll || as_constant(loop->extent).value_or(0) < many_dividends) return {};
        const OwnOfIterations own(*loop);
        bool found = false;
        ThreadLoop changed = *loop;
        changed.body = map_all_expressions(loop->body, [&](const Expr& root) {
            return transform(root, [&](const Expr& e) -> Expr {
                const Binary* quotient = e.type() == Type::F32 ? e.as<Binary>() : nullptr;
                if (!quotient || quotient->op != BinaryOp::Div || quotient->b.as<FloatConstant>()) return {};
                const int64_t divisors = own.values_all_have(quotient->b);
                if (divisors == 0 || divisors > most_divisors) return {};
                if (own.values_all_have(quotient->a) != 0) return {};
                shared.insert(to_string(quotient->b));
                found = true;
                return make_expr(f32, Binary{BinaryOp::DivShared, quotient->a, quotient->b});
            });
        });
        return found ? make_thread(std::move(changed), stmt.step()) : ThreadStmt();
    });
    for (const std::string& divisor : shared)
        result.notes.push_back(fmt::format("divided by {}: its reciprocal is computed once, and corrected", divisor));
    return result;
}

}  // namespace tw::codegen
