#pragma once
#include "codegen/thread_ir/thread_ir.h"

namespace tw::codegen {

/// Puts a barrier wherever an element that one thread writes is read or written by another without a barrier in
/// between, across iterations of a loop too, at the places that are executed least often. Barriers that are already
/// there are placed anew.
///
///     for ko < 64              for ko < 64
///       s[thread] = a[...]       s[thread] = a[...]
///       acc += s[...]            barrier
///                                acc += s[...]
///                                barrier
ThreadKernel insert_barriers(const ThreadKernel& kernel);

}  // namespace tw::codegen
