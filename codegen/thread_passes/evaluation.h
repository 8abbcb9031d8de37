// When the GPU may evaluate an expression.
#pragma once
#include "codegen/thread_ir/thread_walk.h"

namespace tw::codegen {

/// Whether only one outcome of the expression's first operand leads to operand `kid`: of a select, of && and of ||.
bool is_guarded(const Expr& expr, size_t kid);
/// Whether it may be evaluated, operands aside, where the program does not: it reads no memory and nothing outside of
/// an array of registers, exchanges nothing with other threads, and divides no integer by zero.
bool is_pure_by_itself(const Expr& expr, const KnownBounds& bounds);

}  // namespace tw::codegen
