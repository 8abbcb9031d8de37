#include <algorithm>
#include <set>

#include "codegen/barriers/conflict_question.h"
#include "dsl/evaluate.h"

namespace tw::codegen {

std::set<int> threads_that_run(const Side& side, int threads) {
    SlotMap slots;
    int slot = slots.slot(side.thread);
    std::vector<CompiledExpr> conditions;
    for (const Expr& condition : side.conditions)
        if (only_over(condition, {side.own[0]}))
            conditions.emplace_back(condition, slots, [](const ExprNode&) { return nullptr; });
    std::vector<Register> values(slots.size());
    std::set<int> running;
    for (int thread = 0; thread < threads; ++thread) {
        values[slot].integer = thread;
        bool runs = std::all_of(conditions.begin(), conditions.end(),
                                [&](const CompiledExpr& condition) { return condition.run_integer(values) != 0; });
        if (runs) running.insert(thread);
    }
    return running;
}

bool same_thread_by_conditions(const ConflictQuestion& question) {
    std::set<int> a = threads_that_run(question.a, question.threads);
    if (a.size() > 1) return false;
    std::set<int> b = threads_that_run(question.b, question.threads);
    return a.empty() || b.empty() || a == b;
}

}  // namespace tw::codegen
