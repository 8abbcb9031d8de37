// A convolution of images, or a gradient of one, found by what a sum of products reads.
#pragma once
#include <optional>
#include <vector>

#include "schedules/convolution.h"

namespace tw::schedules {

/// What declare_convolution() declares of these operands; that one which the pass does not read is undefined.
struct FoundConvolution {
    ConvolutionShape shape;
    ConvolutionPass pass = ConvolutionPass::Forward;
    Tensor x, w, dy;
};

/// The convolution that the tensor's only sum is, as convolve() declares it or gradients() derives it, whatever its
/// tensors, axes and their order are called: [images, height, width, channels] of bf16 or f16, with the same stride,
/// dilation and zeros around the image along both sides, and more than one channel a group. Each of the
/// convolution_candidates is declared and compared. Nothing for any other sum.
std::optional<FoundConvolution> find_convolution(const Tensor& sums, const std::vector<Tensor>& outputs);

/// What it may be by the shapes of its tensors, and by what some of its terms, drawn at random, read: the stride,
/// dilation and padding of all passes that bring the same places of images, windows and taps together.
std::vector<FoundConvolution> convolution_candidates(const Tensor& sums, const std::vector<Tensor>& outputs);

}  // namespace tw::schedules
