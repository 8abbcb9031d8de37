// Declarations that read other tensors instead.
#pragma once
#include <map>
#include <memory>
#include <string>

#include "dsl/tensor.h"

namespace tw::schedules {

/// Remembers what stands for which tensor, and declares anew what reads such ones, directly or through others.
class Replacement {
public:
    /// `by` has the shape and the type of the only output of `tensor`'s operation.
    void put(const Tensor& tensor, const Tensor& by) { known_[tensor.operation()] = by.operation(); }
    /// The tensor, over what stands for others; itself if it reads none of them.
    Tensor of(const Tensor& tensor) { return {of(tensor.operation()), tensor.output()}; }
    /// The same of a tensor that is declared of one expression, called `name`.
    Tensor named(const std::string& name, const Tensor& tensor);

private:
    std::shared_ptr<const Operation> of(const std::shared_ptr<const Operation>& operation);
    Expr in(const Expr& body);

    std::map<std::shared_ptr<const Operation>, std::shared_ptr<const Operation>> known_;
};

}  // namespace tw::schedules
