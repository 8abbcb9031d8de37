// Tensors of a network and the tape that they are linked by: data, gradient, creator.
//
//   nn::backward(loss);                                             // into grad() of leaves
//   nn::backward(loss, {.retain = true});                           // ... and the tape is there for another one
//   nn::Tensor dx = nn::gradients(loss, {x}, {.create_graph = true})[0];  // to be differentiated itself
//   { nn::NoGrad guard; score = network(x); }                       // no tape
#pragma once
#include <cstdint>
#include <functional>
#include <map>
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
struct Tape;           // tape/tape.h
struct MadeAgain;      // tape/made_again.h

/// Of the gradient of a view: that of what it is of (tape/memory_views.h).
using ViewGradient = std::function<Tensor(const Tensor& gradient)>;

/// Gets a tensor's finished gradient and returns what goes on in its place, of the same type and shape.
using GradientHook = std::function<Tensor(const Tensor& gradient)>;

/// A tensor's hooks, in the order in which they came.
struct GradientHooks {
    std::map<uint64_t, GradientHook> calls;
    uint64_t next = 0;
};

/// One of them.
class HookHandle {
public:
    HookHandle() = default;
    HookHandle(const std::shared_ptr<GradientHooks>& hooks, uint64_t number) : hooks_(hooks), number_(number) {}
    /// From here on it is not called any more. Nothing if that was so already, or the tensor is gone.
    void remove() const;

private:
    std::weak_ptr<GradientHooks> hooks_;
    uint64_t number_ = 0;
};

/// One recorded call. Released by backward(). Without an operation: gradients that a captured step may differentiate,
/// what is made again, and views in the memory of their one input.
struct Node {
    std::shared_ptr<const OperatorState> operation;
    std::vector<Tensor> inputs;
    std::source_location where;
    bool released = false;
    uint64_t number = next_number();        ///< later calls have greater ones
    std::shared_ptr<MadeAgain> again = {};  ///< of checkpoint(): backward() calls that, and goes along its tape
    ViewGradient gradient_of_view = {};     ///< of a view
    static uint64_t next_number();
    ~Node();  ///< of a tape of any length, on no deeper stack
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

struct Tensor::State {
    std::shared_ptr<Backend> backend;
    Type type = Type::F32;
    std::vector<int64_t> shape;
    std::string name;
    Buffer data;
    Tensor whole;       ///< one-dimensional; `data` is a part of its memory, and updated with it (optimizers/)
    int64_t first = 0;  ///< the element of `whole` that is this one's first
    std::shared_ptr<const bool> has_run;  ///< of a result of a compiled step
    tw::Tensor symbol;
    bool requires_grad = false;
    Tensor grad;
    std::shared_ptr<Node> creator;
    std::shared_ptr<GradientHooks> hooks;
    tw::Tensor unhooked;   ///< captured, with hooks: what `symbol` is a view of
    bool is_read = false;  ///< by a call on the tape

    bool is_early() const;  ///< nothing is to be read yet
};

struct BackwardOptions {
    bool retain = false;  ///< the tape stays: another backward() or gradients() may go back along it
};

/// dloss/dleaf into grad() of each leaf that requires it, replacing what was there; contributions of several uses add
/// up in a fixed order. Releases the tape from `loss` back. Throws Error if the loss is no f32 scalar, depends on
/// nothing that requires gradients, or its tape is released already. A retained tape holds tensors, no copies: what has
/// been overwritten since, by an optimizer, say, counts as it is now, which a captured step refuses.
void backward(const Tensor& loss, const BackwardOptions& options = {}, TW_HERE);

struct GradientOptions {
    bool create_graph = false;  ///< the gradients are on the tape themselves, which is retained
    bool retain = false;        ///< as of backward()
};

/// dloss/dx of each x, a leaf or computed; grad() stays as it is. With create_graph, what is made of the gradients can
/// be differentiated, by backward() or by gradients() again: an operator's derivatives are operators, of which each is
/// derived and scheduled by itself (those of nn::Operator's own backward schedules are not asked). Throws Error as
/// backward() does, and if the loss does not depend on an x that requires a gradient.
std::vector<Tensor> gradients(const Tensor& loss, const std::vector<Tensor>& with_respect_to,
                              const GradientOptions& options = {}, TW_HERE);

/// While it lives, results of calls in this thread require no gradients, and no tape is kept: scores, averages, hooks.
/// In a captured step they count as constants. Scopes may stand in scopes.
class [[nodiscard]] NoGrad {
public:
    NoGrad();
    ~NoGrad();
    NoGrad(const NoGrad&) = delete;
    NoGrad& operator=(const NoGrad&) = delete;

private:
    bool before_;
};
/// Whether no NoGrad lives in this thread.
bool grad_enabled();

/// "[64, 10]"
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace tw::nn
