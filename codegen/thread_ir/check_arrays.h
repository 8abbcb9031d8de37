#pragma once
#include "codegen/thread_ir/thread_ir.h"
#include "dsl/cite.h"

namespace tw::codegen {

/// Throws Error where a thread's arrays do not fit: what registers do not hold lies in local memory, of which a thread
/// of any GPU has 512 KiB.
void check_arrays(const ThreadKernel& kernel, const CiteStep& cite);

}  // namespace tw::codegen
