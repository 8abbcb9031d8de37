// The parts of differentiation: through an expression of one element, and from the reads of elements to tensors.
#pragma once
#include <vector>

#include "dsl/tensor.h"

namespace tw {

/// What adjoints of a type are computed in: f32 for storage types.
inline Type adjoint_type(Type type) { return info(type).is_storage_only ? Type::F32 : type; }

/// An undefined expression is a zero here: zero terms vanish without a trace of 0 * x in the result.
Expr add_adjoints(const Expr& a, const Expr& b);
/// condition ? adjoint : 0
Expr where_true(const Expr& condition, const Expr& adjoint);

/// The adjoint of one element that an expression reads.
struct ReadAdjoint {
    Expr read;
    Expr adjoint;  ///< its type is adjoint_type(read.type())
};

/// Reverse accumulation through one expression without reductions, whose adjoint is given. `result` is the value of the
/// expression where it can be had more cheaply than by computing it again, else `expr` itself. Each element read
/// appears once.
std::vector<ReadAdjoint> adjoints_of_reads(const Expr& expr, const Expr& adjoint, const Expr& result);

/// Sums `adjoint` over all points of the loop variables at which the read meets element `target` of its tensor: the
/// contribution of this read to the adjoint of the tensor, as an expression of the target's variables. Loop variables
/// that an affine index determines are solved for; the others are reduced over, under a condition.
Expr transpose_read(const ReadAdjoint& part, const std::vector<Expr>& loops, const std::vector<Expr>& target);

}  // namespace tw
