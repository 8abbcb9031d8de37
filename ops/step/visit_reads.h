// What an operation reads.
#pragma once
#include "dsl/tensor.h"

namespace tw {

/// Each read in its outputs, those in lengths of reductions, too: see(const Read&).
template <class See>
void visit_reads(const Operation& operation, const See& see) {
    for (const Operation::Output& output : operation.outputs)
        if (output.body.defined())
            visit_with_extents(output.body, [&](const Expr& e) {
                if (const Read* read = e.as<Read>()) see(*read);
            });
}

}  // namespace tw
