#include <algorithm>

#include "codegen/early_start.h"
#include "codegen/passes.h"
#include "codegen/shared_struct.h"
#include "codegen/thread_walk.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

bool uses_tensors(const ThreadStmt& root) {
    bool found = false;
    visit(root, [&](const ThreadStmt& stmt) {
        const ThreadCall* call = stmt.as<ThreadCall>();
        found = found || (call && call->primitive.starts_with("tma_"));
        for (const Touch& touch : touches(stmt)) found = found || touch.access.buffer->memory == Memory::Global;
    });
    return found;
}

/// How many statements make the barriers known to all; they need nothing of the kernel before.
size_t end_of_setup(const ThreadKernel& kernel, const std::vector<ThreadStmt>& all) {
    if (std::ranges::none_of(kernel.shared, [](const Buffer& b) { return b->is_barrier; })) return 0;
    for (size_t s = 0; s < all.size() && !uses_tensors(all[s]); ++s) {
        const ThreadCall* call = all[s].as<ThreadCall>();
        if (all[s].as<ThreadBarrier>() || (call && call->primitive == "cluster_wait")) return s + 1;
    }
    return 0;
}

}  // namespace

ThreadKernel start_early(const ThreadKernel& kernel) {
    if (!kernel.starts_early) return kernel;
    std::vector<ThreadStmt> all = statements(kernel.body);
    std::vector<ThreadStmt> early{make_thread(ThreadCall{"wait_for_previous", {}, {}})};
    ThreadStmt next = make_thread(ThreadCall{"start_next", {}, {}});
    Expr blocks = simplify(kernel.grid[0] * kernel.grid[1] * kernel.grid[2]);
    Expr many = simplify(blocks >= fewest_blocks_to_overlap);
    if (overlaps_neighbours(0, bytes_of_shared(kernel.shared)) || is_constant(many, 1))
        early.push_back(next);
    else if (!is_constant(many, 0))
        early.push_back(make_thread(ThreadIf{many, next}));
    all.insert(all.begin() + static_cast<std::ptrdiff_t>(end_of_setup(kernel, all)), early.begin(), early.end());
    ThreadKernel result = kernel;
    result.body = block_of(all);
    return result;
}

}  // namespace tw::codegen
