#include <algorithm>
#include <array>
#include <numeric>
#include <regex>

#include <fmt/format.h>

#include "schedules/depthwise.h"
#include "schedules/require_sizes.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

ConvolutionShape as_convolution(const DepthwiseShape& s) {
    return {.images = s.images,
            .height = s.height,
            .width = s.width,
            .channels = s.channels,
            .filters = s.channels,
            .kernel_h = s.kernel_h,
            .kernel_w = s.kernel_w,
            .stride = s.stride,
            .padding = s.padding,
            .dilation = s.dilation,
            .type = s.type};
}

bool has_pixels(const DepthwiseShape& s) {
    return s.height + 2 * s.padding > (s.kernel_h - 1) * s.dilation &&
           s.width + 2 * s.padding > (s.kernel_w - 1) * s.dilation;
}

}  // namespace

int64_t DepthwiseShape::rows() const { return as_convolution(*this).rows(); }
int64_t DepthwiseShape::columns() const { return as_convolution(*this).columns(); }

DepthwiseWindows DepthwiseShape::windows() const {
    return {.images = images,
            .channels = channels,
            .rows = {height, rows(), kernel_h, stride, padding, dilation},
            .columns = {width, columns(), kernel_w, stride, padding, dilation},
            .type = type};
}

bool DepthwiseSide::reads_image() const {
    for (int64_t p = 0; p < windows; ++p)
        for (int64_t r = 0; r < taps; ++r)
            if (const int64_t at = p * stride + r * dilation - before; at >= 0 && at < extent) return true;
    return false;
}

double DepthwiseShape::flops() const {
    return 2.0 * static_cast<double>(images * rows() * columns()) * static_cast<double>(channels * kernel_h * kernel_w);
}

double DepthwiseShape::bytes() const {
    const int64_t elements = images * (height * width + rows() * columns()) * channels + channels * kernel_h * kernel_w;
    return static_cast<double>(elements) * bytes_of(type);
}

namespace {

/// Along one dimension of a data gradient: the taps that pixels i stride + phase get something from. Tap first + t step
/// meets dy at i + at - t apart.
struct PhaseTaps {
    int64_t count = 0, first = 0, step = 1, at = 0, apart = 1;
};

PhaseTaps phase_taps(int64_t phase, const DepthwiseSide& s) {
    PhaseTaps taps;
    taps.step = s.stride / std::gcd(s.stride, s.dilation);
    taps.apart = taps.step * s.dilation / s.stride;
    auto meets = [&](int64_t tap) { return (phase + s.before - tap * s.dilation) % s.stride == 0; };
    while (taps.first < std::min(taps.step, s.taps) && !meets(taps.first)) ++taps.first;
    if (taps.first == std::min(taps.step, s.taps)) return taps;
    taps.count = divided(s.taps - taps.first, taps.step);
    taps.at = (phase + s.before - taps.first * s.dilation) / s.stride;
    return taps;
}

/// Phases that no pixel has get nothing.
std::vector<PhaseTaps> phases_along(const DepthwiseSide& s) {
    std::vector<PhaseTaps> phases;
    for (int64_t phase = 0; phase < s.stride; ++phase)
        phases.push_back(phase < s.extent ? phase_taps(phase, s) : PhaseTaps());
    return phases;
}

/// Where the pixels of dy begin and end that a pixel's phases meet.
struct Reach {
    int64_t first = 0, last = 0;
};

Reach reach_of(const std::vector<PhaseTaps>& phases) {
    Reach reach;
    bool any = false;
    for (const PhaseTaps& taps : phases) {
        if (taps.count == 0) continue;
        const int64_t first = taps.at - (taps.count - 1) * taps.apart;
        reach = any ? Reach{std::min(reach.first, first), std::max(reach.last, taps.at)} : Reach{first, taps.at};
        any = true;
    }
    return reach;
}

}  // namespace

int64_t depthwise_window(const DepthwiseSide& side, ConvolutionPass pass, int64_t pixels, int64_t taps) {
    if (pass != ConvolutionPass::DataGradient) return (pixels - 1) * side.stride + (taps - 1) * side.dilation + 1;
    const Reach reach = reach_of(phases_along(side));
    return pixels + reach.last - reach.first;
}

namespace {

/// Extents of all dimensions with those of whole tiles.
struct Whole {
    int64_t rows, columns, channels;
};

class Declaring {
public:
    Declaring(const DepthwiseWindows& windows, ConvolutionPass pass, const DepthwiseTiles& tiles)
        : of_(windows), d_{.pass = pass, .tiles = tiles} {
        d_.x = input("x", of_.type, shape_of(of_.rows.extent, of_.columns.extent));
        d_.w = input("w", of_.type, {of_.channels, of_.rows.taps, of_.columns.taps, 1});
    }

    Depthwise forward() {
        const Whole whole = whole_tiles(of_.rows.windows, of_.columns.windows);
        const Tensor x = windows_of_x(whole);
        declare_taps(whole.channels);
        Axis r = reduce_axis("r", of_.rows.taps), t = reduce_axis("s", of_.columns.taps);
        d_.sums.push_back(compute("sums", {of_.images, whole.rows, whole.columns, whole.channels},
                                  [&](Expr n, Expr p, Expr q, Expr c) {
                                      return sum(element_of_window(x, n, {p, r}, {q, t}, c) * d_.taps(r, t, c), {r, t});
                                  }));
        d_.result = compute("y", shape_of(of_.rows.windows, of_.columns.windows), [&](const std::vector<Expr>& at) {
            return cast(of_.type, d_.sums[0](at[0], row_of(at), at[at.size() - 2], at.back()));
        });
        return d_;
    }

    Depthwise data_gradient() {
        d_.phases = {of_.rows.stride, of_.columns.stride};
        declare_dy();
        const Whole whole =
            whole_tiles(divided(of_.rows.extent, d_.phases.rows), divided(of_.columns.extent, d_.phases.columns));
        declare_taps(whole.channels);
        const std::vector<PhaseTaps> along_h = phases_along(of_.rows), along_w = phases_along(of_.columns);
        const int64_t above = -reach_of(along_h).first, before = -reach_of(along_w).first;
        const Tensor dy = around(d_.dy, windows(whole), above, before);
        std::vector<Tensor> of_phase;  // undefined without taps
        for (const PhaseTaps& h : along_h)
            for (const PhaseTaps& w : along_w) {
                const bool is_only = along_h.size() * along_w.size() == 1;
                const std::string name = is_only ? "sums" : fmt::format("sums_{}", of_phase.size());
                of_phase.push_back(h.count * w.count == 0 ? Tensor()
                                                          : sums_of_phase(name, dy, whole, {h, w}, above, before));
            }
        for (const Tensor& sums : of_phase)
            if (sums.defined()) d_.sums.push_back(sums);
        d_.result = compute("dx", shape_of(of_.rows.extent, of_.columns.extent), [&](const std::vector<Expr>& at) {
            return cast(of_.type, of_pixel(of_phase, at[0], row_of(at), at[at.size() - 2], at.back()));
        });
        return d_;
    }

    Depthwise weight_gradient() {
        declare_dy();
        const Whole whole = whole_tiles(of_.rows.windows, of_.columns.windows);
        const Tensor x = windows_of_x(whole);
        const Tensor dy = around(d_.dy, whole, 0, 0);
        Axis n = reduce_axis("n", of_.images), p = reduce_axis("p", whole.rows), q = reduce_axis("q", whole.columns);
        d_.sums.push_back(
            compute("sums", {of_.rows.taps, of_.columns.taps, whole.channels}, [&](Expr r, Expr t, Expr c) {
                return sum(cast(f32, dy(n, p, q, c)) * element_of_window(x, n, {p, r}, {q, t}, c), {n, p, q});
            }));
        d_.result = compute("dw", {of_.channels, of_.rows.taps, of_.columns.taps, 1},
                            [&](Expr c, Expr r, Expr t, Expr) { return cast(of_.type, d_.sums[0](r, t, c)); });
        return d_;
    }

private:
    /// Of images, or of signals, which have no rows.
    Shape shape_of(int64_t rows, int64_t columns) const {
        if (of_.is_signal) return {of_.images, columns, of_.channels};
        return {of_.images, rows, columns, of_.channels};
    }
    Expr row_of(const std::vector<Expr>& at) const { return of_.is_signal ? integer(0) : at[1]; }

    Whole whole_tiles(int64_t rows, int64_t columns) const {
        const DepthwiseTiles& t = d_.tiles;
        return {rounded_up(rows, t.rows * t.thread_rows), rounded_up(columns, t.columns * t.thread_columns),
                rounded_up(of_.channels, 2 * t.lanes)};
    }
    /// All that the sums see: of a weight gradient, that of whole tiles of its rows of taps.
    Whole windows(const Whole& whole) const {
        const int64_t together = d_.pass == ConvolutionPass::WeightGradient ? d_.tiles.taps : 1,
                      taps = of_.rows.taps > together ? rounded_up(of_.rows.taps, together) : of_.rows.taps;
        return {depthwise_window(of_.rows, d_.pass, whole.rows, taps),
                depthwise_window(of_.columns, d_.pass, whole.columns, of_.columns.taps), whole.channels};
    }

    void declare_dy() { d_.dy = input("dy", of_.type, shape_of(of_.rows.windows, of_.columns.windows)); }

    void declare_taps(int64_t channels) {
        d_.taps = compute("taps", {of_.rows.taps, of_.columns.taps, channels},
                          [&](Expr r, Expr t, Expr c) { return cast(f32, padded(d_.w, 0)(c, r, t, 0)); });
    }

    Tensor windows_of_x(const Whole& whole) {
        return around(d_.x, windows(whole), of_.rows.before, of_.columns.before);
    }

    /// A window and one of its taps, along each side.
    Expr element_of_window(const Tensor& x, const Expr& n, const std::array<Expr, 2>& row,
                           const std::array<Expr, 2>& column, const Expr& c) const {
        return cast(f32, x(n, row[0] * of_.rows.stride + row[1] * of_.rows.dilation,
                           column[0] * of_.columns.stride + column[1] * of_.columns.dilation, c));
    }

    /// The image with so many zeros above and before it, and behind it up to these extents.
    Tensor around(const Tensor& image, const Whole& whole, int64_t above, int64_t before) {
        Tensor of = image;
        if (const int64_t channels = rounded_up(of_.channels, piece); channels != of_.channels) {
            Shape shape(image.shape().begin(), image.shape().end());
            shape.back() = channels;
            of = compute(image.name() + "_padded", shape, [&](const std::vector<Expr>& at) {
                return padded(image, 0).read({at.begin(), at.end()});
            });
            d_.copies.push_back(of);
        }
        d_.tiled.push_back(compute(image.name() + "_around", {of_.images, whole.rows, whole.columns, whole.channels},
                                   [&](Expr n, Expr h, Expr w, Expr c) {
                                       if (!of_.is_signal) return padded(of, 0)(n, h - above, w - before, c);
                                       return of_row(padded(of, 0)(n, w - before, c), h - above, whole.rows);
                                   }));
        return d_.tiled.back();
    }
    /// The only row there is, and zeros around it.
    static Expr of_row(const Expr& element, const Expr& row, int64_t rows) {
        return rows == 1 ? element : select(row == 0, element, constant(element.type(), 0.0));
    }

    Tensor sums_of_phase(const std::string& name, const Tensor& dy, const Whole& whole,
                         const std::array<PhaseTaps, 2>& phase, int64_t above, int64_t before) {
        const auto& [h, w] = phase;
        Axis r = reduce_axis("r", h.count), t = reduce_axis("s", w.count);
        // From the last tap to the first, so that the window goes forward.
        const int64_t first_row = h.at + above - (h.count - 1) * h.apart,
                      first_column = w.at + before - (w.count - 1) * w.apart;
        return compute(
            name, {of_.images, whole.rows, whole.columns, whole.channels}, [&](Expr n, Expr i, Expr j, Expr c) {
                return sum(cast(f32, dy(n, i + r * h.apart + first_row, j + t * w.apart + first_column, c)) *
                               d_.taps((h.count - 1 - r) * h.step + h.first, (w.count - 1 - t) * w.step + w.first, c),
                           {r, t});
            });
    }

    Expr of_pixel(const std::vector<Tensor>& of_phase, const Expr& n, const Expr& h, const Expr& w,
                  const Expr& c) const {
        const auto [u, v] = d_.phases;
        Expr value;
        for (size_t phase = of_phase.size(); phase-- > 0;) {
            const auto number = static_cast<int64_t>(phase);
            const Tensor& sums = of_phase[phase];
            Expr own = sums.defined() ? sums(n, h / u, w / v, c) : constant(f32, 0.0);
            value = value.defined() ? select(h % u == number / v && w % v == number % v, own, value) : own;
        }
        return value;
    }

    const DepthwiseWindows& of_;
    Depthwise d_;
};

}  // namespace

Depthwise declare_depthwise(const DepthwiseWindows& windows, ConvolutionPass pass, const DepthwiseTiles& tiles,
                            std::source_location where) {
    CalledFrom caller(where);
    Declaring declaring(windows, pass, tiles);
    switch (pass) {
        case ConvolutionPass::Forward: return declaring.forward();
        case ConvolutionPass::DataGradient: return declaring.data_gradient();
        case ConvolutionPass::WeightGradient: return declaring.weight_gradient();
    }
    return declaring.forward();
}

Depthwise declare_depthwise(const DepthwiseShape& shape, ConvolutionPass pass, const DepthwiseTiles& tiles,
                            std::source_location where) {
    CalledFrom caller(where);
    require_sizes("depthwise tiles",
                  {{"thread_rows", tiles.thread_rows},
                   {"thread_columns", tiles.thread_columns},
                   {"rows", tiles.rows},
                   {"columns", tiles.columns},
                   {"lanes", tiles.lanes},
                   {"steps", tiles.steps},
                   {"taps", tiles.taps}},
                  where);
    user_check(std::min({shape.kernel_h, shape.kernel_w, shape.stride, shape.dilation}) > 0 && shape.padding >= 0 &&
                   has_pixels(shape),
               where,
               "depthwise convolution: a kernel of {} x {} with dilation {} and stride {} has no place in images of {} "
               "x {} with {} zeros around them",
               shape.kernel_h, shape.kernel_w, shape.dilation, shape.stride, shape.height, shape.width, shape.padding);
    return declare_depthwise(shape.windows(), pass, tiles);
}

std::string tiling_text(const DepthwiseTiles& t) {
    return fmt::format("{}x{}t{}x{}x{}s{}r{}", t.thread_rows, t.thread_columns, t.rows, t.columns, t.lanes, t.steps,
                       t.taps);
}

std::optional<NamedDepthwise> parse_depthwise(const std::string& name) {
    static const std::string number = "([0-9]{1,6})", by = "x" + number;
    static const std::regex form("depthwise(_data_gradient|_weight_gradient)?_(bf16|f16|f32)_" + number + by + by + by +
                                 "_" + number + by + "(?:_stride" + number + ")?(?:_pad" + number + ")?(?:_dilation" +
                                 number + ")?(?:_tile" + number + by + "t" + number + by + by + "s" + number + "r" +
                                 number + ")?");
    std::smatch match;
    if (!std::regex_match(name, match, form)) return {};
    auto read = [&](int group, int64_t otherwise) {
        return match[group].matched ? std::stoll(match[group].str()) : otherwise;
    };
    NamedDepthwise named;
    named.shape = {read(3, 0), read(4, 0), read(5, 0), read(6, 0), read(7, 0), read(8, 0)};
    named.shape.type = match[2] == "f32" ? f32 : match[2] == "f16" ? f16 : bf16;
    named.shape.stride = read(9, 1);
    named.shape.padding = read(10, 0);
    named.shape.dilation = read(11, 1);
    if (match[1].matched)
        named.pass = match[1] == "_data_gradient" ? ConvolutionPass::DataGradient : ConvolutionPass::WeightGradient;
    if (match[12].matched)
        named.tiles =
            DepthwiseTiles{read(12, 0), read(13, 0), read(14, 0), read(15, 0), read(16, 0), read(17, 0), read(18, 0)};
    const DepthwiseShape& s = named.shape;
    if (std::min({s.kernel_h, s.kernel_w, s.stride, s.dilation}) < 1 || !has_pixels(s)) return {};
    return named;
}

}  // namespace tw::schedules
