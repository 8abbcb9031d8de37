#include "schedules/pooling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dsl/differentiate.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

/// The taps of a window at one element of the result.
struct Taps {
    std::vector<Axis> axes;
    std::vector<Operand> at;  // of x
    Expr inside;              // the image
    Expr place;               // row-major number in it
};

Taps taps_at(const WindowDimensions& windows, const std::vector<Expr>& at) {
    Taps taps{.axes = tap_axes(windows), .at = {at[0]}, .inside = {}, .place = integer(0)};
    std::vector<Expr> conditions;
    for (size_t d = 0; d < windows.size(); ++d) {
        const Expr place = windows[d].place(at[d + 1], taps.axes[d]);
        taps.at.emplace_back(place);
        taps.place = taps.place * windows[d].extent + place;
        conditions.push_back(place >= 0);
        conditions.push_back(place < windows[d].extent);
    }
    taps.at.emplace_back(at.back());
    taps.inside = simplify(all_of(conditions));
    return taps;
}

WindowDimensions pooled_dimensions(const std::string& what, const Tensor& x, const PoolingOptions& o,
                                   std::source_location where) {
    user_check(x.rank() >= 3 && x.rank() <= 5 && is_float(x.type()), where,
               "{}: x is {} {}; give floats [images, extents..., channels] with 1 to 3 extents", what,
               name_of(x.type()), text_of_shape(x));
    const auto count = static_cast<size_t>(x.rank() - 2);
    check_entries(what, "window", o.window.size(), count, x, where);
    std::vector<int64_t> taps;
    for (size_t d = 0; d < count; ++d) taps.push_back(entry_for(o.window, d));
    const WindowDimensions windows = window_dimensions(
        what, x, taps, {o.stride.empty() ? taps : o.stride, o.dilation, o.padding, o.ceil_mode}, where);
    for (size_t d = 0; d < count; ++d) {
        const WindowDimension& w = windows[d];
        user_check(std::max(w.padding.before, w.padding.after) < w.span(), where,
                   "{}: along dimension {} of x {} a window of {} elements fits into the padding of {} and {}, where "
                   "there is nothing to pool; take less padding than a window",
                   what, d + 1, text_of_shape(x), w.span(), w.padding.before, w.padding.after);
    }
    return windows;
}

/// The largest, or NaN if there is one: reduce_max passes over NaN.
Expr largest_or_nan(const Expr& value, const std::vector<Axis>& axes) {
    const Reducer reducer =
        make_reducer("max_or_nan", {constant(value.type(), -std::numeric_limits<double>::infinity())},
                     [](const std::vector<Expr>& a, const std::vector<Expr>& b) {
                         return std::vector<Expr>{select(a[0] < b[0] || b[0] != b[0], b[0], a[0])};
                     });
    return reduce(reducer, {value}, axes)[0];
}

Tensor largest(const std::string& name, const Tensor& x, const WindowDimensions& windows, std::source_location where) {
    const Type type = sum_type(x.type());
    auto element = [&](const std::vector<Expr>& at) {
        const Taps taps = taps_at(windows, at);
        const Expr none = constant(type, -std::numeric_limits<double>::infinity());
        const Expr value = select(taps.inside, cast(type, padded(x, 0).read(taps.at)), none);
        return cast(x.type(), largest_or_nan(value, taps.axes));
    };
    return compute(name, shape_of_windows(x, windows, x.shape().back()), element, where);
}

Tensor first_places(const std::string& name, const Tensor& x, const Tensor& y, const WindowDimensions& windows,
                    std::source_location where) {
    const Type type = sum_type(x.type());
    const Expr none = integer(std::numeric_limits<int64_t>::max());
    Tensor first = compute(
        name + "_first", {y.shape().begin(), y.shape().end()},
        [&](const std::vector<Expr>& at) {
            const Taps taps = taps_at(windows, at);
            const Expr most = cast(type, y.read({at.begin(), at.end()}));
            const Expr value = cast(type, padded(x, 0).read(taps.at));
            const Expr is_most = value == most || value != value;  // where one is NaN, that is the largest
            return reduce_min(select(taps.inside && is_most, taps.place, none), taps.axes);
        },
        where);
    auto element = [&](const std::vector<Expr>& at) {
        const Expr place = first.read({at.begin(), at.end()});
        return select(place == none, integer(-1), place);
    };
    return compute(name, {y.shape().begin(), y.shape().end()}, element, where);
}

}  // namespace

Tensor max_pool(const std::string& name, const Tensor& x, const PoolingOptions& options, std::source_location where) {
    CalledFrom caller(where);
    const WindowDimensions windows = pooled_dimensions("max_pool", x, options, where);
    // The gradient is that of the sum which picks these elements.
    auto rule = [name, x, windows, where](const Tensor& y, const Tensor& dy) {
        const Tensor places = first_places(name + "_places", x, y, windows, where);
        auto element = [&](const std::vector<Expr>& at) {
            const Taps taps = taps_at(windows, at);
            const Expr is_it = taps.inside && taps.place == places.read({at.begin(), at.end()});
            const Expr value = cast(dy.type(), padded(x, 0).read(taps.at));
            return sum(select(is_it, value, constant(dy.type(), 0.0)), taps.axes);
        };
        const Tensor picked = compute(name + "_picked", {y.shape().begin(), y.shape().end()}, element, where);
        return gradients(picked, dy, {x});
    };
    return with_gradient(largest(name, x, windows, where), {x}, rule, where);
}

Tensor max_pool_places(const std::string& name, const Tensor& x, const PoolingOptions& options,
                       std::source_location where) {
    CalledFrom caller(where);
    const WindowDimensions windows = pooled_dimensions("max_pool", x, options, where);
    return first_places(name, x, largest(name + "_value", x, windows, where), windows, where);
}

namespace {

/// How many taps of a window lie in the image or its padding.
Expr taps_in_padding(const WindowDimension& w, const Expr& window) {
    if (!w.ceil_mode) return integer(w.taps);
    const Expr room = w.extent + w.padding.after + w.padding.before - window * w.stride;  // from the first tap
    return min((room + (w.dilation - 1)) / w.dilation, w.taps);
}

/// How many taps of a window lie in the image.
Expr taps_inside(const WindowDimension& w, const Expr& window) {
    const Expr before = w.padding.before - window * w.stride;  // of the image, from the first tap
    const Expr first = max((before + (w.dilation - 1)) / w.dilation, 0);
    const Expr last = min((before + (w.extent - 1)) / w.dilation, w.taps - 1);
    return last - first + 1;
}

}  // namespace

Tensor average_pool(const std::string& name, const Tensor& x, const PoolingOptions& options, CountPadding count,
                    std::source_location where) {
    CalledFrom caller(where);
    const WindowDimensions windows = pooled_dimensions("average_pool", x, options, where);
    const Type type = sum_type(x.type());
    auto element = [&](const std::vector<Expr>& at) {
        const Taps taps = taps_at(windows, at);
        Expr elements = integer(1);
        for (size_t d = 0; d < windows.size(); ++d)
            elements = elements * (count == CountPadding::Yes ? taps_in_padding(windows[d], at[d + 1])
                                                              : taps_inside(windows[d], at[d + 1]));
        if (count == CountPadding::No) elements = max(elements, 1);  // of windows with holes there may be none
        const Expr total = sum(cast(type, padded(x, 0).read(taps.at)), taps.axes);
        return cast(x.type(), total / cast(type, elements));
    };
    return compute(name, shape_of_windows(x, windows, x.shape().back()), element, where);
}

namespace {

/// One dimension of windows that cover it, as equal as whole numbers allow.
struct Cover {
    int64_t extent, results;

    bool is_even() const { return extent % results == 0; }
    Expr begin(const Expr& window) const { return is_even() ? window * (extent / results) : window * extent / results; }
    Expr length(const Expr& window) const {
        return is_even() ? integer(extent / results)
                         : ((window + 1) * extent + (results - 1)) / results - begin(window);
    }
    int64_t longest() const {
        int64_t most = 0;
        for (int64_t w = 0; w < results; ++w)
            most = std::max(most, ((w + 1) * extent + results - 1) / results - w * extent / results);
        return most;
    }
};

}  // namespace

Tensor adaptive_average_pool(const std::string& name, const Tensor& x, const std::vector<int64_t>& results,
                             std::source_location where) {
    CalledFrom caller(where);
    const std::string what = "adaptive_average_pool";
    user_check(x.rank() >= 3 && x.rank() <= 5 && is_float(x.type()), where,
               "{}: x is {} {}; give floats [images, extents..., channels] with 1 to 3 extents", what,
               name_of(x.type()), text_of_shape(x));
    const auto count = static_cast<size_t>(x.rank() - 2);
    check_entries(what, "results", results.size(), count, x, where);
    std::vector<Cover> covers;
    Shape shape = {x.shape()[0]};
    for (size_t d = 0; d < count; ++d) {
        const Cover cover{constant_extent(what, x, static_cast<int>(d) + 1, where), entry_for(results, d)};
        user_check(cover.results > 0 && cover.extent > 0, where,
                   "{}: {} results of dimension {} of x {}; give one at least, of one element at least", what,
                   cover.results, d + 1, text_of_shape(x));
        covers.push_back(cover);
        shape.emplace_back(cover.results);
    }
    shape.emplace_back(x.shape().back());
    const Type type = sum_type(x.type());
    auto element = [&](const std::vector<Expr>& at) {
        std::vector<Axis> axes;
        std::vector<Operand> of_x = {at[0]};
        std::vector<Expr> conditions;
        Expr elements = integer(1);
        for (size_t d = 0; d < count; ++d) {
            const Expr length = covers[d].length(at[d + 1]);
            axes.push_back(reduce_axis("r", covers[d].longest()));
            if (!covers[d].is_even()) conditions.push_back(axes.back() < length);
            of_x.emplace_back(covers[d].begin(at[d + 1]) + axes.back());
            elements = elements * length;
        }
        of_x.emplace_back(at.back());
        Expr value = cast(type, padded(x, 0).read(of_x));
        if (!conditions.empty()) value = select(all_of(conditions), value, constant(type, 0.0));
        return cast(x.type(), sum(value, axes) / cast(type, elements));
    };
    return compute(name, shape, element, where);
}

}  // namespace tw::schedules
