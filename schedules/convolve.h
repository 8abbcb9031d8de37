// Convolutions of one to three dimensions, and their transposes, as expressions.
#pragma once
#include "schedules/windows.h"

namespace tw::schedules {

/// Lists hold a number for each dimension of the images, or one for all of them:
///
///     {.stride = {2}, .padding = {{1, 1}, {0, 2}}, .groups = 4}
struct ConvolutionOptions {
    std::vector<int64_t> stride = {1};    ///< between windows
    std::vector<int64_t> dilation = {1};  ///< between the taps of a window
    std::vector<Sides> padding = {0};
    int64_t groups = 1;  ///< of channels, each with filters of its own; as many as channels: depthwise
    PaddingMode mode = PaddingMode::Zeros;
    int64_t unit = 1;  ///< x and the weight are read as copies, `name`_x and `name`_weight, whose last dimension is a
                       ///< multiple of this: with zeros behind the channels, or, of fewer of them, with those of all
                       ///< taps along the last dimension of images together; if groups is 1
    Layout layout = Layout::ChannelsLast;  ///< of x, the weight and y
};

/// The tensor `name`, y[n, p..., f] = sum over taps r... and channels c of
///     x[n, (p stride + r dilation - padding.before)..., g C/groups + c] w[f, r..., c], + bias[f]
/// where g = f / (F/groups), and beside x stands what the mode says.
///
///     x [N, extents..., C], weight [F, taps..., C/groups], bias [F] or undefined -> y [N, windows..., F]
///     windows = (extent + padding.before + padding.after - (taps - 1) dilation - 1) / stride + 1, rounded down
///
/// With channels first: x [N, C, extents...], weight [F, C/groups, taps...] -> y [N, F, windows...]. Copies that a unit
/// asks for have channels last.
///
/// The gradient by x is a sum over taps, also of images with fewer windows than those. All of one float type (the bias
/// may be f32), y too; products and sums are f32, of f64 f64. N may be a named size,
/// the other extents are constants. Throws Error with both shapes where they do not fit or types differ, and what
/// window_dimensions() and bordered() throw.
Tensor convolve(const std::string& name, const Tensor& x, const Tensor& weight, const Tensor& bias,
                const ConvolutionOptions& options, TW_HERE);

struct TransposedOptions {
    std::vector<int64_t> stride = {1}, dilation = {1};  ///< of the convolution that is transposed
    std::vector<Sides> padding = {0};                   ///< of that, too: cut off from the result
    std::vector<int64_t> output_padding = {0};          ///< what the result has behind its end beyond the least extent
    int64_t groups = 1;
    Layout layout = Layout::ChannelsLast;  ///< of x, the weight and y
};

/// The tensor `name`: what the transpose of convolve() with this weight, a linear map, makes of x: images grow by the
/// stride.
///
///     x [N, extents..., F], weight [F, taps..., C/groups], bias [C] or undefined -> y [N, results..., C]
///     results = (extent - 1) stride - padding.before - padding.after + (taps - 1) dilation + 1 + output_padding
///
/// With channels first: x [N, F, extents...], weight [F, C/groups, taps...] -> y [N, C, results...].
///
/// Each element sums the taps that meet its phase, and no others, and its gradient is a convolution. Types and errors
/// are those of convolve(); output_padding is less than the stride.
Tensor convolve_transposed(const std::string& name, const Tensor& x, const Tensor& weight, const Tensor& bias,
                           const TransposedOptions& options, TW_HERE);

}  // namespace tw::schedules
