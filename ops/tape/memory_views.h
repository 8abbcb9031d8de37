// Views by calls: tensors in the memory of others, where their elements lie there side by side. No kernel runs.
#pragma once
#include <cstdint>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "ops/autograd.h"

namespace tw::nn {

/// Elements of a tensor that lie side by side, from `first` on, as one of that shape.
struct MemoryView {
    std::string name;
    int64_t first = 0;
    std::vector<int64_t> shape;
};

/// That view of x, on the tape if x requires a gradient, which `back` makes of the view's. Nothing where there is no
/// memory to be read: x has no data, a step is captured, or the view begins at no multiple of 16 bytes, which kernels
/// that move vectors cannot take.
std::optional<Tensor> view_in_memory(const Tensor& x, const MemoryView& view, const ViewGradient& back,
                                     std::source_location where);
/// The same of all elements of x, in another shape.
std::optional<Tensor> all_in_memory(const Tensor& x, const std::string& name, const std::vector<int64_t>& shape,
                                    std::source_location where);

/// Throws Error if a tensor that a captured step overwrites shares memory with another one that is given to it.
void check_apart(const Tensor& overwritten, const Tensor& other);

}  // namespace tw::nn
