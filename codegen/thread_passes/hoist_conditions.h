// A part of hoist_invariants.
#pragma once
#include "codegen/thread_ir/thread_ir.h"

namespace tw::codegen {

/// The kernel's body: moves conditions out of the loops that do not change them, and joins conditions that stand
/// directly in each other.
///
///     for i < 8                    if thread < 32
///       if thread < 32 && i < 5      for i < 8
///         a[i] = 1.0                   if i < 5
///                                        a[i] = 1.0
ThreadStmt hoist_conditions(const ThreadKernel& kernel);

}  // namespace tw::codegen
