// Views as expressions: tensors whose elements are elements of another one, at other places.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "dsl/schedule_options.h"
#include "dsl/tensor.h"

namespace tw::schedules {

/// All elements of x, in the order of rows, in another shape of as many. One extent may be -1: what is left for it.
/// Gradients are reshaped back. Throws Error if x has a named size, an extent is neither positive nor the one -1, or
/// the numbers of elements differ.
Tensor reshape(const std::string& name, const Tensor& x, const std::vector<int64_t>& shape, TW_HERE);
/// x from `begin` on, up to but without `end`, along dimension `dim`; all of the others. From the end on where they are
/// negative, as dimensions are. Throws Error unless 0 <= begin < end <= extent then, or if that extent is a named size.
Tensor slice(const std::string& name, const Tensor& x, int dim, int64_t begin, int64_t end, TW_HERE);
/// Dimension d of the result is dimension order[d] of x. Negative ones count from the last
/// one. Throws Error unless `order` names each dimension once.
Tensor permute(const std::string& name, const Tensor& x, const std::vector<int>& order, TW_HERE);

/// Whether each element is one of another tensor, or a constant, by where it stands alone: also a border around what
/// lies in the middle.
bool is_view(const Operation& operation);
/// The tensor of which a view has all elements in the order in which they lie in memory, so that it needs none of its
/// own: what reshape() makes, or who writes the same. Nothing of other views, and where extents have names.
std::optional<Tensor> reshaped_from(const Operation& view);

}  // namespace tw::schedules
