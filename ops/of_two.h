// What is made of several tensors and numbers, element by element.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "ops/elementwise.h"
#include "ops/number_of_type.h"

namespace tw::nn {

/// Two tensors of one type, or a tensor and a number, put together element by element, with NumPy's broadcasting.
struct OfTwo {
    using Each = Expr (*)(const Operand& x, const Operand& y);
    /// Of the operands' type, or, like a comparison, of `result`.
    OfTwo(const std::string& name, Each each, std::optional<Type> result = {});
    Tensor operator()(const Tensor& x, const Tensor& y, std::source_location where) const;
    /// Throws Error too if both are numbers.
    Tensor operator()(const Term& x, const Term& y) const;

    std::string name;
    Each each;
    std::optional<Type> result;
    Operator op;
};

/// Throws Error unless the number is one of what elements of this tensor, integers or floats, are computed in
/// (number_of_type.h).
void check_number(const std::string& who, const Tensor& x, double number, std::source_location where);

}  // namespace tw::nn
