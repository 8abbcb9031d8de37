// One rule for the adjoints of several tensors together, where with_gradient() has one for each.
#pragma once
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "dsl/differentiate.h"

namespace tw {

/// Tensors of any shapes and types, of which a function makes the adjoints of `inputs` once for all of them.
class JointGradient {
public:
    /// The adjoints of the inputs, in their order, of their shapes; undefined ones stand for zeros. `adjoints` has
    /// those of each tensor, f32 of storage types, which are to be added: one for each output() of it that something
    /// is made of. `own` is the rule itself.
    using Function =
        std::function<std::vector<Tensor>(const JointGradient& own, const std::vector<std::vector<Tensor>>& adjoints)>;

    JointGradient(const std::string& name, std::vector<Tensor> tensors, const std::vector<Tensor>& inputs,
                  Function function, std::source_location where = std::source_location::current());
    /// The elements of that tensor: adjoints of what is made of these go to the rule, and not to what the tensor is
    /// made of.
    Tensor output(size_t index) const;

private:
    struct State;
    JointGradient(std::shared_ptr<State> state, Tensor joint);
    static std::vector<Tensor> follow(const std::shared_ptr<State>& state, const Tensor& joint, const Tensor& adjoint);

    std::shared_ptr<State> state_;
    Tensor joint_;  // between the outputs and the inputs, where adjoints go; nobody reads it
};

/// operations_of(), and what rules pass adjoints on to, each in front of what it is listed by.
std::vector<std::shared_ptr<const Operation>> operations_with_rules(const Tensor& output);

}  // namespace tw
