// Numbers of 4 bits, u4 and i4, two in a byte: arrays of them are tensors of u8.
//
//   Tensor w = input("w", u8, {n, k / 2});                        // i4 [n, k]
//   c(i, j) = sum(cast(f32, x(i, t)) * cast(f32, i4(w, {j, t})), t)
//   Tensor q = pack_4_bits("q", {n, k}, [&](const std::vector<Expr>& at) { return cast(i32, round(y(at[0], at[1])));
//   });
#pragma once
#include <functional>
#include <vector>

#include "dsl/tensor.h"

namespace tw {

/// The number at these indices, 0 to 15, or -8 to 7, as i32: of neighbours along the last dimension, which has two
/// numbers a byte, the one with an even index is the lower half. Throws Error if `bytes` is not u8, or has another
/// number of dimensions.
Expr u4(const Tensor& bytes, const std::vector<Operand>& indices,
        std::source_location where = std::source_location::current());
Expr i4(const Tensor& bytes, const std::vector<Operand>& indices,
        std::source_location where = std::source_location::current());

/// A tensor of u8 that holds the numbers `body(indices)`, integers, of this shape: half as many along the last
/// dimension, rounded up; the upper half of a last byte that has no number is 0. Of each number the lowest 4 bits are
/// kept. Throws Error if the last extent is no constant, or the body no integer.
Tensor pack_4_bits(const std::string& name, const Shape& shape,
                   const std::function<Expr(const std::vector<Expr>&)>& body,
                   std::source_location where = std::source_location::current());

}  // namespace tw
