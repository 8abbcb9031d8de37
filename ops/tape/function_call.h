// Calls of functions with gradients of their own (function.h), on the tape.
#pragma once
#include <cstdint>
#include <functional>
#include <source_location>
#include <string>
#include <vector>

#include "ops/function.h"

namespace tw::nn {

/// What all results of a call share.
struct FunctionCall {
    struct Result {
        Type type;
        std::vector<int64_t> shape;
    };
    /// An input or a result is known by its number: these are on the tape, which is not to hold itself.
    struct Saved {
        Tensor tensor;  ///< of a result, without its call
        int input = -1;
        int result = -1;
    };
    std::string name;
    FunctionBackward backward;
    std::vector<Result> results;
    std::vector<Saved> saved;
    std::source_location where;

    /// A result as it is on the tape.
    using OnTape = std::function<Tensor(const Tensor& tensor, size_t result)>;
    /// Of the inputs that require one; undefined of others. `adjoints`, to be added, of each result. Throws Error as
    /// Function's call says.
    std::vector<Tensor> gradients_of(const std::vector<Tensor>& inputs,
                                     const std::vector<std::vector<Tensor>>& adjoints, const OnTape& on_tape) const;
    /// The same of results of one call that ran, from the adjoint of each.
    static std::vector<Tensor> gradients_of_results(const std::vector<Tensor>& outputs,
                                                    const std::function<Tensor(const Tensor& output)>& adjoint_of);
    /// A tensor without a call as this result of the call.
    static Tensor linked(const Tensor& tensor, std::shared_ptr<const FunctionCall> call, size_t result,
                         const std::vector<Tensor>& inputs);

private:
    std::vector<Tensor> whole_adjoints(const std::vector<Tensor>& inputs,
                                       const std::vector<std::vector<Tensor>>& adjoints) const;
    FunctionContext context_of(const std::vector<Tensor>& inputs, const OnTape& on_tape) const;
    void check(const std::vector<Tensor>& parts, const std::vector<Tensor>& inputs) const;
};

}  // namespace tw::nn
