#include "schedules/convolve.h"

#include <algorithm>
#include <functional>

#include "dsl/differentiate.h"
#include "dsl/simplify.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

/// What a weight [F, taps..., C/groups] says.
struct Filters {
    int64_t filters, groups, group_channels;
    std::vector<int64_t> taps;

    int64_t group_filters() const { return filters / groups; }
    int64_t channels() const { return groups * group_channels; }
};

Filters filters_of(const std::string& what, const Tensor& x, const Tensor& weight, int64_t groups,
                   std::source_location where) {
    user_check(
        x.rank() == weight.rank() && x.rank() >= 3 && x.rank() <= 5 && x.type() == weight.type() && is_float(x.type()),
        where,
        "{}: x is {} {}, the weight {} {}; give x [images, extents..., channels] and a weight [filters, taps..., "
        "channels of a group], of one float type, with 1 to 3 dimensions between",
        what, name_of(x.type()), text_of_shape(x), name_of(weight.type()), text_of_shape(weight));
    Filters f{
        constant_extent(what, weight, 0, where), groups, constant_extent(what, weight, weight.rank() - 1, where), {}};
    for (int d = 1; d + 1 < weight.rank(); ++d) f.taps.push_back(constant_extent(what, weight, d, where));
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

/// One element of the result: a sum over taps and channels of a group. `x` is padded by zeros.
Expr sum_of_window(const Tensor& x, const Tensor& weight, const WindowDimensions& windows, const Filters& filters,
                   const std::vector<Expr>& at) {
    const Type type = sum_type(x.type());
    std::vector<Axis> axes = tap_axes(windows);
    const Expr filter = at.back();
    Expr channel = integer(0), group = simplify(filter / filters.group_filters());
    std::vector<Operand> of_x = {at[0]}, of_weight = {filter};
    for (size_t d = 0; d < windows.size(); ++d) {
        of_x.emplace_back(windows[d].place(at[d + 1], axes[d]));
        of_weight.emplace_back(axes[d]);
    }
    if (filters.group_channels != 1) channel = axes.emplace_back(reduce_axis("c", filters.group_channels));
    of_x.emplace_back(filters.groups == 1 ? channel : simplify(group * filters.group_channels + channel));
    of_weight.emplace_back(channel);
    return sum(cast(type, padded(x, 0).read(of_x)) * cast(type, weight.read(of_weight)), axes);
}

/// What a sum over windows reads.
struct Operands {
    Tensor image, weight;
    WindowDimensions windows;
};

Expr element_of(const Tensor& tensor, const std::vector<Expr>& at) {
    return padded(tensor, 0).read(std::vector<Operand>(at.begin(), at.end()));
}

/// A copy with zeros behind the last dimension, up to a multiple.
Tensor filled_up(const std::string& name, const Tensor& tensor, int64_t multiple) {
    Shape shape(tensor.shape().begin(), tensor.shape().end());
    shape.back() = rounded_up(require_constant(tensor.shape().back()), multiple);
    return compute(name, shape, [&](const std::vector<Expr>& at) { return element_of(tensor, at); });
}

/// Copies whose last dimension has all taps along the last one of images beside each other, of so many elements each:
/// those windows have one tap of more channels.
Operands with_taps_joined(const std::string& name, const Operands& of, int64_t channels, int64_t multiple) {
    int64_t each = 1;  // a power of two: a copy's thread knows tap and channel of each element
    while (each < channels) each *= 2;
    const WindowDimension last = of.windows.back();
    const int64_t terms = rounded_up(last.taps * each, multiple);
    auto joined = [&](const std::vector<Expr>& at, const Tensor& tensor, const std::function<Expr(Expr)>& place) {
        std::vector<Expr> from = at;
        from[from.size() - 2] = place(at.back() / each);
        from.back() = at.back() % each;
        return select(at.back() / each < last.taps && at.back() % each < channels, element_of(tensor, from),
                      constant(tensor.type(), 0.0));
    };
    Shape images(of.image.shape().begin(), of.image.shape().end()),
        taps(of.weight.shape().begin(), of.weight.shape().end());
    images[images.size() - 2] = last.windows(), taps[taps.size() - 2] = 1;
    images.back() = taps.back() = terms;
    Operands result{
        compute(name + "_x", images,
                [&](const std::vector<Expr>& at) {
                    return joined(at, of.image, [&](Expr tap) { return last.place(at[at.size() - 2], tap); });
                }),
        compute(name + "_weight", taps,
                [&](const std::vector<Expr>& at) { return joined(at, of.weight, [](Expr tap) { return tap; }); }),
        of.windows};
    result.windows.back() = {last.windows(), 1, 1, 1, 0};
    return result;
}

/// The operands or copies of them, of whole units of channels.
Operands in_units(const std::string& name, const Operands& of, int64_t unit) {
    const int64_t channels = require_constant(of.weight.shape().back());
    if (channels % unit == 0) return of;
    if (channels < unit && of.windows.back().taps > 1) return with_taps_joined(name, of, channels, unit);
    return {filled_up(name + "_x", of.image, unit), filled_up(name + "_weight", of.weight, unit), of.windows};
}

Expr with_bias(const Expr& value, const Tensor& bias, const Expr& channel) {
    return bias.defined() ? value + cast(value.type(), bias(channel)) : value;
}

/// sum of dy over all but the last dimension
Tensor gradient_of_bias(const std::string& name, const Tensor& bias, const Tensor& dy) {
    return compute(name, {bias.shape()[0]}, [&](Expr channel) {
        std::vector<Axis> axes;
        for (int d = 0; d + 1 < dy.rank(); ++d) axes.push_back(reduce_axis("n", dy.shape()[static_cast<size_t>(d)]));
        std::vector<Operand> at(axes.begin(), axes.end());
        at.emplace_back(channel);
        return sum(dy.read(at), axes);
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
Tensor sum_of_flipped(const std::string& name, const Operands& of, const Filters& filters, const Tensor& dy) {
    const Shape shape(of.image.shape().begin(), of.image.shape().end());
    return compute(name, shape, [&](const std::vector<Expr>& at) {
        std::vector<Axis> axes = tap_axes(of.windows);
        const Axis f = reduce_axis("f", filters.group_filters());
        const Expr group = simplify(at.back() / filters.group_channels),
                   filter = filters.groups == 1 ? f : simplify(group * filters.group_filters() + f);
        std::vector<Operand> of_dy = {at[0]}, of_weight = {filter};
        for (size_t d = 0; d < of.windows.size(); ++d) {
            const WindowDimension& w = of.windows[d];
            of_dy.emplace_back(at[d + 1] + w.padding.before - axes[d] * w.dilation);
            of_weight.emplace_back(axes[d]);
        }
        of_dy.emplace_back(filter);
        of_weight.emplace_back(simplify(at.back() % filters.group_channels));
        axes.push_back(f);
        const Type type = sum_type(dy.type());
        return sum(cast(type, padded(dy, 0).read(of_dy)) * cast(type, of.weight.read(of_weight)), axes);
    });
}

}  // namespace

Tensor convolve(const std::string& name, const Tensor& x, const Tensor& weight, const Tensor& bias,
                const ConvolutionOptions& o, std::source_location where) {
    CalledFrom caller(where);
    const std::string what = "convolution";
    Filters filters = filters_of(what, x, weight, o.groups, where);
    const int64_t channels = constant_extent(what, x, x.rank() - 1, where);
    user_check(channels == filters.channels(), where,
               "{}: x is {}, the weight {}, in {} groups; the last extent of the weight times the groups must be the "
               "channels of x",
               what, text_of_shape(x), text_of_shape(weight), o.groups);
    user_check(o.unit > 0, where, "{}: a unit of {} channels; give 1 for channels as they are, or a multiple", what,
               o.unit);
    check_bias(what, bias, filters.filters, x, weight, where);
    WindowDimensions windows = window_dimensions(what, x, filters.taps, {o.stride, o.dilation, o.padding}, where);
    const Shape shape = shape_of_windows(x, windows, filters.filters);
    const Tensor image = bordered(name + "_image", x, o.padding, o.mode, where);
    if (o.mode != PaddingMode::Zeros)
        for (WindowDimension& w : windows) w.padding = 0;
    const Operands plain{image, weight, windows}, read = o.groups == 1 ? in_units(name, plain, o.unit) : plain;
    filters.group_channels = require_constant(read.weight.shape().back());
    auto element = [&](const std::vector<Expr>& at) {
        const Expr total = sum_of_window(read.image, read.weight, read.windows, filters, at);
        return cast(x.type(), with_bias(total, bias, at.back()));
    };
    const Tensor y = compute(name, shape, element, where);
    if (!has_few_windows(read.windows)) return y;
    std::vector<Tensor> inputs = {read.image, read.weight};
    if (bias.defined()) inputs.push_back(bias);
    return with_gradient(y, inputs, [=](const Tensor&, const Tensor& dy) {
        std::vector<Tensor> adjoints = {sum_of_flipped("d_" + name + "_image", read, filters, dy),
                                        gradients(y, dy, {read.weight})[0]};
        if (bias.defined()) adjoints.push_back(gradient_of_bias("d_" + name + "_bias", bias, dy));
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
    Tensor weight;
    Shape shape;  // of x

    Tensor of(const Tensor& image) const {
        return compute(name, shape,
                       [&](const std::vector<Expr>& at) { return sum_of_window(image, weight, windows, filters, at); });
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
        const int64_t extent = constant_extent(transposed, x, static_cast<int>(d) + 1, where);
        const int64_t stride = entry_for(o.stride, d), dilation = entry_for(o.dilation, d);
        const int64_t more = entry_for(o.output_padding, d);
        const auto [before, after] = entry_for(o.padding, d);
        const int64_t result = (extent - 1) * stride - before - after + (filters.taps[d] - 1) * dilation + 1 + more;
        user_check(more >= 0 && more < stride, where,
                   "{}: output_padding {} with stride {} along dimension {} of x {}; give 0 to {}", transposed, more,
                   stride, d + 1, text_of_shape(x), stride - 1);
        user_check(extent > 0 && result > 0, where,
                   "{}: dimension {} of x {} would become {}, with {} taps, stride {}, dilation {} and {} and {} cut "
                   "off; take less padding",
                   transposed, d + 1, text_of_shape(x), result, filters.taps[d], stride, dilation, before, after);
        shape.emplace_back(result);
    }
    shape.emplace_back(filters.channels());
    return shape;
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
    const Filters filters = filters_of(transposed, x, weight, o.groups, where);
    user_check(constant_extent(transposed, x, x.rank() - 1, where) == filters.filters, where,
               "{}: x is {}, the weight {}; the last extent of x must be the first of the weight", transposed,
               text_of_shape(x), text_of_shape(weight));
    check_bias(transposed, bias, filters.channels(), x, weight, where);
    const Shape shape = shape_of_result(x, filters, o, where);
    const Tensor image = input("image", sum_type(x.type()), shape);
    const Map map{"d_" + name + "_windows",
                  filters,
                  window_dimensions(transposed, image, filters.taps, {o.stride, o.dilation, o.padding}, where),
                  weight,
                  {x.shape().begin(), x.shape().end()}};
    // <map(image), x> = <image, y> for all images: y is the gradient of the left by the image.
    const Tensor sums = gradients(map.of(image), x, {image}, where)[0];
    auto element = [&](const std::vector<Expr>& at) {
        return cast(x.type(), with_bias(body_at(sums, at), bias, at.back()));
    };
    // ... and so is dx = map(dy); dw is that of <map(dy), x>.
    auto rule = [=](const Tensor&, const Tensor& dy) {
        const Tensor of_dy = map.of(dy);
        std::vector<Tensor> adjoints = {of_dy, gradients(of_dy, x, {weight})[0]};
        if (bias.defined()) adjoints.push_back(gradient_of_bias("d_" + name + "_bias", bias, dy));
        return adjoints;
    };
    std::vector<Tensor> inputs = {x, weight};
    if (bias.defined()) inputs.push_back(bias);
    return with_gradient(compute(name, shape, element, where), inputs, rule, where);
}

}  // namespace tw::schedules
