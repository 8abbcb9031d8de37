// Wrong expressions made of right ones.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "verify/mutate_kernel.h"

namespace tw::fuzz {

struct MutatedExpr {
    MutationKind kind;
    std::string text;  ///< "37 -> 38"
    Expr expr;         ///< the whole expression
};

/// What an expression is for. Checks of indices (codegen/index_checks.h) change nothing that a kernel computes.
enum class ExprRole { Value, ReadIndex, WriteIndex, Mask, Extent, Check };

/// Every mutant of one expression and of those inside it. `rings`: loop variables by which rings of buffers turn.
std::vector<MutatedExpr> mutants_of(const Expr& expr, ExprRole role, const std::vector<Expr>& rings);

}  // namespace tw::fuzz
