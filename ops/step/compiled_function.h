// A function of tensors, compiled as a step for each list of types and shapes that it is called with.
//
//   nn::CompiledFunction train(backend, [&](const std::vector<nn::Tensor>& in) {
//       nn::Tensor loss = nn::cross_entropy(network(in[0]), in[1]);
//       nn::backward(loss);
//       adam.step();
//       return std::vector{loss};
//   });
//   double loss = train({x, labels})[0].to_host().at({}).real;   // planned once for these shapes
#pragma once
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "ops/step/compile_step.h"

namespace tw::nn {

/// Extents that a dimension of an input is rounded up to, so that calls of many extents share few plans.
struct ShapeBuckets {
    size_t input = 0;
    int dimension = 0;
    std::vector<int64_t> sizes;  ///< ascending
    /// What stands behind the input's own elements; the function has to make nothing of it. A number that the input's
    /// type has, rounded if that is a float: whole for integers, infinite or NaN for floats that have these.
    double fill = 0;
};

struct CompiledFunctionOptions {
    StepOptions step = {};
    std::vector<ShapeBuckets> buckets = {};
    /// Called before a step is planned, with what the inputs differ in from those of the nearest plan, or "first call".
    std::function<void(const std::string& why)> on_plan = {};
};

class CompiledFunction {
public:
    using Function = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)>;

    /// Throws Error if sizes of a bucket are none, not ascending or not positive.
    CompiledFunction(std::shared_ptr<Backend> backend, Function function, CompiledFunctionOptions options = {},
                     TW_HERE);

    /// Copies the inputs to where the plan of their types and shapes reads them, and launches it, without waiting;
    /// makes that plan on first use, and others for inputs of which others require gradients, or are the same tensor.
    /// An input that requires one does so in the function, where gradients() and backward() give it; grad() of the
    /// tensor outside stays as it is. Returns what the function made, of the bucket's extents; it holds until the next
    /// call. Throws Error without inputs, if one is undefined, of another backend or has hooks, exceeds its bucket, or
    /// if buckets name no dimension of it, or a `fill` that is none of its type, while a step is recorded or captured,
    /// and what compile() throws.
    const std::vector<Tensor>& operator()(const std::vector<Tensor>& inputs, TW_HERE);

    size_t num_plans() const { return plans_.size(); }
    /// Of the last call.
    const CompiledStep& step() const;

private:
    struct Operand {
        Type type;
        std::vector<int64_t> shape;
        bool requires_grad;
        size_t same_as;  ///< the first input that is the same tensor, maybe this one
        bool operator==(const Operand&) const = default;
    };
    struct Planned {
        std::vector<Operand> operands;
        std::vector<Tensor> inputs;
        CompiledStep step;
    };
    std::vector<Operand> operands_of(const std::vector<Tensor>& inputs, std::source_location where) const;
    void round_up(std::vector<Operand>& operands, const ShapeBuckets& buckets, std::source_location where) const;
    Planned& plan_for(const std::vector<Operand>& operands, const std::vector<Tensor>& inputs,
                      std::source_location where);
    std::string difference(const std::vector<Operand>& operands) const;
    void bring(const Tensor& from, const Tensor& to, size_t input, std::source_location where) const;

    std::shared_ptr<Backend> backend_;
    Function function_;
    CompiledFunctionOptions options_;
    std::deque<Planned> plans_;
    const Planned* last_ = nullptr;
};

}  // namespace tw::nn
