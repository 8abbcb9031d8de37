// What the iterations of an unrolled loop have of their own, and what all have.
#pragma once
#include <set>
#include <vector>

#include "codegen/thread_ir/thread_walk.h"

namespace tw::codegen {

struct OwnOfIterations {
    explicit OwnOfIterations(const ThreadLoop& loop);

    /// Whether all iterations have the same value of it, and what it reads is there before the first: in registers, or
    /// in arrays that are `constant`.
    bool all_have(const Expr& expr, const std::set<const BufferNode*>& constant = {}) const;

    /// How many values of it all iterations have, if those are the same: one for each combination of nested unrolled
    /// loops' variables that it reads. 0: iterations have values of their own.
    int64_t values_all_have(const Expr& expr) const;

    std::vector<Expr> variables;            ///< its own, and those that its body defines
    std::vector<const ThreadLoop*> nested;  ///< unrolled loops in its body, of constant extents
    std::set<const BufferNode*> written;    ///< in its body, or begun there
};

}  // namespace tw::codegen
