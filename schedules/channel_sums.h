// Sums over all pixels, for each channel, of what is made of a tensor's elements, as batch normalisations need them.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dsl/tensor.h"

namespace tw::schedules {

/// What one output of an operation, over [channels], makes of its only sum, of f32.
struct ChannelSum {
    std::shared_ptr<const Operation> operation;
    int output = 0;
    Expr body;                   ///< over the operation's axis
    Expr term;                   ///< what is summed, of one element of the tensor, and of inputs at its channel
    bool of_zeros = true;        ///< whether terms of elements that are zero are zero
    bool ends_with_sum = false;  ///< whether what else the body reads are inputs: it can be computed where the sum is
};
/// All sums among the outputs of `of`'s elements, or of what is made of one alone (y, y * y), or of one and inputs
/// [channels] (y - shift[c], and its square), over all dimensions but the last, whatever their axes and names; without
/// inputs, terms of zeros are zero. Each operation has all of its outputs here.
std::vector<ChannelSum> channel_sums(const Tensor& of, const std::vector<Tensor>& outputs);

/// The sums in one reduction, one output each: named `names[k]`, over `axes`, of the elements that `element` gives for
/// a channel. With bodies of their own where `ends_with_sum`.
Tensor declare_channel_sums(const std::vector<ChannelSum>& sums, const std::string& name,
                            const std::vector<std::string>& names, const std::vector<Axis>& axes,
                            const std::function<Expr(const Expr& channel)>& element);

}  // namespace tw::schedules
