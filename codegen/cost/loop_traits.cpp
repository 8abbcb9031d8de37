#include "codegen/cost/loop_traits.h"

#include <algorithm>
#include <vector>

#include "codegen/thread_ir/thread_walk.h"

namespace tw::codegen {

LoopTraits loop_traits(const ThreadLoop& loop) {
    LoopTraits traits;
    std::vector<Expr> varying{loop.variable};
    const auto varies = [&](const Expr& value) {
        return std::ranges::any_of(varying, [&](const Expr& each) { return contains(value, each); });
    };
    visit(loop.body, [&](const ThreadStmt& stmt) {
        if (auto let = stmt.as<ThreadLet>(); let && varies(let->value)) varying.push_back(let->variable);
        if (auto branch = stmt.as<ThreadIf>()) traits.has_masks = traits.has_masks || varies(branch->condition);
        if (auto inner = stmt.as<ThreadLoop>(); inner && !inner->unroll) traits.is_innermost = false;
        if (stmt.as<ThreadBarrier>()) traits.meets = true;
        if (stmt.as<Instruction>()) traits.touches_memory = true;
        for (const MemoryAccess& access : memory_accesses(stmt))
            if (const Memory memory = access.place.buffer->memory; memory != Memory::Registers) {
                traits.touches_memory = true;
                traits.touches_global = traits.touches_global || memory == Memory::Global;
            }
    });
    return traits;
}

}  // namespace tw::codegen
