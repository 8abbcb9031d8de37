#pragma once
// Conditions of ops in a loop that runs in parts, of which some are ahead of others (see TileOp::iteration).
#include <vector>

#include "dsl/expr.h"

namespace tw::codegen {

/// The iteration that an op belongs to, and a condition of its own in terms of it.
struct OfIteration {
    Expr iteration;
    bool is_single;  ///< in no loop: the condition stands as it is
    Expr condition;
};

/// `common` stands for the iteration in the condition. `around` are variables of the loops around the op: those of one
/// iteration are left out.
OfIteration in_terms_of(const Expr& common, const Expr& iteration, const std::vector<Expr>& around,
                        const Expr& condition);

/// What is left of the condition if both are known to be equal: a variable of the first is told by the rest.
Expr where_equal(const Expr& condition, const Expr& one, const Expr& other);

}  // namespace tw::codegen
