// Declarations that read other tensors instead.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dsl/tensor.h"

namespace tw::schedules {

/// Whether it is one of these tensors.
bool holds(const std::vector<Tensor>& tensors, const Tensor& tensor);

/// The bodies of an operation changed as one expression: what they share, as the components of a reduction their terms,
/// they share afterwards.
std::vector<Expr> changed_together(const std::vector<Expr>& bodies, const std::function<Expr(const Expr&)>& change);
/// Of each output.
std::vector<Expr> bodies_of(const Operation& operation);

/// The operation with other bodies, over its own axes, and another name.
std::shared_ptr<const Operation> declared_again(const Operation& operation, const std::string& name,
                                                const std::vector<Expr>& bodies);

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
