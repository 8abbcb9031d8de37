#include "codegen/thread_ir/shared_struct.h"

#include <algorithm>

namespace tw::codegen {
namespace {

constexpr int64_t widest_access = 16;  // bytes

int64_t rounded_up(int64_t bytes, int64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

}  // namespace

/// Eight swizzled rows repeat themselves, and matrix instructions tell them apart by their addresses.
int64_t alignment_of(const BufferNode& buffer) {
    return std::max<int64_t>({widest_access, 8 * buffer.swizzle, buffer.alignment});
}

int64_t bytes_of_shared(const std::vector<Buffer>& buffers) {
    int64_t bytes = 0, alignment = widest_access;
    for (const Buffer& buffer : buffers) {
        alignment = std::max(alignment, alignment_of(*buffer));
        int64_t elements = 1;
        for (const Expr& extent : buffer->shape) elements *= require_constant(extent);
        bytes = rounded_up(bytes, alignment_of(*buffer)) + elements * bytes_of(buffer->type);
    }
    return rounded_up(bytes, alignment);
}

}  // namespace tw::codegen
