// Sums over all pixels, for each channel, of what is made of a tensor's elements, as batch normalisations need them.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dsl/tensor.h"

namespace tw::schedules {

/// Whether the reducer adds f32, each component of its own.
bool adds_f32(const ReducerNode& reducer);
/// The sums of terms of f32, in one reduction.
std::vector<Expr> sums_of(const std::vector<Expr>& terms, const std::vector<Axis>& axes);

/// What one output of an operation, over [channels], makes of its only sum, of f32.
struct ChannelSum {
    std::shared_ptr<const Operation> operation;
    int output = 0;
    Expr body;                   ///< over the operation's axis
    Expr term;                   ///< what is summed, of one element of the tensor, and of others at its channel
    Tensor beside = {};          ///< whose element at the same place the term reads as well, or undefined
    bool of_zeros = true;        ///< whether terms of elements that are zero are zero
    bool ends_with_sum = false;  ///< whether what else the body reads does not depend on the tensor: it can be computed
                                 ///< where the sum is
};
/// All sums among the outputs of `of`'s elements, or of what is made of one alone (y, y * y), of one and of tensors
/// [channels] that do not depend on it (y - shift[c], and its square), or of one and the element of another tensor of
/// its shape and type at the same place (dy * (x - mean[c])), over all dimensions but the last, whatever their axes and
/// names; of one alone, terms of zeros are zero. Each operation has all of its outputs here.
std::vector<ChannelSum> channel_sums(const Tensor& of, const std::vector<Tensor>& outputs);

/// The sums in one reduction, one output each: named `names[k]`, over `axes`, of the elements that `element` gives of
/// the tensor, or of the one beside it, for a channel. With bodies of their own where `ends_with_sum`.
Tensor declare_channel_sums(const std::vector<ChannelSum>& sums, const std::string& name,
                            const std::vector<std::string>& names, const std::vector<Axis>& axes,
                            const std::function<Expr(const Tensor& tensor, const Expr& channel)>& element);

}  // namespace tw::schedules
