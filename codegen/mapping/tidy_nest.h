#pragma once
#include "dsl/tree.h"

namespace tw::codegen {

/// Whether a matrix instruction computes a leaf of the nest: such leaves work on whole tiles and bring threads of their
/// own.
bool has_atoms(const Nest& nest);

/// The nest without loops of one iteration, and, unless tiles must stay whole (those of matrix instructions, and those
/// that leave as boxes), with loops that end where their masks do.
Nest tidied(const Nest& nest);

/// Every leaf of a tidied nest that stores results stands in a loop without iterations: there is nothing to launch.
bool computes_nothing(const Nest& tidied);

}  // namespace tw::codegen
