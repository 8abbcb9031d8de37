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
    /// The outputs of `by`'s operation from `by` on have the shapes and types of the outputs of `tensor`'s operation.
    void put(const Tensor& tensor, const Tensor& by) { known_[tensor.operation()] = by; }
    /// The tensor, over what stands for others; itself if it reads none of them.
    Tensor of(const Tensor& tensor) {
        const Tensor first = of(tensor.operation());
        return {first.operation(), first.output() + tensor.output()};
    }
    /// The same of a tensor that is declared of one expression, called `name`.
    Tensor named(const std::string& name, const Tensor& tensor);

private:
    /// What stands for the operation's first output.
    Tensor of(const std::shared_ptr<const Operation>& operation);
    Expr in(const Expr& body);

    std::map<std::shared_ptr<const Operation>, Tensor> known_;
};

}  // namespace tw::schedules
