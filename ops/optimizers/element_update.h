// What an optimizer makes of an element, in kernels of a parameter and in those of several.
#pragma once
#include <string>
#include <vector>

#include "ops/optimizers/update_rule.h"

namespace tw::nn {

/// A rule with all that is constant for a group of parameters.
struct ElementUpdate {
    UpdateRule rule;
    double rate_factor = 1, weight_decay = 0;
    double max_norm = 0;     ///< 0: gradients are not clipped
    bool is_scaled = false;  ///< gradients are of a scaled loss

    /// What the states become, in their order, and the parameter: of what these are now, the gradient, and [rate, norm
    /// and scale if the loss was scaled, or the norm if gradients are clipped, numbers...], scalars in device memory.
    /// Throws Error if the rule makes another number of values than it has states, and a parameter.
    std::vector<Expr> next(const std::vector<Expr>& old, Expr gradient, const std::vector<tw::Tensor>& scalars) const;
    /// What the operation is called, "adamw", and its outputs, "first_moment_next".
    std::string name() const;
    std::vector<std::string> outputs() const;
};

}  // namespace tw::nn
