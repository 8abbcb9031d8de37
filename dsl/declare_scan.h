// Scans: reductions of all terms up to a place, or from it on.
#pragma once
#include <source_location>
#include <vector>

#include "dsl/declare_scatter.h"
#include "dsl/tensor.h"

namespace tw {

struct ScanOptions {
    bool exclusive = false;  ///< without the term at the place itself
    bool reverse = false;    ///< from the last term back to the place
};

/// What the terms at 0, 1, ..., `place` of the axis make together; in reverse those at the axis' last index, the one
/// before, ..., `place`. `place` is an index of the tensor that is declared, of the axis' extent.
///
///     Axis j = reduce_axis("j", T);
///     Tensor y = compute("y", {R, T}, [&](Expr i, Expr t) { return scan(sum, x(i, j), j, t); });
///
/// It is an ordinary reduction, over an axis that is as long as the place says, `sum_{j < t + 1} x[i, j]`: computed so,
/// each element goes through all of its terms. Schedule::running makes each from its neighbour.
/// Throws Error if the axis or the place is undefined, if the place is not an i64, or if it may lie outside of the axis
/// (but for a place that data tell).
Expr scan(Reduction reduction, const Operand& value, const Axis& axis, const Operand& place,
          const ScanOptions& options = {}, std::source_location where = std::source_location::current());
/// All components of a scan of tuples by a reducer of the user's own.
std::vector<Expr> scan(const Reducer& reducer, const std::vector<Operand>& values, const Axis& axis,
                       const Operand& place, const ScanOptions& options = {},
                       std::source_location where = std::source_location::current());

}  // namespace tw
