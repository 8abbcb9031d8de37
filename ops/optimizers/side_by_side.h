// Elements of several tensors as those of one, which one operation reads.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/tensor.h"

namespace tw::nn {

/// A larger tensor takes several microseconds, more than a launch, and what is made right before it is used lies in the
/// L2 cache.
constexpr int64_t most_side_by_side = 1 << 20;
/// Pointers that one kernel is given.
constexpr size_t most_tensors_side_by_side = 64;

int64_t num_elements(const Tensor& tensor);
/// Places of those that are small, in lists of as many as one kernel is given; and of the others, each by itself.
struct SideBySide {
    std::vector<std::vector<size_t>> together;
    std::vector<size_t> apart;
};
SideBySide side_by_side(const std::vector<Tensor>& tensors);

/// Where each begins if each begins at a multiple of so many elements; and behind the last one, the end of all.
std::vector<int64_t> begins_of(const std::vector<Tensor>& tensors, int64_t alignment);
/// Memory of its own begins there: 64 elements of f32, 256 bytes.
constexpr int64_t memory_alignment = 64;
/// For tensors that begin there, f32 [elements], zeros, also between them.
Tensor whole_for(const std::shared_ptr<Backend>& backend, const std::vector<int64_t>& begins, const std::string& name);

/// The same elements, one-dimensional: in its memory, or what a captured step reads there. Off the tape under NoGrad.
Tensor flattened(const Tensor& tensor);

/// One-dimensional, declared; and where it begins.
struct Placed {
    tw::Tensor elements;
    int64_t begin;
};
/// What stands at the place, of at least one tensor, in the order of their places: zero beside and between them.
Expr element_at(const Expr& place, const std::vector<Placed>& tensors);

}  // namespace tw::nn
