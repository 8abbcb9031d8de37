// Where windows lie in images of one to three dimensions, and what surrounds an image. Channels come last, x is
// [images, extents..., channels], unless a layout says otherwise.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "dsl/schedule.h"

namespace tw::schedules {

/// What stands around an image, of abcd: 00abcd00, cbabcdcb (the border is not repeated), aaabcddd or cdabcdab.
enum class PaddingMode { Zeros, Reflect, Replicate, Circular };

/// Of images [images, extents..., channels] (NHWC), or [images, channels, extents...] (NCHW); of filters alike.
enum class Layout { ChannelsLast, ChannelsFirst };

/// What belongs to the dimensions of a tensor, channels last, as its layout has them.
template <class T>
std::vector<T> in_layout(Layout layout, std::vector<T> of) {
    if (layout == Layout::ChannelsFirst && of.size() > 2) std::rotate(of.begin() + 1, of.end() - 1, of.end());
    return of;
}
/// The other way round.
template <class T>
std::vector<T> with_channels_last(Layout layout, std::vector<T> of) {
    if (layout == Layout::ChannelsFirst && of.size() > 2) std::rotate(of.begin() + 1, of.begin() + 2, of.end());
    return of;
}
/// The number of the first dimension between that of images and that of channels.
inline int first_extent(Layout layout) { return layout == Layout::ChannelsFirst ? 2 : 1; }
/// "[images, extents..., channels]"
const char* dimensions_of_images(Layout layout);

/// Elements in front of a dimension and behind it.
struct Sides {
    Sides(int64_t both) : before(both), after(both) {}
    Sides(int64_t before, int64_t after) : before(before), after(after) {}
    int64_t before, after;

    bool operator==(const Sides&) const = default;
};

/// A number for each dimension of the images, or one for all of them.
struct WindowOptions {
    std::vector<int64_t> stride = {1};    ///< between windows
    std::vector<int64_t> dilation = {1};  ///< between the taps of a window
    std::vector<Sides> padding = {0};
    bool ceil_mode = false;  ///< the number of windows is rounded up
    Layout layout = Layout::ChannelsLast;
};

/// A dimension of the images, checked, and the windows along it.
struct WindowDimension {
    int64_t extent, taps, stride, dilation;
    Sides padding;
    bool ceil_mode = false;  ///< the last window may reach beyond the padded image, if it begins before the image's end

    /// Of a whole window, holes included.
    int64_t span() const { return (taps - 1) * dilation + 1; }
    /// Of windows that lie in the padded image; 0 or less: there is none.
    int64_t windows() const {
        const int64_t room = extent + padding.before + padding.after - span();
        if (!ceil_mode) return (room + stride) / stride;
        const int64_t count = (room + 2 * stride - 1) / stride;
        return (count - 1) * stride < extent + padding.before ? count : count - 1;
    }
    /// Where the image is read; outside of it below 0 and from the extent on.
    Expr place(const Expr& window, const Expr& tap) const { return window * stride + tap * dilation - padding.before; }
};
using WindowDimensions = std::vector<WindowDimension>;

/// The windows of so many taps in x. Throws Error, on behalf of `what`, where x has no dimension between its first and
/// last for each of the taps, lists have neither one entry nor as many, a number is out of range, or a window is larger
/// than the padded image; messages have the shape of x.
WindowDimensions window_dimensions(const std::string& what, const Tensor& x, const std::vector<int64_t>& taps,
                                   const WindowOptions& options, TW_HERE);
/// r, s and t, axes over the taps.
std::vector<Axis> tap_axes(const WindowDimensions& windows);
/// [images, windows..., channels], in that layout
Shape shape_of_windows(const Tensor& x, const WindowDimensions& windows, const Extent& channels,
                       Layout layout = Layout::ChannelsLast);

/// `name`: x with a border around the dimensions of the images, whose elements are those of x that the mode says; x
/// itself with Zeros. Throws Error where the mode has no element for the border: Circular gives as many as the extent,
/// Reflect one less.
Tensor bordered(const std::string& name, const Tensor& x, const std::vector<Sides>& padding, PaddingMode mode,
                Layout layout = Layout::ChannelsLast, TW_HERE);

/// The entry of a list that has one for each dimension, or one for all.
template <class T>
const T& entry_for(const std::vector<T>& list, size_t dimension) {
    return list.size() == 1 ? list[0] : list[dimension];
}
/// Throws Error, on behalf of `what`, unless the list has one entry or `count`.
void check_entries(const std::string& what, const std::string& name, size_t entries, size_t count, const Tensor& x,
                   std::source_location where);
/// The extent; throws Error, on behalf of `what`, if it is a named size.
int64_t constant_extent(const std::string& what, const Tensor& tensor, int dimension, std::source_location where);
/// The type in which elements of a type are summed: f32, of f64 f64.
Type sum_type(Type type);
/// "[2, 8, 8, 3]"
std::string text_of_shape(const Tensor& tensor);

}  // namespace tw::schedules
