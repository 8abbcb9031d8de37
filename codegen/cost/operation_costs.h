// About how many instructions operations become.
#pragma once
#include "dsl/expr.h"

namespace tw::codegen {

double operations_of(UnaryOp op);
/// Of these, those that the unit of exponentials, roots and reciprocals has.
double specials_of(UnaryOp op);
/// What a node adds to the instructions of functions: of 1 + erf(x) less than none, as erf is no longer one then.
double operations_of_function(const Expr& node);

}  // namespace tw::codegen
