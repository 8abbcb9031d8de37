// How far sums of tensor cores may lie from exact ones.
#pragma once
#include <optional>
#include <vector>

#include "dsl/expr.h"

namespace tw {

/// Of a sum that tensor cores can compute: see SampledElement::unit_error.
struct UnitErrors {
    double instruction = 0;           ///< relative to the largest sum and term
    int terms = 0;                    ///< of an instruction
    std::vector<Expr> products = {};  ///< that a term of the sum is, if there are several, with what multiplies all
};

/// Of the f32 sum of such terms, products of two elements, added or subtracted; nothing if no instruction multiplies
/// them. `rounds_operands`: elements of f32 may be rounded to tf32. `few_bits`: products of fp8 may be summed by wgmma.
std::optional<UnitErrors> unit_errors(const Expr& term, bool rounds_operands, bool few_bits);

}  // namespace tw
