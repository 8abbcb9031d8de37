// Outputs in the memory of inputs, whose other readers must have read what is overwritten.
#pragma once
#include <string>

#include "dsl/tree.h"

namespace tw {

/// Why elements of `out` cannot overwrite those of `in`, an input of the same type, shape and rows: empty if each is
/// read where it is written, or before by the same block, or by a kernel before.
std::string why_not_overwritten(const Tree& tree, const BufferRef& out, const BufferRef& in);

}  // namespace tw
