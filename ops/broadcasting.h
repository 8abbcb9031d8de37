// What calls of several operands have in common: shapes that are broadcast, types, dimensions counted from the end.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

#include "ops/operator.h"

namespace tw::nn {

/// NumPy's rule: dimensions are matched from the last one on, missing ones are 1, and what is 1 is repeated. Throws
/// Error with both shapes and the first two extents that do not fit; `who` calls.
std::vector<int64_t> broadcast_shape(const std::string& who, const std::vector<int64_t>& x,
                                     const std::vector<int64_t>& y, std::source_location where);
/// The element of x that stands at `at` of the shape to which x is broadcast.
Expr broadcast_element(const tw::Tensor& x, const std::vector<Expr>& at, const std::vector<int64_t>& shape);

/// Of a declared tensor whose extents are numbers.
std::vector<int64_t> extents_of(const tw::Tensor& x);
/// What elements and sums of this type are computed in: f32 for storage types.
Type computed_type(Type type);

/// Declares `each` of the elements of one tensor, of its shape, and of its type or of `result`, computed in f32 if its
/// type is a storage type.
Expression of_each(const std::string& name, std::function<Expr(const Expr& x)> each, std::optional<Type> result = {});
/// The same of the type of the tensor, floats, where derivatives are not derived but given: those of `each` at x.
Expression of_each_with_slope(const std::string& name, std::function<Expr(const Expr& x)> each,
                              std::function<Expr(const Expr& x)> slope);

/// Throws Error with both types where they differ.
void check_one_type(std::string_view who, const Tensor& x, const Tensor& y, std::source_location where);
/// Throws Error unless x is a float.
void check_float(const std::string& who, const Tensor& x, std::source_location where);
/// Throws Error unless x is booleans.
void check_boolean(const std::string& who, const Tensor& x, std::source_location where);
/// `dim` from 0 on, which counts from the end if negative. Throws Error with the shape if there is none.
int dimension_of(const std::string& who, const std::vector<int64_t>& shape, int dim, std::source_location where);

}  // namespace tw::nn
