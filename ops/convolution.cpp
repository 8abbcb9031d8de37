#include "ops/convolution.h"

#include <cmath>

#include <fmt/ranges.h>

#include "schedules/channels_last.h"
#include "schedules/choose_windows.h"
#include "schedules/find_convolution.h"
#include "support/error.h"

namespace tw::nn {
namespace {

std::string text_of(const std::vector<Sides>& padding) {
    std::string text;
    for (const Sides& sides : padding) text += fmt::format("{}+{} ", sides.before, sides.after);
    return text;
}

const char* text_of(Layout layout) { return layout == Layout::ChannelsFirst ? " channels first" : ""; }

std::string text_of(const ConvolutionOptions& o) {
    return fmt::format("stride {} dilation {} padding {} groups {} mode {}{}", o.stride, o.dilation, text_of(o.padding),
                       o.groups, static_cast<int>(o.mode), text_of(o.layout));
}

std::string text_of(const TransposedOptions& o) {
    return fmt::format("stride {} dilation {} padding {} output_padding {} groups {}{}", o.stride, o.dilation,
                       text_of(o.padding), o.output_padding, o.groups, text_of(o.layout));
}

std::vector<Tensor> operands(const Tensor& x, const Tensor& weight, const Tensor& bias) {
    return bias.defined() ? std::vector<Tensor>{x, weight, bias} : std::vector<Tensor>{x, weight};
}

/// The third of the inputs, if there are three.
tw::Tensor bias_of(const std::vector<tw::Tensor>& in) { return in.size() == 3 ? in[2] : tw::Tensor(); }

/// Where boxes of whole units of channels bring the sums to tensor cores, x and the weight are copied for that; of what
/// choose_schedule declares anew it makes such copies itself.
tw::Tensor declared(const std::vector<tw::Tensor>& in, ConvolutionOptions options, bool has_units) {
    auto is_on_units = [](const tw::Tensor& y) {
        const tw::Tensor sums = schedules::with_channels_moved(y);
        return !schedules::window_products(sums, {sums}).empty();
    };
    const tw::Tensor y = schedules::convolve("y", in[0], in[1], bias_of(in), options);
    const tw::Tensor sums = has_units ? schedules::with_channels_moved(y) : y;
    if (!has_units || is_on_units(y) || schedules::find_convolution(sums, {sums})) return y;
    options.unit = 8;  // of 2 bytes
    const tw::Tensor of_copies = schedules::convolve("y", in[0], in[1], bias_of(in), options);
    return is_on_units(of_copies) ? of_copies : y;
}

Tensor convolution(int dimensions, const Tensor& x, const Tensor& weight, const Tensor& bias,
                   const ConvolutionOptions& options, std::source_location where) {
    const std::string name = fmt::format("conv{}d", dimensions);
    user_check(x.shape().size() == static_cast<size_t>(dimensions) + 2, where,
               "{}: x is {}, the weight {}; give {} with {} extents, or call the convolution of as many dimensions",
               name, shape_text(x.shape()), shape_text(weight.shape()), schedules::dimensions_of_images(options.layout),
               dimensions);
    const Target& target = x.backend()->target();
    const bool has_units = target.has_wgmma && target.has_tma;
    const std::string text = text_of(options) + (has_units ? " units" : "");
    const Operator& op =
        operator_with(name, text, [=](const std::vector<tw::Tensor>& in) { return declared(in, options, has_units); });
    return op(operands(x, weight, bias), where);
}

}  // namespace

Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvolutionOptions& options,
              std::source_location where) {
    return convolution(1, x, weight, bias, options, where);
}
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvolutionOptions& options,
              std::source_location where) {
    return convolution(2, x, weight, bias, options, where);
}
Tensor conv3d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvolutionOptions& options,
              std::source_location where) {
    return convolution(3, x, weight, bias, options, where);
}

Tensor conv_transpose(const Tensor& x, const Tensor& weight, const Tensor& bias, const TransposedOptions& options,
                      std::source_location where) {
    const Operator& op =
        operator_with("conv_transpose", text_of(options), [options](const std::vector<tw::Tensor>& in) {
            return schedules::convolve_transposed("y", in[0], in[1], bias_of(in), options);
        });
    return op(operands(x, weight, bias), where);
}

ConvolutionLayer::ConvolutionLayer(int dimensions, const std::shared_ptr<Backend>& backend, int64_t in, int64_t out,
                                   const std::vector<int64_t>& taps, uint64_t seed, ConvolutionOptions options)
    : dimensions_(dimensions), options_(std::move(options)) {
    const int64_t groups = options_.groups;
    if (taps.size() != 1 && taps.size() != static_cast<size_t>(dimensions))
        throw_error(Error, "Conv{}d: {} numbers of taps; give one for each dimension, or one for all", dimensions,
                    taps.size());
    if (groups < 1 || in % groups != 0 || out % groups != 0)
        throw_error(Error, "Conv{}d: {} groups do not divide {} channels and {} filters; give a common divisor",
                    dimensions, groups, in, out);
    std::vector<int64_t> shape = {out};
    int64_t terms = in / groups;
    for (int d = 0; d < dimensions; ++d) {
        shape.push_back(schedules::entry_for(taps, static_cast<size_t>(d)));
        terms *= shape.back();
    }
    shape.push_back(in / groups);
    shape = schedules::in_layout(options_.layout, shape);
    const double bound = 1 / std::sqrt(static_cast<double>(terms));
    weight_ = register_parameter("weight", uniform_parameter(backend, shape, bound, 2 * seed, "weight"));
    bias_ = register_parameter("bias", uniform_parameter(backend, {out}, bound, 2 * seed + 1, "bias"));
}

Tensor ConvolutionLayer::operator()(const Tensor& x, std::source_location where) const {
    const Scope here = scope();
    return convolution(dimensions_, x, weight_, bias_, options_, where);
}

}  // namespace tw::nn
