// What backward() and gradients() do along the tape.
#pragma once
#include <string>
#include <vector>

#include "ops/autograd.h"

namespace tw::nn {

struct Tape {
    /// Computed tensors that the loss depends on, producers first. Throws Error as backward() does; `who` asks,
    /// `where`.
    static std::vector<Tensor> behind(const Tensor& loss, const char* who, std::source_location where);
    /// The same of any computed tensor, and of calls alone whose number is `first` or greater.
    static std::vector<Tensor> since(uint64_t first, const Tensor& last, const char* who, std::source_location where);
    /// Inputs of these that require gradients and that no call has made, each once.
    static std::vector<Tensor> leaves_of(const std::vector<Tensor>& computed);
    static void release(const std::vector<Tensor>& computed);
    /// Inputs of these that require gradients and are not among them, each once.
    static std::vector<Tensor> read_by(const std::vector<Tensor>& computed);

    /// If nobody else holds the tensor, nor its call: the inputs of that, moved to `open`.
    static void take_inputs(Tensor& tensor, std::vector<Tensor>& open);

    /// By what tensors are told apart.
    static const void* id(const Tensor& tensor) { return tensor.state_.get(); }
    static void set_grad(const Tensor& leaf, const Tensor& gradient) { leaf.state_->grad = gradient; }
    /// The adjoint of a loss: 1 as an f32 scalar.
    static Tensor one(const std::shared_ptr<Backend>& backend);
    /// Where it lies, also of a compiled step that has not run.
    static const Buffer& memory_of(const Tensor& tensor) { return tensor.state_->data; }
    static bool has_hooks(const Tensor& tensor) { return tensor.state_->hooks && !tensor.state_->hooks->calls.empty(); }
    /// Calls of backward() so far.
    static uint64_t num_backward();
    static void count_backward();
    /// What the tensor's hooks make of its gradient.
    static Tensor finished(const Tensor& tensor, const Tensor& gradient);
    /// Captured: the tensor in front of its hooks, whose gradient is what these have made.
    static Tensor unhooked(const Tensor& tensor);
    /// A tensor of that shape, which no call has made, in a part of the memory of another one.
    static Tensor in_memory_of(const Tensor& tensor, const Buffer& part, const std::vector<int64_t>& shape,
                               const std::string& name);
    /// The same of elements of a one-dimensional tensor from `first` on, that a step may overwrite as a part of it.
    static Tensor part_of(const Tensor& whole, int64_t first, const std::vector<int64_t>& shape,
                          const std::string& name);
    /// Copies a leaf's elements there, which are its memory from here on. Nobody else has the old one.
    static void move_into(const Tensor& leaf, const Tensor& whole, int64_t first);
    /// Undefined of tensors that are no such part; and where in it that begins.
    static const Tensor& whole_of(const Tensor& tensor) { return tensor.state_->whole; }
    static int64_t first_in_whole(const Tensor& tensor) { return tensor.state_->first; }
    /// Another tensor of the same memory, which no call has made.
    static Tensor without_tape(const Tensor& tensor);
};

/// What grad_enabled() is while it lives.
class [[nodiscard]] GradScope {
public:
    explicit GradScope(bool is_enabled);
    ~GradScope();
    GradScope(const GradScope&) = delete;
    GradScope& operator=(const GradScope&) = delete;

private:
    bool before_;
};

}  // namespace tw::nn
