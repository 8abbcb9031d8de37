// Products of a tensor with itself, as of two.
#pragma once
#include <string>
#include <vector>

#include "dsl/target.h"
#include "schedules/redeclared.h"

namespace tw::schedules {

/// Reductions of terms that are made of elements of one tensor in the element's row and in its column,
///
///     c[i, j] = sum_k a[i, k] * a[j, k]
///
/// read those of the column as elements of `a_again`, a view of `a`: what loads tiles takes rows and columns from
/// tensors of their own. Only where tensor cores, or tiles of threads, take the product then.
Redeclared self_products(const std::vector<Tensor>& outputs, const Target& target);

/// The view of all of a tensor under another name.
Tensor again(const Tensor& tensor, const std::string& name);
/// Whether the operation says again what another tensor has at the same places, all of it.
bool is_again(const Operation& operation);

}  // namespace tw::schedules
