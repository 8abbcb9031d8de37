// Tensors of a network and the tape that they are linked by: data, gradient, creator.
#pragma once
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "dsl/host_array.h"
#include "dsl/tensor.h"
#include "ops/backend.h"

namespace tw::nn {

class Tensor;
struct OperatorState;  // operator.h

/// One recorded call. Released by backward().
struct Node {
    std::shared_ptr<const OperatorState> operation;
    std::vector<Tensor> inputs;
    std::source_location where;
    bool released = false;
};

/// A handle to an array on a device; copies share it. What an operator computes from tensors that require gradients
/// has a creator and requires one too.
class Tensor {
public:
    Tensor() = default;
    /// Undefined content.
    Tensor(std::shared_ptr<Backend> backend, Type type, std::vector<int64_t> shape, const std::string& name = "tensor");
    /// What a step that is captured makes: no data, until the step has been compiled (compile_step.h).
    Tensor(std::shared_ptr<Backend> backend, const tw::Tensor& symbol, const std::string& name);
    /// A copy of the dense host array.
    Tensor(std::shared_ptr<Backend> backend, const HostArray& host, const std::string& name = "tensor");

    bool defined() const { return state_ != nullptr; }
    bool same(const Tensor& other) const { return state_ == other.state_; }
    const std::shared_ptr<Backend>& backend() const;
    Type type() const;
    const std::vector<int64_t>& shape() const;
    const std::string& name() const;
    /// Empty of what a step makes while it is captured.
    const Buffer& data() const;
    /// What a step makes of it while it is captured, declared; undefined otherwise.
    const tw::Tensor& symbol() const;
    /// Throws Error if there is no data.
    void require_data() const;
    /// Gives what was captured its memory. Throws Error if it has some.
    void set_data(const Buffer& data) const;

    /// Waits for the device. Throws Error while the backend records, and if the tensor has no data.
    HostArray to_host() const;
    /// Throws Error if type or shape differ; waits for the device.
    void copy_from_host(const HostArray& host) const;

    bool requires_grad() const;
    /// For leaves only; throws Error for types without gradients.
    const Tensor& set_requires_grad() const;
    /// What the last backward() gave a leaf; undefined before.
    const Tensor& grad() const;
    /// The call that made it; nullptr for leaves.
    const std::shared_ptr<Node>& creator() const;

private:
    friend void backward(const Tensor& loss);
    friend struct OperatorState;
    struct State;
    const State& state() const;  // throws Error of an undefined tensor

    std::shared_ptr<State> state_;
};

struct Tensor::State {
    std::shared_ptr<Backend> backend;
    Type type = Type::F32;
    std::vector<int64_t> shape;
    std::string name;
    Buffer data;
    tw::Tensor symbol;
    bool requires_grad = false;
    Tensor grad;
    std::shared_ptr<Node> creator;
};

/// dloss/dleaf into grad() of each leaf that requires it, replacing what was there; contributions of several uses add
/// up in a fixed order. Releases the tape from `loss` back. Throws Error if the loss is no f32 scalar, depends on
/// nothing that requires gradients, or its tape is released already.
void backward(const Tensor& loss);

/// "[64, 10]"
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace tw::nn
