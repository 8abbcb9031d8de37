// Declarations made of those of other tensors.
#pragma once
#include <vector>

#include "dsl/tensor.h"

namespace tw::schedules {

/// What the tensor's only, or first, output is, over its operation's axes.
const Expr& body_of(const Tensor& tensor);
/// The expression over `axes`, at other indices.
Expr over(const std::vector<Expr>& axes, const Expr& expr, const std::vector<Expr>& at);
/// The expression with another one in the place of a part, wherever that stands.
Expr exchanged(const Expr& expr, const Expr& part, const Expr& by);
/// The only reduction of what the tensor is, as an expression over its axes.
Expr reduction_of(const Tensor& tensor);
/// A tensor of the same name and shape; `body` is one of the tensor's axes.
Tensor declared_as(const Tensor& tensor, const Expr& body);
/// The tensor, with what it casts in place of a read of it. What has the type already is not cast back and forth.
Tensor with_sums(const Tensor& tensor, const Tensor& sums);
/// Whether elements, of that type, are made of sums and what belongs to their column.
bool is_of_columns(const Tensor& sums, Type type);

}  // namespace tw::schedules
