#pragma once
#include "codegen/thread_ir/thread_ir.h"

namespace tw::codegen {

/// Of arrays that take turns at the same bytes, nobody accesses one behind the beginning of another, in program order.
/// An internal error otherwise.
void check_unions(const ThreadKernel& kernel);

}  // namespace tw::codegen
