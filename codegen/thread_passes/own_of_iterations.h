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

    std::vector<Expr> variables;          ///< its own, and those that its body defines
    std::set<const BufferNode*> written;  ///< in its body, or begun there
};

}  // namespace tw::codegen
