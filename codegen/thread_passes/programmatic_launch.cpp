#include <algorithm>
#include <cmath>

#include "codegen/access/shared_struct.h"
#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

/// Some six blocks on each multiprocessor of a large GPU: fewer would be placed unevenly among those that still run.
constexpr int64_t blocks_of_many = 768;
/// Half of the shared memory that Hopper has: blocks with more leave no room for a second one on a multiprocessor.
constexpr int64_t shared_bytes_of_lone_blocks = 228 * 1024 / 2;
/// What a block fetches as boxes in some 30 us. In longer kernels an early start saves little, and costs up to a
/// quarter where the next kernel has fewer blocks than multiprocessors, which it then takes as they come.
constexpr double most_bytes_of_short_blocks = 2 << 20;

/// Bytes that one block fetches as boxes, at most; infinite where that is not known.
double bytes_of_boxes(const ThreadStmt& stmt, KnownBounds& bounds) {
    if (auto expect = instruction_of<MbarrierExpectTx>(stmt))
        return static_cast<double>(bounds.of(expect->bytes).max.value_or(0));
    double times = 1, sum = 0;
    if (const ThreadLet* let = stmt.as<ThreadLet>()) bounds.define(*let);
    if (const ThreadLoop* loop = stmt.as<ThreadLoop>()) {
        auto most = bounds.of(loop->extent).max;
        times = most ? static_cast<double>(*most) : INFINITY;
        bounds.enter_loop(*loop);
    }
    for (const ThreadStmt& child : children(stmt)) sum += bytes_of_boxes(child, bounds);
    return sum > 0 ? sum * times : 0;
}

/// How many blocks a kernel must have so that its start may overlap the end of the one before, and its end the start of
/// the next.
int64_t fewest_blocks_to_overlap(const ThreadKernel& kernel) {
    KnownBounds bounds(kernel);
    bool lone = bytes_of_shared(kernel.shared, kernel.unions) > shared_bytes_of_lone_blocks;
    return lone && bytes_of_boxes(kernel.body, bounds) <= most_bytes_of_short_blocks ? 0 : blocks_of_many;
}

bool uses_tensors(const ThreadStmt& root) {
    bool found = false;
    visit(root, [&](const ThreadStmt& stmt) {
        found = found || instruction_of<TmaLoad>(stmt) || instruction_of<TmaStore>(stmt);
        for (const MemoryAccess& access : memory_accesses(stmt))
            found = found || access.place.buffer->memory == Memory::Global;
    });
    return found;
}

/// How many statements make the barriers known to all; they need nothing of the kernel before.
size_t end_of_setup(const ThreadKernel& kernel, const std::vector<ThreadStmt>& all) {
    if (std::ranges::none_of(kernel.shared, [](const Buffer& b) { return b->is_barrier; })) return 0;
    for (size_t s = 0; s < all.size() && !uses_tensors(all[s]); ++s) {
        if (all[s].as<ThreadBarrier>() || instruction_of<ClusterWait>(all[s])) return s + 1;
    }
    return 0;
}

}  // namespace

ThreadKernel programmatic_launch(const ThreadKernel& kernel) {
    if (!kernel.starts_early) return kernel;
    std::vector<ThreadStmt> all = statements(kernel.body);
    std::vector<ThreadStmt> early{make_thread(Instruction(GriddepcontrolWait{}))};
    ThreadStmt next = make_thread(Instruction(GriddepcontrolLaunchDependents{}));
    Expr blocks = simplify(kernel.grid[0] * kernel.grid[1] * kernel.grid[2]);
    ThreadKernel result = kernel;
    result.overlaps_from = fewest_blocks_to_overlap(kernel);
    Expr many = simplify(blocks >= result.overlaps_from);
    if (is_constant(many, 1))
        early.push_back(next);
    else if (!is_constant(many, 0))
        early.push_back(make_thread(ThreadIf{many, next}));
    all.insert(all.begin() + static_cast<std::ptrdiff_t>(end_of_setup(kernel, all)), early.begin(), early.end());
    result.body = block_of(all);
    return result;
}

}  // namespace tw::codegen
