// The tape that tensors of a network are linked by: creators, gradients, hooks.
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

#include "dsl/tensor.h"
#include "ops/tensor.h"

namespace tw::nn {

struct MadeAgain;     // tape/made_again.h
struct FunctionCall;  // tape/function_call.h

/// Of the gradient of a view: that of what it is of (tape/memory_views.h).
using ViewGradient = std::function<Tensor(const Tensor& gradient)>;

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
/// what is made again, functions with gradients of their own, and views in the memory of their one input.
struct Node {
    std::shared_ptr<const OperatorState> operation;
    std::vector<Tensor> inputs;
    std::source_location where;
    bool released = false;
    uint64_t number = next_number();        ///< later calls have greater ones
    std::shared_ptr<MadeAgain> again = {};  ///< of checkpoint(): backward() calls that, and goes along its tape
    ViewGradient gradient_of_view = {};     ///< of a view
    std::shared_ptr<const FunctionCall> function = {};  ///< of Function, that this is a result of
    size_t result = 0;                                  ///< its number among these
    static uint64_t next_number();
    ~Node();  ///< of a tape of any length, on no deeper stack
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

}  // namespace tw::nn
