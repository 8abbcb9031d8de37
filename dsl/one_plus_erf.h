// The sum by which a GELU is declared.
#pragma once
#include <optional>

#include "dsl/expr.h"

namespace tw {

/// x of 1 + erf(x), which passes make one function of, shorter than erf is.
std::optional<Expr> argument_of_one_plus_erf(const Expr& e);

}  // namespace tw
