// What the body of a loop has, for whoever runs some of its iterations and guesses the others.
#pragma once
#include "codegen/thread_ir/thread_ir.h"

namespace tw::codegen {

struct LoopTraits {
    bool touches_memory = false, touches_global = false, is_innermost = true, meets = false;
    bool has_masks = false;  ///< conditions that may differ from iteration to iteration
};
LoopTraits loop_traits(const ThreadLoop& loop);

}  // namespace tw::codegen
