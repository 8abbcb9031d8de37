// What reductions along dimensions of a tensor have in common.
#pragma once
#include <source_location>
#include <string>
#include <vector>

#include "ops/operator.h"

namespace tw::nn {

/// From 0 on, ascending; all if none are named. Throws Error if there is no such dimension, or one is named twice.
std::vector<int> dimensions_of(const std::string& who, const Tensor& x, const std::vector<int>& dims,
                               std::source_location where);
/// Elements that each result is made of, along these dimensions, from 0 on.
int64_t terms_of(const Tensor& x, const std::vector<int>& dims);

/// A declared tensor and the dimensions, from 0 on, along which it is reduced.
struct Reduced {
    Reduced(const tw::Tensor& x, const std::vector<int>& dims, bool keep);
    /// Of x, in the type that it is computed in: in the row of a place of the result, at the axes.
    Expr term(const std::vector<Expr>& at) const;

    tw::Tensor x;
    std::vector<Axis> axes;
    Shape shape;       ///< of the result
    double count = 1;  ///< of terms

private:
    std::vector<bool> is_reduced_;
    bool keep_;
};

}  // namespace tw::nn
