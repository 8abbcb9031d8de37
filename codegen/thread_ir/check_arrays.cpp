#include "codegen/thread_ir/check_arrays.h"

#include "codegen/thread_ir/thread_walk.h"
#include "support/error.h"

namespace tw::codegen {

void check_arrays(const ThreadKernel& kernel, const CiteStep& cite) {
    constexpr int64_t most_bytes = 512 * 1024;
    int64_t bytes = 0, largest = 0;
    Buffer most;
    int step = -1;
    visit(kernel.body, [&](const ThreadStmt& stmt) {
        auto declared = stmt.as<ThreadDeclare>();
        if (!declared) return;
        int64_t own = bytes_of(declared->buffer->type);
        for (const Expr& extent : declared->buffer->shape) own *= require_constant(extent);
        bytes += own;
        if (own <= largest) return;
        largest = own, most = declared->buffer, step = stmt.step();
    });
    if (bytes > most_bytes)
        throw_error(
            Error,
            "{}{}: the arrays of a thread take {} bytes, {} of them '{}', but local memory has {}; bind loops to "
            "threads or blocks, use smaller tiles, or stage it in shared memory",
            cite(step), kernel.name, bytes, largest, most->name, most_bytes);
}

}  // namespace tw::codegen
