// Types of few bits that hold all values of an expression.
#pragma once
#include <optional>
#include <vector>

#include "dsl/expr.h"

namespace tw::schedules {

/// Storage types that hold each value that the f32 expression can have, exactly, the narrowest first: of elements that
/// are cast from them, also negated, chosen among each other or cut at zero, of whole numbers up to 256, and tf32 of
/// what is truncated to it. Empty if there is none.
std::vector<Type> exact_types(const Expr& expr);

}  // namespace tw::schedules
