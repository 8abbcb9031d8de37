// Numbers of the host as elements of a type.
#pragma once
#include "dsl/expr.h"

namespace tw::nn {

/// Whether the type has the number: integers whole ones that they hold, booleans 0 and 1, floats any, rounded, but for
/// finite ones that are too large for them; infinity and NaN where they have these.
bool is_number_of(Type type, double number);
/// The number as one of this type, integers or floats.
Expr number_of(Type type, double number);

}  // namespace tw::nn
