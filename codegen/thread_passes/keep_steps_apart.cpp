// Results of matrix units that leave piece by piece, through shared memory: ptxas does the arithmetic of all pieces
// ahead of the first barrier, as nothing keeps it there. So no piece is on its way while the next one is made, and their
// values fill the registers.
#include <algorithm>
#include <set>

#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"

namespace tw::codegen {
namespace {

std::set<const BufferNode*> sums_of_units(const ThreadStmt& root) {
    std::set<const BufferNode*> sums;
    visit(root, [&](const ThreadStmt& stmt) {
        if (const Wgmma* multiply = instruction_of<Wgmma>(stmt)) sums.insert(multiply->sums.place.buffer.get());
    });
    return sums;
}

bool reads_any(const ThreadStmt& root, const std::set<const BufferNode*>& arrays) {
    bool reads = false;
    visit(root, [&](const ThreadStmt& stmt) {
        for (const MemoryAccess& access : memory_accesses(stmt))
            reads = reads || (!access.writes && arrays.count(access.place.buffer.get()) > 0);
    });
    return reads;
}

/// Whether all threads wait for each other in each step.
bool waits(const ThreadLoop& loop) {
    return std::ranges::any_of(statements(loop.body), [](const ThreadStmt& s) { return s.as<ThreadBarrier>(); });
}

}  // namespace

ThreadKernel keep_steps_apart(const ThreadKernel& kernel) {
    const std::set<const BufferNode*> sums = sums_of_units(kernel.body);
    if (sums.empty()) return kernel;
    ThreadKernel result = kernel;
    result.body = transform(kernel.body, [&](const ThreadStmt& stmt) -> ThreadStmt {
        const ThreadLoop* loop = stmt.as<ThreadLoop>();
        if (!loop || !loop->unroll || !waits(*loop) || !reads_any(loop->body, sums)) return {};
        ThreadLoop apart = *loop;
        apart.apart = true;
        return make_thread(std::move(apart), stmt.step());
    });
    return result;
}

}  // namespace tw::codegen
