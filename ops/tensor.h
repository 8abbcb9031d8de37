// Arrays on a device, as layers, operators and optimizers see them: data, gradient, and that a call has made them.
// Calls, gradients and hooks are links of a tape, which autograd.h has.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "dsl/host_array.h"
#include "dsl/tensor.h"
#include "ops/backend.h"

namespace tw::nn {

class Tensor;
class HookHandle;      // autograd.h
struct Node;           // autograd.h
struct OperatorState;  // operator.h
struct Tape;           // tape/tape.h

/// Gets a tensor's finished gradient and returns what goes on in its place, of the same type and shape.
using GradientHook = std::function<Tensor(const Tensor& gradient)>;

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
    /// Empty of what a step makes while it is captured. Throws Error of a result of a compiled step that has not run,
    /// but for calls that are recorded or captured themselves.
    const Buffer& data() const;
    /// Whether bytes of both are the same, as of a tensor and a view that is no copy (views.h): what overwrites one is
    /// seen in the other. Not so without data. Elements of all tensors lie side by side, in rows.
    bool shares_memory(const Tensor& other) const;
    /// What a step makes of it while it is captured, declared; undefined otherwise.
    const tw::Tensor& symbol() const;
    /// Throws Error if there is no data, or it is of a compiled step that has not run.
    void require_data() const;
    /// The same, with the line.
    void require_data(std::source_location where) const;
    /// Gives what was captured its memory, and takes it from the tape: it requires no gradient. It is nothing to be
    /// read before `has_run`, if that is given. Throws Error if it has some.
    void set_data(const Buffer& data, std::shared_ptr<const bool> has_run = nullptr) const;

    // These throw Error while the backend records or captures a step, of which they would be no part, and if the tensor
    // has no data. What the step's function makes may be copied to: it is a constant then.
    /// Waits for the device.
    HostArray to_host(TW_HERE) const;
    /// Throws Error if type or shape differ; waits for the device.
    void copy_from_host(const HostArray& host, TW_HERE) const;
    /// Dense elements from page-locked memory, in the stream's order; nobody waits (runtime/driver/pinned_buffer.h).
    /// Throws LaunchError if it has another number of bytes.
    void upload(const PinnedBuffer& from, const Stream& stream, TW_HERE) const;

    bool requires_grad() const;
    /// Of a leaf. With `false` it is frozen: it gets no gradient, loses the one that it has, and optimizers leave it as
    /// it is, until it is called anew. What was recorded or compiled before stays as it is. Throws Error for types
    /// without gradients, which floats have, and if what a call has made is to be frozen.
    const Tensor& set_requires_grad(bool on = true, TW_HERE) const;
    /// What the last backward() gave a leaf; undefined before.
    const Tensor& grad() const;
    /// The call that made it; nullptr for leaves.
    const std::shared_ptr<Node>& creator() const;
    /// From here on, each backward() and gradients() that finishes this tensor's gradient, all contributions added,
    /// calls the hook with it, before it becomes grad() or goes on to what the tensor is made of. Several hooks are
    /// called in the order in which they came. In a captured step, too, where a hook is written down with the rest; of
    /// what that step makes, register it before the tensor is read. Throws Error if it has been read there, if the
    /// tensor requires no gradient, or the hook is empty; backward() throws Error if a hook returns another type or
    /// shape.
    HookHandle on_gradient(GradientHook hook) const;

private:
    friend struct OperatorState;
    friend struct Tape;
    struct State;
    const State& state() const;  // throws Error of an undefined tensor
    std::string why_no_data() const;

    std::shared_ptr<State> state_;
};

/// "[64, 10]"
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace tw::nn
