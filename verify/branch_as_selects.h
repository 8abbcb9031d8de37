// Branches on data as values: for runs on terms, which know of no data which way it goes.
#pragma once
#include <optional>

#include "codegen/thread_ir/thread_ir.h"

namespace tw::fuzz {

/// What the branch does, without one, if that is to store registers which its condition does not read: each takes the
/// value, or keeps its own, as the condition says.
std::optional<codegen::ThreadStmt> branch_as_selects(const codegen::ThreadIf& branch);

}  // namespace tw::fuzz
