// Factors of a reduction's terms that are the same for all of them, taken out of it.
#pragma once
#include <source_location>

#include "dsl/tensor.h"

namespace tw {

/// An equal tensor, up to rounding, whose reductions leave outside what their axes do not change: sum_j(p(i, j) / l(i))
/// becomes sum_j(p(i, j)) / l(i), max_j(x(i, j) + b(i)) becomes max_j(x(i, j)) + b(i). Of sums these are factors, of
/// maxima and minima summands and positive factors. They are looked for in tensors that terms read, too, where these
/// reduce nothing along the axes: what is left of such a tensor is a new one. The tensor itself if nothing can be taken
/// out. docs/language.md says what zeros, infinities and masks make of that. Throws Error if the tensor is undefined.
Tensor hoist(const Tensor& tensor, std::source_location where = std::source_location::current());

}  // namespace tw
