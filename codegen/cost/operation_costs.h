// About how many instructions operations become.
#pragma once
#include "dsl/expr.h"

namespace tw::codegen {

double operations_of(UnaryOp op);
/// Of these, those that the unit of exponentials, roots and reciprocals has.
double specials_of(UnaryOp op);

}  // namespace tw::codegen
