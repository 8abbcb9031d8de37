#include "schedules/windows.h"

#include <algorithm>
#include <array>

#include "dsl/differentiate.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr std::array<const char*, 3> tap_names = {"r", "s", "t"};

const char* name_of(PaddingMode mode) {
    switch (mode) {
        case PaddingMode::Zeros: return "zero";
        case PaddingMode::Reflect: return "reflecting";
        case PaddingMode::Replicate: return "replicating";
        case PaddingMode::Circular: return "circular";
    }
    return "";
}

void check_border(const Tensor& x, size_t dimension, const Sides& sides, PaddingMode mode, std::source_location where) {
    const int64_t extent = constant_extent("bordered", x, static_cast<int>(dimension), where);
    const int64_t most = mode == PaddingMode::Reflect ? extent - 1 : extent;
    const bool fits = mode == PaddingMode::Replicate || std::max(sides.before, sides.after) <= most;
    user_check(std::min(sides.before, sides.after) >= 0 && extent > 0 && fits, where,
               "bordered: a {} border of {} and {} elements has no place at dimension {} of '{}' {}; give sides from 0 "
               "to {}, or PaddingMode::Replicate",
               name_of(mode), sides.before, sides.after, dimension, x.name(), text_of_shape(x),
               std::max<int64_t>(most, 0));
}

/// The element of an image that stands at place i.
Expr place_in(int64_t extent, const Expr& i, PaddingMode mode) {
    switch (mode) {
        case PaddingMode::Zeros: return i;
        case PaddingMode::Reflect: return (extent - 1) - abs((extent - 1) - abs(i));
        case PaddingMode::Replicate: return max(min(i, extent - 1), 0);
        case PaddingMode::Circular: return i % extent;
    }
    return {};
}

/// The same in parts, each of which has an affine place: in front of the image, in it and behind.
Tensor bordered_in_parts(const std::string& name, const Tensor& x, size_t dimension, const Sides& sides,
                         PaddingMode mode) {
    const int64_t extent = *as_constant(x.shape()[dimension]);
    Shape shape(x.shape().begin(), x.shape().end());
    shape[dimension] = sides.before + extent + sides.after;
    return compute(name, shape, [&](const std::vector<Expr>& at) {
        const Expr i = at[dimension] - sides.before;
        auto element_at = [&](const Expr& place) {
            std::vector<Operand> moved(at.begin(), at.end());
            moved[dimension] = place;
            return padded(x, 0).read(moved);
        };
        const bool reflects = mode == PaddingMode::Reflect, repeats = mode == PaddingMode::Replicate;
        const Expr before = repeats ? integer(0) : reflects ? -i : i + extent;
        const Expr behind = repeats ? integer(extent - 1) : reflects ? 2 * (extent - 1) - i : i - extent;
        Expr value = element_at(i);
        if (sides.after > 0) value = select(i < extent, value, element_at(behind));
        if (sides.before > 0) value = select(i >= 0, value, element_at(before));
        return value;
    });
}

}  // namespace

const char* dimensions_of_images(Layout layout) {
    return layout == Layout::ChannelsFirst ? "[images, channels, extents...]" : "[images, extents..., channels]";
}

Type sum_type(Type type) { return type == f64 ? f64 : f32; }

std::string text_of_shape(const Tensor& tensor) {
    std::string text;
    for (const Expr& extent : tensor.shape()) text += (text.empty() ? "" : ", ") + to_string(extent);
    return "[" + text + "]";
}

void check_entries(const std::string& what, const std::string& name, size_t entries, size_t count, const Tensor& x,
                   std::source_location where) {
    user_check(entries == 1 || entries == count, where,
               "{}: {} has {} entries, images of x {} have {} dimensions; give one for each, or one for all", what,
               name, entries, text_of_shape(x), count);
}

int64_t constant_extent(const std::string& what, const Tensor& tensor, int dimension, std::source_location where) {
    auto extent = as_constant(tensor.shape()[static_cast<size_t>(dimension)]);
    user_check(extent.has_value(), where,
               "{}: dimension {} of '{}' {} is a named size; only the number of images may be one", what, dimension,
               tensor.name(), text_of_shape(tensor));
    return *extent;
}

std::vector<Axis> tap_axes(const WindowDimensions& windows) {
    std::vector<Axis> taps;
    for (size_t d = 0; d < windows.size(); ++d) taps.push_back(reduce_axis(tap_names[d], windows[d].taps));
    return taps;
}

Shape shape_of_windows(const Tensor& x, const WindowDimensions& windows, const Extent& channels, Layout layout) {
    Shape shape = {x.shape()[0]};
    for (const WindowDimension& w : windows) shape.emplace_back(w.windows());
    shape.push_back(channels);
    return in_layout(layout, shape);
}

WindowDimensions window_dimensions(const std::string& what, const Tensor& x, const std::vector<int64_t>& taps,
                                   const WindowOptions& o, std::source_location where) {
    const size_t count = taps.size();
    user_check(
        count >= 1 && count <= tap_names.size() && static_cast<size_t>(x.rank()) == count + 2, where,
        "{}: x is {}, for windows of {} dimensions; give {} with 1 to 3 extents, and as many dimensions of windows",
        what, text_of_shape(x), count, dimensions_of_images(o.layout));
    check_entries(what, "stride", o.stride.size(), count, x, where);
    check_entries(what, "dilation", o.dilation.size(), count, x, where);
    check_entries(what, "padding", o.padding.size(), count, x, where);
    WindowDimensions windows;
    for (size_t d = 0; d < count; ++d) {
        const int dimension = static_cast<int>(d) + first_extent(o.layout);
        const int64_t extent = constant_extent(what, x, dimension, where);
        const WindowDimension w{
            extent, taps[d], entry_for(o.stride, d), entry_for(o.dilation, d), entry_for(o.padding, d), o.ceil_mode};
        const auto [before, after] = w.padding;
        user_check(
            std::min({w.taps, w.stride, w.dilation}) > 0 && std::min(before, after) >= 0, where,
            "{}: along dimension {} of x {} lie {} taps, stride {}, dilation {}, padding {} and {}; taps, strides "
            "and dilations are 1 at least, paddings 0",
            what, dimension, text_of_shape(x), w.taps, w.stride, w.dilation, before, after);
        user_check(w.windows() > 0, where,
                   "{}: {} taps with dilation {} span {} elements, dimension {} of x {} has {} with its padding of {} "
                   "and {}; take fewer taps, less dilation or more padding",
                   what, w.taps, w.dilation, w.span(), dimension, text_of_shape(x), extent + before + after, before,
                   after);
        windows.push_back(w);
    }
    return windows;
}

Tensor bordered(const std::string& name, const Tensor& x, const std::vector<Sides>& padding, PaddingMode mode,
                Layout layout, std::source_location where) {
    if (mode == PaddingMode::Zeros) return x;
    const auto count = static_cast<size_t>(std::max(x.rank() - 2, 0)),
               first = static_cast<size_t>(first_extent(layout));
    check_entries("bordered", "padding", padding.size(), count, x, where);
    Shape shape(x.shape().begin(), x.shape().end());
    for (size_t d = 0; d < count; ++d) {
        const Sides& sides = entry_for(padding, d);
        check_border(x, d + first, sides, mode, where);
        shape[d + first] = sides.before + *as_constant(x.shape()[d + first]) + sides.after;
    }
    auto element = [&](const std::vector<Expr>& at) {
        std::vector<Operand> places(at.begin(), at.end());
        for (size_t d = 0; d < count; ++d)
            places[d + first] =
                place_in(*as_constant(x.shape()[d + first]), at[d + first] - entry_for(padding, d).before, mode);
        return x.read(places);
    };
    // An element is read from few places, which parts with affine ones give: no search among all of them.
    auto rule = [name, x, padding, mode, count, first](const Tensor&, const Tensor& adjoint) {
        Tensor parts = x;
        for (size_t d = 0; d < count; ++d)
            if (entry_for(padding, d) != Sides(0))
                parts = bordered_in_parts(fmt::format("{}_along_{}", name, d + first), parts, d + first,
                                          entry_for(padding, d), mode);
        return gradients(parts, adjoint, {x});
    };
    return with_gradient(compute(name, shape, element, where), {x}, rule, where);
}

}  // namespace tw::schedules
