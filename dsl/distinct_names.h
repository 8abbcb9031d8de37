// Variables of one declaration are told apart by their names.
#pragma once
#include <string>
#include <vector>

#include "dsl/expr.h"

namespace tw {

/// "i", "j", "p", ...: the name of an axis that has none of its own.
std::string axis_name(size_t dimension);

/// Renames variables of a declaration that others of the same name meet: axes, named by axis_name, take the next free
/// letter; of reductions inside one another, or over several axes, the later axes get a number. What is not visible
/// together keeps its name.
void give_distinct_names(std::vector<Expr>& axes, std::vector<Expr>& bodies, const std::vector<Expr>& shape);

}  // namespace tw
