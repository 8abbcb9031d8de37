#include "schedules/convolve.h"

#include <algorithm>
#include <functional>

#include "dsl/differentiate.h"
#include "dsl/simplify.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

using Indices = std::vector<Expr>;

/// An image or a weight. Extents and indices are [first, inner..., channel], whatever the layout is.
struct ConvolvedImages {
    Tensor tensor;
    Layout layout = Layout::ChannelsLast;

    Shape shape() const { return with_channels_last(layout, Shape(tensor.shape().begin(), tensor.shape().end())); }
    int dimension_of_channels() const { return layout == Layout::ChannelsFirst ? 1 : tensor.rank() - 1; }
    int64_t channels() const { return require_constant(tensor.shape()[static_cast<size_t>(dimension_of_channels())]); }
    Expr at(const Indices& indices) const { return tensor.read(operands(indices)); }
    /// Zero beyond the ends.
    Expr around(const Indices& indices) const { return padded(tensor, 0).read(operands(indices)); }

private:
    std::vector<Operand> operands(const Indices& indices) const {
        const Indices own = in_layout(layout, indices);
        return {own.begin(), own.end()};
    }
};

/// A tensor in that layout, of extents and elements as ConvolvedImages have them.
Tensor declared(const std::string& name, const Shape& shape, Layout layout,
                const std::function<Expr(const Indices&)>& element, TW_HERE) {
    return compute(
        name, in_layout(layout, shape), [&](const Indices& at) { return element(with_channels_last(layout, at)); },
        where);
}

const char* extent_of_channels(Layout layout) { return layout == Layout::ChannelsFirst ? "second" : "last"; }

/// What a weight [F, taps..., C/groups] says.
struct Filters {
    int64_t filters, groups, group_channels;
    std::vector<int64_t> taps;

    int64_t group_filters() const { return filters / groups; }
    int64_t channels() const { return groups * group_channels; }
};

Filters filters_of(const std::string& what, const Tensor& x, const ConvolvedImages& of, int64_t groups,
                   std::source_location where) {
    const Tensor& weight = of.tensor;
    user_check(
        x.rank() == weight.rank() && x.rank() >= 3 && x.rank() <= 5 && x.type() == weight.type() && is_float(x.type()),
        where,
        "{}: x is {} {}, the weight {} {}; give x {} and a weight {}, of one float type, with 1 to 3 dimensions of "
        "extents",
        what, name_of(x.type()), text_of_shape(x), name_of(weight.type()), text_of_shape(weight),
        dimensions_of_images(of.layout),
        of.layout == Layout::ChannelsFirst ? "[filters, channels of a group, taps...]"
                                           : "[filters, taps..., channels of a group]");
    Filters f{constant_extent(what, weight, 0, where),
              groups,
              constant_extent(what, weight, of.dimension_of_channels(), where),
              {}};
    for (int d = 0; d + 2 < weight.rank(); ++d)
        f.taps.push_back(constant_extent(what, weight, d + first_extent(of.layout), where));
    user_check(groups > 0 && f.filters % groups == 0, where,
               "{}: {} groups do not divide the {} filters of the weight {}; give a divisor", what, groups, f.filters,
               text_of_shape(weight));
    return f;
}

void check_bias(const std::string& what, const Tensor& bias, int64_t channels, const Tensor& x, const Tensor& weight,
                std::source_location where) {
    if (!bias.defined()) return;
    const bool fits = bias.rank() == 1 && is_constant(bias.shape()[0], channels);
    user_check(fits && (bias.type() == x.type() || bias.type() == sum_type(x.type())), where,
               "{}: the weight is {} {}, the bias {} {}; give a bias [{}] of the same type or of {}", what,
               name_of(weight.type()), text_of_shape(weight), name_of(bias.type()), text_of_shape(bias), channels,
               name_of(sum_type(x.type())));
}

/// What a sum over windows reads.
struct Operands {
    ConvolvedImages image, weight;
    WindowDimensions windows;
};

/// One element of the result: a sum over taps and channels of a group. The image is padded by zeros.
Expr sum_of_window(const Operands& of, const Filters& filters, const Indices& at) {
    const Type type = sum_type(of.image.tensor.type());
    std::vector<Axis> axes = tap_axes(of.windows);
    const Expr filter = at.back();
    Expr channel = integer(0), group = simplify(filter / filters.group_filters());
    Indices of_x = {at[0]}, of_weight = {filter};
    for (size_t d = 0; d < of.windows.size(); ++d) {
        of_x.push_back(of.windows[d].place(at[d + 1], axes[d]));
        of_weight.emplace_back(axes[d]);
    }
    if (filters.group_channels != 1) channel = axes.emplace_back(reduce_axis("c", filters.group_channels));
    of_x.push_back(filters.groups == 1 ? channel : simplify(group * filters.group_channels + channel));
    of_weight.push_back(channel);
    return sum(cast(type, of.image.around(of_x)) * cast(type, of.weight.at(of_weight)), axes);
}

/// A copy, channels last, with zeros behind them, up to a multiple.
ConvolvedImages filled_up(const std::string& name, const ConvolvedImages& of, int64_t multiple) {
    Shape shape = of.shape();
    shape.back() = rounded_up(of.channels(), multiple);
    return {compute(name, shape, [&](const Indices& at) { return of.around(at); })};
}

/// Copies whose last dimension has all taps along the last one of images beside each other, of so many elements each:
/// those windows have one tap of more channels.
Operands with_taps_joined(const std::string& name, const Operands& of, int64_t channels, int64_t multiple) {
    int64_t each = 1;  // a power of two: a copy's thread knows tap and channel of each element
    while (each < channels) each *= 2;
    const WindowDimension last = of.windows.back();
    const int64_t terms = rounded_up(last.taps * each, multiple);
    auto joined = [&](const Indices& at, const ConvolvedImages& source, const std::function<Expr(Expr)>& place) {
        Indices from = at;
        from[from.size() - 2] = place(at.back() / each);
        from.back() = at.back() % each;
        return select(at.back() / each < last.taps && at.back() % each < channels, source.around(from),
                      constant(source.tensor.type(), 0.0));
    };
    Shape images = of.image.shape(), taps = of.weight.shape();
    images[images.size() - 2] = last.windows(), taps[taps.size() - 2] = 1;
    images.back() = taps.back() = terms;
    Operands result{{compute(name + "_x", images,
                             [&](const Indices& at) {
                                 return joined(at, of.image,
                                               [&](Expr tap) { return last.place(at[at.size() - 2], tap); });
                             })},
                    {compute(name + "_weight", taps,
                             [&](const Indices& at) { return joined(at, of.weight, [](Expr tap) { return tap; }); })},
                    of.windows};
    result.windows.back() = {last.windows(), 1, 1, 1, 0};
    return result;
}

/// The operands or copies of them, of whole units of channels.
Operands in_units(const std::string& name, const Operands& of, int64_t unit) {
    const int64_t channels = of.weight.channels();
    if (channels % unit == 0) return of;
    if (channels < unit && of.windows.back().taps > 1) return with_taps_joined(name, of, channels, unit);
    return {filled_up(name + "_x", of.image, unit), filled_up(name + "_weight", of.weight, unit), of.windows};
}

Expr with_bias(const Expr& value, const Tensor& bias, const Expr& channel) {
    return bias.defined() ? value + cast(value.type(), bias(channel)) : value;
}

/// sum of dy over all dimensions but that of channels
Tensor gradient_of_bias(const std::string& name, const Tensor& bias, const ConvolvedImages& dy) {
    return compute(name, {bias.shape()[0]}, [&](Expr channel) {
        std::vector<Axis> axes;
        const Shape shape = dy.shape();
        for (size_t d = 0; d + 1 < shape.size(); ++d) axes.push_back(reduce_axis("n", shape[d]));
        Indices at(axes.begin(), axes.end());
        at.push_back(channel);
        return sum(dy.at(at), axes);
    });
}

/// Whether gradients() would find a sum over windows and not over taps: without strides, where there are fewer of them
/// (or, with holes, as many); filters would depend on the pixel.
bool has_few_windows(const WindowDimensions& windows) {
    const bool has_stride = std::ranges::any_of(windows, [](const WindowDimension& w) { return w.stride > 1; });
    return !has_stride && std::ranges::any_of(windows, [](const WindowDimension& w) {
        return w.taps + (w.dilation > 1 ? 1 : 0) > w.windows();
    });
}

/// dx[n, i.., c] = sum over taps r.. and filters f of dy[n, (i + padding - r dilation).., f] w[f, r.., c]: each stride
/// is 1, zeros lie around dy.
Tensor sum_of_flipped(const std::string& name, const Operands& of, const Filters& filters, const ConvolvedImages& dy) {
    return declared(name, of.image.shape(), of.image.layout, [&](const Indices& at) {
        std::vector<Axis> axes = tap_axes(of.windows);
        const Axis f = reduce_axis("f", filters.group_filters());
        const Expr group = simplify(at.back() / filters.group_channels),
                   filter = filters.groups == 1 ? f : simplify(group * filters.group_filters() + f);
        Indices of_dy = {at[0]}, of_weight = {filter};
        for (size_t d = 0; d < of.windows.size(); ++d) {
            const WindowDimension& w = of.windows[d];
            of_dy.push_back(at[d + 1] + w.padding.before - axes[d] * w.dilation);
            of_weight.emplace_back(axes[d]);
        }
        of_dy.push_back(filter);
        of_weight.push_back(simplify(at.back() % filters.group_channels));
        axes.push_back(f);
        const Type type = sum_type(dy.tensor.type());
        return sum(cast(type, dy.around(of_dy)) * cast(type, of.weight.at(of_weight)), axes);
    });
}

}  // namespace

Tensor convolve(const std::string& name, const Tensor& x, const Tensor& weight, const Tensor& bias,
                const ConvolutionOptions& o, std::source_location where) {
    CalledFrom caller(where);
    const std::string what = "convolution";
    const ConvolvedImages given{x, o.layout}, filters_given{weight, o.layout};
    Filters filters = filters_of(what, x, filters_given, o.groups, where);
    const int64_t channels = constant_extent(what, x, given.dimension_of_channels(), where);
    user_check(channels == filters.channels(), where,
               "{}: x is {}, the weight {}, in {} groups; the {} extent of the weight times the groups must be the "
               "channels of x, its {} extent; give .layout = Layout::{} where that is the {} one",
               what, text_of_shape(x), text_of_shape(weight), o.groups, extent_of_channels(o.layout),
               extent_of_channels(o.layout), o.layout == Layout::ChannelsLast ? "ChannelsFirst" : "ChannelsLast",
               extent_of_channels(o.layout == Layout::ChannelsLast ? Layout::ChannelsFirst : Layout::ChannelsLast));
    user_check(o.unit > 0, where, "{}: a unit of {} channels; give 1 for channels as they are, or a multiple", what,
               o.unit);
    check_bias(what, bias, filters.filters, x, weight, where);
    WindowDimensions windows = window_dimensions(
        what, x, filters.taps, {.stride = o.stride, .dilation = o.dilation, .padding = o.padding, .layout = o.layout},
        where);
    const ConvolvedImages image{bordered(name + "_image", x, o.padding, o.mode, o.layout, where), o.layout};
    const Shape shape = shape_of_windows(x, windows, filters.filters);
    if (o.mode != PaddingMode::Zeros)
        for (WindowDimension& w : windows) w.extent += w.padding.before + w.padding.after, w.padding = 0;
    const Operands plain{image, filters_given, windows}, read = o.groups == 1 ? in_units(name, plain, o.unit) : plain;
    filters.group_channels = read.weight.channels();
    auto element = [&](const Indices& at) {
        return cast(x.type(), with_bias(sum_of_window(read, filters, at), bias, at.back()));
    };
    const Tensor y = declared(name, shape, o.layout, element, where);
    if (!has_few_windows(read.windows)) return y;
    std::vector<Tensor> inputs = {read.image.tensor, read.weight.tensor};
    if (bias.defined()) inputs.push_back(bias);
    return with_gradient(y, inputs, [=, layout = o.layout](const Tensor&, const Tensor& dy) {
        const ConvolvedImages adjoint{dy, layout};
        std::vector<Tensor> adjoints = {sum_of_flipped("d_" + name + "_image", read, filters, adjoint),
                                        gradients(y, dy, {read.weight.tensor})[0]};
        if (bias.defined()) adjoints.push_back(gradient_of_bias("d_" + name + "_bias", bias, adjoint));
        return adjoints;
    });
}

namespace {

constexpr const char* transposed = "transposed convolution";

/// A convolution from images of the result's shape to those of x.
struct Map {
    std::string name;
    Filters filters;
    WindowDimensions windows;
    ConvolvedImages weight;
    Shape shape;  // of x, channels last

    Tensor of(const Tensor& image) const {
        const Operands operands{{image, weight.layout}, weight, windows};
        return declared(name, shape, weight.layout,
                        [&](const Indices& at) { return sum_of_window(operands, filters, at); });
    }
};

Shape shape_of_result(const Tensor& x, const Filters& filters, const TransposedOptions& o, std::source_location where) {
    const size_t count = filters.taps.size();
    check_entries(transposed, "stride", o.stride.size(), count, x, where);
    check_entries(transposed, "dilation", o.dilation.size(), count, x, where);
    check_entries(transposed, "padding", o.padding.size(), count, x, where);
    check_entries(transposed, "output_padding", o.output_padding.size(), count, x, where);
    Shape shape = {x.shape()[0]};
    for (size_t d = 0; d < count; ++d) {
        const int dimension = static_cast<int>(d) + first_extent(o.layout);
        const int64_t extent = constant_extent(transposed, x, dimension, where);
        const int64_t stride = entry_for(o.stride, d), dilation = entry_for(o.dilation, d);
        const int64_t more = entry_for(o.output_padding, d);
        const auto [before, after] = entry_for(o.padding, d);
        const int64_t result = (extent - 1) * stride - before - after + (filters.taps[d] - 1) * dilation + 1 + more;
        user_check(more >= 0 && more < stride, where,
                   "{}: output_padding {} with stride {} along dimension {} of x {}; give 0 to {}", transposed, more,
                   stride, dimension, text_of_shape(x), stride - 1);
        user_check(extent > 0 && result > 0, where,
                   "{}: dimension {} of x {} would become {}, with {} taps, stride {}, dilation {} and {} and {} cut "
                   "off; take less padding",
                   transposed, dimension, text_of_shape(x), result, filters.taps[d], stride, dilation, before, after);
        shape.emplace_back(result);
    }
    shape.emplace_back(filters.channels());
    return in_layout(o.layout, shape);
}

/// The body of a tensor, where it stands for itself.
Expr body_at(const Tensor& tensor, const std::vector<Expr>& at) {
    Substitution rename;
    for (size_t d = 0; d < at.size(); ++d) rename.emplace_back(tensor.operation()->axes[d], at[d]);
    return substitute(tensor.operation()->outputs[0].body, rename);
}

}  // namespace

Tensor convolve_transposed(const std::string& name, const Tensor& x, const Tensor& weight, const Tensor& bias,
                           const TransposedOptions& o, std::source_location where) {
    CalledFrom caller(where);
    const ConvolvedImages given{x, o.layout}, map_weight{weight, o.layout};
    const Filters filters = filters_of(transposed, x, map_weight, o.groups, where);
    user_check(constant_extent(transposed, x, given.dimension_of_channels(), where) == filters.filters, where,
               "{}: x is {}, the weight {}; the {} extent of x must be the first of the weight", transposed,
               text_of_shape(x), text_of_shape(weight), extent_of_channels(o.layout));
    check_bias(transposed, bias, filters.channels(), x, weight, where);
    const Shape shape = shape_of_result(x, filters, o, where);
    const Tensor image = input("image", sum_type(x.type()), shape);
    const Map map{"d_" + name + "_windows", filters,
                  window_dimensions(
                      transposed, image, filters.taps,
                      {.stride = o.stride, .dilation = o.dilation, .padding = o.padding, .layout = o.layout}, where),
                  map_weight, given.shape()};
    // <map(image), x> = <image, y> for all images: y is the gradient of the left by the image.
    const Tensor sums = gradients(map.of(image), x, {image}, where)[0];
    auto element = [&](const std::vector<Expr>& at) {
        return cast(x.type(), with_bias(body_at(sums, at), bias, with_channels_last(o.layout, at).back()));
    };
    // ... and so is dx = map(dy); dw is that of <map(dy), x>.
    auto rule = [=](const Tensor&, const Tensor& dy) {
        const Tensor of_dy = map.of(dy);
        std::vector<Tensor> adjoints = {of_dy, gradients(of_dy, x, {weight})[0]};
        if (bias.defined()) adjoints.push_back(gradient_of_bias("d_" + name + "_bias", bias, {dy, map.weight.layout}));
        return adjoints;
    };
    std::vector<Tensor> inputs = {x, weight};
    if (bias.defined()) inputs.push_back(bias);
    return with_gradient(compute(name, shape, element, where), inputs, rule, where);
}

}  // namespace tw::schedules
