// Reductions whose terms, or parts of them, are combined with their result in memory.
#pragma once
#include <string>
#include <vector>

#include "dsl/edit.h"

namespace tw {

/// The operation that atomics combine the reduction's terms by. Throws Error, naming the step that was `asked`, if
/// there is none, if they are combined so already, or if the elements to update are rounded.
BinaryOp check_updates(const Edit& edit, int reduction, const std::string& asked);

/// `updates` makes parts of the reduction: each is combined with the element at `place` where the condition holds. The
/// reduction's loops must be gone. If it stores what it reduces, it is now the stage that stores the identity before;
/// otherwise a stage of its own does, named name_sum, and the reduction reads the complete elements.
void make_update(Edit& edit, int updates, int reduction, BinaryOp combine, const std::vector<Expr>& place,
                 const Expr& condition);

}  // namespace tw
