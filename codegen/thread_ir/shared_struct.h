// The struct that holds a block's shared memory, as the compiler lays it out.
#pragma once
#include <vector>

#include "codegen/thread_ir/thread_ir.h"

namespace tw::codegen {

/// Bytes that the start of an array in it is a multiple of.
int64_t alignment_of(const BufferNode& buffer);
/// All of them, one behind another.
int64_t bytes_of_shared(const std::vector<Buffer>& buffers);

}  // namespace tw::codegen
