// Convolutions of a network. The declarations, their shapes, types and errors: schedules/convolve.h. Shapes are said
// with channels last; options may have them first.
#pragma once
#include <string>
#include <vector>

#include "ops/modules/module.h"
#include "ops/operator.h"
#include "ops/parameters.h"
#include "schedules/convolve.h"

namespace tw::nn {

using schedules::ConvolutionOptions;
using schedules::Layout;
using schedules::PaddingMode;
using schedules::Sides;
using schedules::TransposedOptions;

/// schedules::convolve. x [images, length, channels], weight [filters, taps, channels of a group], bias [filters] or
/// undefined. Throws Error where x has other dimensions, and what convolve throws.
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const ConvolutionOptions& options = {},
              TW_HERE);
/// Of x [images, height, width, channels] and weight [filters, taps, taps, channels of a group].
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const ConvolutionOptions& options = {},
              TW_HERE);
/// Of x [images, depth, height, width, channels] and weight [filters, taps, taps, taps, channels of a group].
Tensor conv3d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const ConvolutionOptions& options = {},
              TW_HERE);
/// schedules::convolve_transposed, of one to three dimensions. x [images, extents..., filters], weight [filters,
/// taps..., channels of a group], bias [channels] or undefined.
Tensor conv_transpose(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                      const TransposedOptions& options = {}, TW_HERE);

/// Filters, `weight`, and a bias. They start uniform in +-1/sqrt(terms of a sum), from the seed alone.
class ConvolutionLayer : public Module {
public:
    /// `taps` has a number for each of the dimensions, or one for all. Throws Error where it has others, or the groups
    /// do not divide `in` and `out`.
    ConvolutionLayer(int dimensions, const std::shared_ptr<Backend>& backend, int64_t in, int64_t out,
                     const std::vector<int64_t>& taps, uint64_t seed, ConvolutionOptions options);
    Tensor operator()(const Tensor& x, TW_HERE) const;

private:
    int dimensions_;
    ConvolutionOptions options_;
    Tensor weight_, bias_;
};

/// nn::Conv2d(backend, 3, 16, {3}, seed, {.padding = {1}})
template <int Dimensions>
class Convolution : public ConvolutionLayer {
public:
    Convolution(const std::shared_ptr<Backend>& backend, int64_t in, int64_t out, const std::vector<int64_t>& taps,
                uint64_t seed, const ConvolutionOptions& options = {})
        : ConvolutionLayer(Dimensions, backend, in, out, taps, seed, options) {}
};
using Conv1d = Convolution<1>;
using Conv2d = Convolution<2>;
using Conv3d = Convolution<3>;

}  // namespace tw::nn
