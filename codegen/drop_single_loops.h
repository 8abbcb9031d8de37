#pragma once
#include <functional>

#include "dsl/tree.h"

namespace tw::codegen {

/// A statement of the schedule tree with every expression rewritten.
Stmt map_exprs(const Stmt& stmt, const std::function<Expr(const Expr&)>& rule);

/// Loops of one iteration become their bodies; loops of none vanish.
///
///     for i < 1             c[0] = a[0]
///       c[i] = a[i]
Nest drop_single_loops(const Nest& nest);

}  // namespace tw::codegen
