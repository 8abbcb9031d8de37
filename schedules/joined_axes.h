// Several axes as one that counts through all of them, the last one fastest.
#pragma once
#include <vector>

#include "dsl/simplify.h"

namespace tw::schedules {

/// How many values an axis, a Variable, has; 0 if that is not known.
int64_t extent_of(const Expr& axis);
/// Of all of them together; 0 if one is not known.
int64_t points_of(const std::vector<Expr>& axes);
/// The axes at a place along all of them.
Substitution digits(const std::vector<Expr>& axes, Expr place);
/// Their place.
Expr place_of(const std::vector<Expr>& axes);

}  // namespace tw::schedules
