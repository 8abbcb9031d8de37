// A convolution of each channel by itself, or a gradient of one, found by what a sum of products reads.
#pragma once
#include <array>
#include <optional>
#include <vector>

#include "schedules/depthwise.h"

namespace tw::schedules {

/// What declare_depthwise() declares of these operands; that one which the pass does not read is undefined.
struct FoundDepthwise {
    DepthwiseWindows windows;
    ConvolutionPass pass = ConvolutionPass::Forward;
    Tensor x, w, dy;
    std::vector<int> taps;  ///< dimensions of the weight with taps of rows, where there are such, and of columns
    int channels = 0;       ///< the one with channels; all others have one element

    /// Indices of the weight's element.
    std::vector<Expr> of_weight(int rank, const Expr& channel, const Expr& row, const Expr& column) const;
};

/// The depthwise convolution that the tensor's only sum is, whatever its tensors, axes and their order are called:
///
///     y[n, p, q, c] = sum_{r, s} x[n, p stride - before + r dilation, q stride - before + s dilation, c] w[c, r, s]
///
/// or one of its gradients, as gradients() derives it, of bf16, f16 or f32, summed in f32. Each side has numbers of its
/// own, strides and dilations of at most 8. Images of one dimension have no p and r. Dimensions of w come in any order,
/// ones of one element anywhere. Nothing for any other sum, or for one tap, or where none reads the image.
std::optional<FoundDepthwise> find_depthwise(const Tensor& sums, const std::vector<Tensor>& outputs);

}  // namespace tw::schedules
