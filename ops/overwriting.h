// One operation that overwrites tensors, as an optimizer's update, a count of calls or a loss scale does: declared once
// for kernels that run now and for steps that are written down.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "ops/tensor.h"

namespace tw::nn {

/// A tensor, and what it is called in a kernel that others of its type and shape share.
struct NamedTensor {
    std::string name;
    Tensor tensor;
};

class Overwriting {
public:
    /// Declares all outputs of one operation: of what `overwritten` are now, in that order, what they become, and
    /// behind these what else is made.
    using Declare =
        std::function<std::vector<tw::Tensor>(const std::vector<tw::Tensor>& old, const std::vector<tw::Tensor>& read)>;
    Overwriting(std::vector<NamedTensor> overwritten, Declare declare);

    /// Enqueues the operation, or writes it down while a step is captured; returns what else is made. What is
    /// read, if it is as many tensors as in the last call, has the types and shapes of those. The kernel is built once
    /// for each backend and declaration. Once, in what a checkpoint makes again (tape/made_again.h).
    std::vector<Tensor> run(const std::vector<NamedTensor>& read);

private:
    std::vector<Tensor> run_now(const std::vector<NamedTensor>& read);
    std::vector<Tensor> write_down(Capture& capture, const std::vector<NamedTensor>& read) const;
    const Executable& build_for(const std::vector<NamedTensor>& read) const;

    std::vector<NamedTensor> overwritten_;
    Declare declare_;
    const Executable* built_ = nullptr;  // the backend's, which the tensors keep alive
    size_t num_read_ = 0;                // by that
};

}  // namespace tw::nn
