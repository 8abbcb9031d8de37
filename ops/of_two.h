// What is made of several tensors and numbers, element by element.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "ops/elementwise.h"

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

/// Throws Error unless elements of this tensor's type can be the number: any of floats, of integers whole ones that
/// they hold.
void check_number(const std::string& who, const Tensor& x, double number, std::source_location where);
/// The number as one of this type, integers or floats.
Expr number_of(Type type, double number);

}  // namespace tw::nn
