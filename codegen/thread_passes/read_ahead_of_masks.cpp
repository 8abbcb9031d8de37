#include <algorithm>

#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"

namespace tw::codegen {
namespace {

bool stays_inside(const Access& place, int width) {
    const std::vector<Expr>& shape = place.buffer->shape;
    for (size_t d = 0; d < shape.size(); ++d) {
        if (reads_memory(place.indices[d])) return false;
        const int64_t wide = d + 1 == shape.size() ? width : 1, extent = require_constant(shape[d]);
        const Interval index = bounds_of(place.indices[d]);
        if (!index.min || *index.min < 0 || !index.max || *index.max + wide > extent) return false;
    }
    return true;
}

/// Arrays that the kernel reads: a later read must not come before the store.
std::vector<const BufferNode*> arrays_read(const ThreadKernel& kernel) {
    std::vector<const BufferNode*> arrays;
    visit(kernel.body, [&](const ThreadStmt& stmt) {
        for (const MemoryAccess& access : memory_accesses(stmt))
            if (!access.writes) arrays.push_back(array_of(access.place.buffer, kernel));
    });
    return arrays;
}

}  // namespace

ThreadKernel read_ahead_of_masks(const ThreadKernel& kernel) {
    constexpr int64_t whole = 16;  // bytes
    const std::vector<const BufferNode*> read = arrays_read(kernel);
    ThreadKernel result = kernel;
    result.body = transform(kernel.body, [&](const ThreadStmt& stmt) -> ThreadStmt {
        const auto branch = stmt.as<ThreadIf>();
        const std::vector<ThreadStmt> body = branch ? statements(branch->body) : std::vector<ThreadStmt>();
        const auto wide = body.size() == 1 ? body[0].as<ThreadWide>() : nullptr;
        if (!wide || wide->from.buffer->memory != Memory::Shared || wide->to.buffer->memory != Memory::Global)
            return {};
        if (wide->width * bytes_of(wide->to.buffer->type) != whole || !stays_inside(wide->from, wide->width)) return {};
        if (std::ranges::find(read, array_of(wide->to.buffer, kernel)) != read.end()) return {};
        if (std::ranges::any_of(wide->to.indices, reads_memory)) return {};
        ThreadWide ahead = *wide;
        ahead.where = branch->condition;
        return make_thread(ahead, body[0].step());
    });
    return result;
}

}  // namespace tw::codegen
