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

PhaseTaps phase_taps(int64_t phase, int64_t kernel, const DepthwiseShape& s) {
    PhaseTaps taps;
    taps.step = s.stride / std::gcd(s.stride, s.dilation);
    taps.apart = taps.step * s.dilation / s.stride;
    auto meets = [&](int64_t tap) { return (phase + s.padding - tap * s.dilation) % s.stride == 0; };
    while (taps.first < std::min(taps.step, kernel) && !meets(taps.first)) ++taps.first;
    if (taps.first == std::min(taps.step, kernel)) return taps;
    taps.count = divided(kernel - taps.first, taps.step);
    taps.at = (phase + s.padding - taps.first * s.dilation) / s.stride;
    return taps;
}

/// Of so many pixels; phases that no pixel has get nothing.
std::vector<PhaseTaps> phases_along(int64_t size, int64_t kernel, const DepthwiseShape& s) {
    std::vector<PhaseTaps> phases;
    for (int64_t phase = 0; phase < s.stride; ++phase)
        phases.push_back(phase < size ? phase_taps(phase, kernel, s) : PhaseTaps());
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

int64_t depthwise_window(const DepthwiseShape& s, ConvolutionPass pass, int64_t pixels, int64_t size, int64_t kernel) {
    if (pass != ConvolutionPass::DataGradient) return (pixels - 1) * s.stride + (kernel - 1) * s.dilation + 1;
    const Reach reach = reach_of(phases_along(size, kernel, s));
    return pixels + reach.last - reach.first;
}

namespace {

/// Extents of all dimensions with those of whole tiles.
struct Whole {
    int64_t rows, columns, channels;
};

Whole whole_tiles(int64_t rows, int64_t columns, const DepthwiseShape& s, const DepthwiseTiles& t) {
    return {rounded_up(rows, t.rows * t.thread_rows), rounded_up(columns, t.columns * t.thread_columns),
            rounded_up(s.channels, 2 * t.lanes)};
}

class Declaring {
public:
    Declaring(const DepthwiseShape& shape, ConvolutionPass pass, const DepthwiseTiles& tiles)
        : shape_(shape), pass_(pass), tiles_(tiles) {
        d_.x = input("x", shape.type, {shape.images, shape.height, shape.width, shape.channels});
        d_.w = input("w", shape.type, {shape.channels, shape.kernel_h, shape.kernel_w, 1});
    }

    Depthwise forward() {
        const Whole whole = whole_tiles(shape_.rows(), shape_.columns(), shape_, tiles_);
        const Tensor x = windows_of_x(whole);
        declare_taps(whole.channels);
        Axis r = reduce_axis("r", shape_.kernel_h), t = reduce_axis("s", shape_.kernel_w);
        d_.sums.push_back(compute("sums", {shape_.images, whole.rows, whole.columns, whole.channels},
                                  [&](Expr n, Expr p, Expr q, Expr c) {
                                      return sum(cast(f32, x(n, p * shape_.stride + r * shape_.dilation,
                                                             q * shape_.stride + t * shape_.dilation, c)) *
                                                     d_.taps(r, t, c),
                                                 {r, t});
                                  }));
        d_.result = compute("y", {shape_.images, shape_.rows(), shape_.columns(), shape_.channels},
                            [&](Expr n, Expr p, Expr q, Expr c) { return cast(shape_.type, d_.sums[0](n, p, q, c)); });
        return d_;
    }

    Depthwise data_gradient() {
        const int64_t u = shape_.stride;
        declare_dy();
        const Whole whole = whole_tiles(divided(shape_.height, u), divided(shape_.width, u), shape_, tiles_);
        declare_taps(whole.channels);
        const std::vector<PhaseTaps> along_h = phases_along(shape_.height, shape_.kernel_h, shape_),
                                     along_w = phases_along(shape_.width, shape_.kernel_w, shape_);
        const int64_t above = -reach_of(along_h).first, before = -reach_of(along_w).first;
        const Tensor dy = around(d_.dy, windows(whole), above, before);
        std::vector<Tensor> of_phase;  // undefined without taps
        for (const PhaseTaps& h : along_h)
            for (const PhaseTaps& w : along_w) {
                const std::string name = u == 1 ? "sums" : fmt::format("sums_{}", of_phase.size());
                of_phase.push_back(h.count * w.count == 0 ? Tensor()
                                                          : sums_of_phase(name, dy, whole, {h, w}, above, before));
            }
        for (const Tensor& sums : of_phase)
            if (sums.defined()) d_.sums.push_back(sums);
        d_.result = compute("dx", {shape_.images, shape_.height, shape_.width, shape_.channels},
                            [&](Expr n, Expr h, Expr w, Expr c) {
                                Expr value = of_pixel(of_phase, n, h, w, c);
                                return cast(shape_.type, value);
                            });
        return d_;
    }

    Depthwise weight_gradient() {
        declare_dy();
        const Whole whole = whole_tiles(shape_.rows(), shape_.columns(), shape_, tiles_);
        const Tensor x = windows_of_x(whole);
        const Tensor dy = around(d_.dy, whole, 0, 0);
        Axis n = reduce_axis("n", shape_.images), p = reduce_axis("p", whole.rows), q = reduce_axis("q", whole.columns);
        d_.sums.push_back(
            compute("sums", {shape_.kernel_h, shape_.kernel_w, whole.channels}, [&](Expr r, Expr t, Expr c) {
                return sum(cast(f32, dy(n, p, q, c)) * cast(f32, x(n, p * shape_.stride + r * shape_.dilation,
                                                                   q * shape_.stride + t * shape_.dilation, c)),
                           {n, p, q});
            }));
        d_.result = compute("dw", {shape_.channels, shape_.kernel_h, shape_.kernel_w, 1},
                            [&](Expr c, Expr r, Expr t, Expr) { return cast(shape_.type, d_.sums[0](r, t, c)); });
        return d_;
    }

private:
    /// All that the sums see.
    Whole windows(const Whole& whole) const {
        return {depthwise_window(shape_, pass_, whole.rows, shape_.height, shape_.kernel_h),
                depthwise_window(shape_, pass_, whole.columns, shape_.width, shape_.kernel_w), whole.channels};
    }

    void declare_dy() {
        d_.dy = input("dy", shape_.type, {shape_.images, shape_.rows(), shape_.columns(), shape_.channels});
    }

    void declare_taps(int64_t channels) {
        d_.taps = compute("taps", {shape_.kernel_h, shape_.kernel_w, channels},
                          [&](Expr r, Expr t, Expr c) { return cast(f32, padded(d_.w, 0)(c, r, t, 0)); });
    }

    Tensor windows_of_x(const Whole& whole) { return around(d_.x, windows(whole), shape_.padding, shape_.padding); }

    /// The image with so many zeros above and before it, and behind it up to these extents.
    Tensor around(const Tensor& image, const Whole& whole, int64_t above, int64_t before) {
        Tensor of = image;
        if (const int64_t channels = rounded_up(shape_.channels, piece); channels != shape_.channels) {
            const std::vector<Expr> shape = image.shape();
            of = compute(image.name() + "_padded", {shape[0], shape[1], shape[2], channels},
                         [&](Expr n, Expr h, Expr w, Expr c) { return padded(image, 0)(n, h, w, c); });
            d_.copies.push_back(of);
        }
        d_.tiled.push_back(
            compute(image.name() + "_around", {shape_.images, whole.rows, whole.columns, whole.channels},
                    [&](Expr n, Expr h, Expr w, Expr c) { return padded(of, 0)(n, h - above, w - before, c); }));
        return d_.tiled.back();
    }

    Tensor sums_of_phase(const std::string& name, const Tensor& dy, const Whole& whole,
                         const std::array<PhaseTaps, 2>& phase, int64_t above, int64_t before) {
        const auto& [h, w] = phase;
        Axis r = reduce_axis("r", h.count), t = reduce_axis("s", w.count);
        // From the last tap to the first, so that the window goes forward.
        const int64_t first_row = h.at + above - (h.count - 1) * h.apart,
                      first_column = w.at + before - (w.count - 1) * w.apart;
        return compute(
            name, {shape_.images, whole.rows, whole.columns, whole.channels}, [&](Expr n, Expr i, Expr j, Expr c) {
                return sum(cast(f32, dy(n, i + r * h.apart + first_row, j + t * w.apart + first_column, c)) *
                               d_.taps((h.count - 1 - r) * h.step + h.first, (w.count - 1 - t) * w.step + w.first, c),
                           {r, t});
            });
    }

    Expr of_pixel(const std::vector<Tensor>& of_phase, Expr n, Expr h, Expr w, Expr c) const {
        const int64_t u = shape_.stride;
        Expr value;
        for (size_t phase = of_phase.size(); phase-- > 0;) {
            const auto number = static_cast<int64_t>(phase);
            const Tensor& sums = of_phase[phase];
            Expr own = sums.defined() ? sums(n, h / u, w / u, c) : constant(f32, 0.0);
            value = value.defined() ? select(h % u == number / u && w % u == number % u, own, value) : own;
        }
        return value;
    }

    const DepthwiseShape& shape_;
    const ConvolutionPass pass_;
    const DepthwiseTiles& tiles_;
    Depthwise d_;
};

}  // namespace

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
    Declaring declaring(shape, pass, tiles);
    switch (pass) {
        case ConvolutionPass::Forward: return declaring.forward();
        case ConvolutionPass::DataGradient: return declaring.data_gradient();
        case ConvolutionPass::WeightGradient: return declaring.weight_gradient();
    }
    return {};
}

std::optional<NamedDepthwise> parse_depthwise(const std::string& name) {
    static const std::string number = "([0-9]{1,6})", by = "x" + number;
    static const std::regex form("depthwise(_data_gradient|_weight_gradient)?_(bf16|f16)_" + number + by + by + by +
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
    named.shape.type = match[2] == "f16" ? f16 : bf16;
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
