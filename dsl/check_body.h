// What declarations may be made of.
#pragma once
#include <source_location>
#include <string>
#include <vector>

#include "dsl/expr.h"

namespace tw {

/// Throws Error unless each index in the body of the tensor `name` is one of its axes or runs in a reduction around,
/// and each number in it is finite or meant not to be.
void check_body(const std::string& name, const Expr& body, const std::vector<Expr>& axes, std::source_location where);

/// The first part of the expression that an extent cannot be made of: anything but integers, named sizes and what is
/// computed with them. Undefined if there is none.
Expr part_beyond_sizes(const Expr& extent);

/// Throws Error if the combination reads a tensor, reduces, or has an index: it is to be of its operands alone (and
/// of scalars and named sizes).
void check_combination(const std::string& reducer, const Expr& combined, const std::vector<Expr>& operands,
                       std::source_location where);

}  // namespace tw
