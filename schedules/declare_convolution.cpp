#include <algorithm>
#include <array>
#include <functional>

#include "dsl/differentiate.h"
#include "schedules/convolution.h"
#include "schedules/convolve.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr int64_t piece = 8;  // elements of 2 bytes together as 16

double as_double(int64_t count) { return static_cast<double>(count); }

int64_t pixels_along(int64_t size, int64_t kernel, const ConvolutionShape& s) {
    return (size + 2 * s.padding - (kernel - 1) * s.dilation - 1) / s.stride + 1;
}

}  // namespace

int64_t ConvolutionShape::rows() const { return pixels_along(height, kernel_h, *this); }
int64_t ConvolutionShape::columns() const { return pixels_along(width, kernel_w, *this); }

bool ConvolutionShape::has_pixels() const {
    return height + 2 * padding > (kernel_h - 1) * dilation && width + 2 * padding > (kernel_w - 1) * dilation;
}

bool ConvolutionShape::reads_image() const {
    auto reads = [&](int64_t pixels, int64_t taps, int64_t extent) {
        for (int64_t pixel = 0; pixel < pixels; ++pixel)
            for (int64_t tap = 0; tap < taps; ++tap)
                if (const int64_t at = pixel * stride + tap * dilation - padding; at >= 0 && at < extent) return true;
        return false;
    };
    return reads(rows(), kernel_h, height) && reads(columns(), kernel_w, width);
}

double ConvolutionShape::flops() const {
    return 2 * as_double(images * rows() * columns()) * as_double(filters * channels) * as_double(kernel_h * kernel_w);
}

double ConvolutionShape::bytes() const {
    const double elements = as_double(images) * (as_double(height * width) * as_double(channels) +
                                                 as_double(rows() * columns()) * as_double(filters)) +
                            as_double(filters * kernel_h) * as_double(kernel_w * channels);
    return elements * bytes_of(type);
}

namespace {

using Extents = std::array<int64_t, 4>;

int64_t whole_pieces(int64_t elements) {
    return elements % piece == 0 ? elements : elements <= 2 * piece ? 2 * piece : rounded_up(elements, piece);
}

/// Of two numbers, rounded towards the smaller one; the second is positive.
int64_t floor_of(int64_t a, int64_t b) { return a >= 0 ? a / b : -divided(-a, b); }

Shape shape_of(const Extents& extents) { return {extents.begin(), extents.end()}; }

class Declaration {
public:
    Declaration(const ConvolutionShape& shape, ConvolutionPass pass) : given_(shape), s_(shape), pass_(pass) {
        s_.channels = whole_pieces(s_.channels);
        if (pass != ConvolutionPass::Forward) s_.filters = whole_pieces(s_.filters);
        c_.x = input("x", s_.type, {s_.images, s_.height, s_.width, given_.channels});
        c_.w = input("w", s_.type, {given_.filters, s_.kernel_h, s_.kernel_w, given_.channels});
        if (pass != ConvolutionPass::Forward)
            c_.dy = input("dy", s_.type, {s_.images, s_.rows(), s_.columns(), given_.filters});
    }

    Convolution run() {
        switch (pass_) {
            case ConvolutionPass::Forward: forward(); break;
            case ConvolutionPass::DataGradient: data_gradient(); break;
            case ConvolutionPass::WeightGradient: weight_gradient(); break;
        }
        if (!c_.result.defined()) c_.result = c_.product;
        return std::move(c_);
    }

private:
    int64_t outputs() const { return s_.images * s_.rows() * s_.columns(); }
    int64_t taps() const { return s_.kernel_h * s_.kernel_w; }

    void forward() {
        if (joins_taps()) {
            c_.windows = rows_of_taps(), c_.other = filters_of_rows();
            c_.product = sum_of_rows(c_.windows, c_.other);
            c_.extents = {outputs(), s_.filters, terms_of_row(), 1, as_double(s_.kernel_h)};
            c_.terms_axis = 1;
            return;
        }
        c_.windows = padded_copy(c_.x, of_x()), c_.other = padded_copy(c_.w, of_w());
        c_.product = sum_of_windows(c_.windows, c_.other);
        c_.extents = {outputs(), s_.filters, s_.channels, 1, as_double(taps())};
        c_.terms_axis = 2;
    }

    void weight_gradient() {
        c_.windows = padded_copy(c_.dy, of_y());
        if (joins_taps()) {
            c_.other = rows_of_taps();
            const Tensor of = input("w", s_.type, {s_.filters, s_.kernel_h, terms_of_row()});
            c_.product = gradients(sum_of_rows(c_.other, of), c_.windows, {of})[0];
            c_.extents = {s_.filters, terms_of_row(), outputs(), s_.kernel_h, 1};
            c_.result = compute("dw", shape_like(c_.w), [&](Expr f, Expr r, Expr t, Expr c) {
                return c_.product(f, r, t * channels_of_tap() + c);
            });
            return;
        }
        c_.other = padded_copy(c_.x, of_x());
        const Tensor of = input("w", s_.type, shape_of(of_w()));  // what a gradient is of, it does not read
        c_.product = gradients(sum_of_windows(c_.other, of), c_.windows, {of})[0];
        c_.extents = {s_.filters, s_.channels, outputs(), taps(), 1};
        cut_out("dw", c_.w, s_.channels != given_.channels || s_.filters != given_.filters);
    }

    void data_gradient() {
        const bool derived = has_shorter_taps();
        const bool spread = !derived && !joins_phases() && s_.stride > 1;
        c_.windows = spread ? apart() : padded_copy(c_.dy, of_y());
        if (joins_phases()) return of_joined_phases();
        c_.other = padded_copy(c_.w, of_w());
        c_.extents = {s_.images * s_.height * s_.width, s_.channels, s_.filters, 1, as_double(taps())};
        if (derived) {
            const Tensor of = input("x", s_.type, shape_of(of_x()));
            c_.product = gradients(sum_of_windows(of, c_.other), c_.windows, {of})[0];
            c_.phases = s_.stride;
            c_.extents.taps /= as_double(s_.stride * s_.stride);
        } else {
            c_.product = sum_of_flipped(c_.windows, c_.other);
            c_.terms_axis = 2;
        }
        cut_out("dx", c_.x, s_.channels != given_.channels);
    }

    /// Whether gradients() finds a sum over taps: else it is one over pixels, or takes each tap where it falls on one.
    bool has_shorter_taps() const {
        const int64_t holes = s_.dilation > 1 ? 1 : 0;  // with which as many taps as pixels are no sum over taps
        return s_.kernel_h + holes <= s_.rows() && s_.kernel_w + holes <= s_.columns() &&
               (s_.stride == 1 || s_.dilation == 1);
    }

    Extents of_x() const { return {s_.images, s_.height, s_.width, s_.channels}; }
    Extents of_w() const { return {s_.filters, s_.kernel_h, s_.kernel_w, s_.channels}; }
    Extents of_y() const { return {s_.images, s_.rows(), s_.columns(), s_.filters}; }
    static Shape shape_like(const Tensor& tensor) { return {tensor.shape().begin(), tensor.shape().end()}; }

    Tensor copied(const std::string& name, const Shape& shape, const std::function<Expr(Expr, Expr, Expr, Expr)>& of) {
        c_.copies.push_back(compute(name, shape, of));
        return c_.copies.back();
    }

    /// The tensor, or a copy of it with zeros behind its ends.
    Tensor padded_copy(const Tensor& tensor, const Extents& extents) {
        bool fits = true;
        for (size_t d = 0; d < extents.size(); ++d) fits = fits && is_constant(tensor.shape()[d], extents[d]);
        if (fits) return tensor;
        return copied(tensor.name() + "_padded", shape_of(extents),
                      [&](Expr a, Expr b, Expr d, Expr e) { return padded(tensor, 0)(a, b, d, e); });
    }

    /// The result is what the product has within its ends.
    void cut_out(const std::string& name, const Tensor& like, bool cut) {
        if (cut)
            c_.result =
                compute(name, shape_like(like), [&](Expr a, Expr b, Expr d, Expr e) { return c_.product(a, b, d, e); });
    }

    /// y of operands of these extents; what gradients() derives from it is one sum.
    Tensor sum_of_windows(const Tensor& x, const Tensor& w) const {
        const Tensor y =
            convolve("y", x, w, {}, {.stride = {s_.stride}, .dilation = {s_.dilation}, .padding = {s_.padding}});
        auto plain = std::make_shared<Operation>(*y.operation());
        plain->gradient = nullptr;
        return {plain, y.output()};
    }
    /// In the image, of a tap of a pixel.
    Expr place(const Expr& pixel, const Expr& tap) const { return pixel * s_.stride + tap * s_.dilation - s_.padding; }

    // Few channels: a copy has those of all taps of a row together, for each pixel of y along a row.

    bool joins_taps() const { return given_.channels < piece && s_.kernel_w > 1; }
    /// A power of two, so that a thread which copies 16 bytes knows tap and channel of each element.
    int64_t channels_of_tap() const {
        int64_t channels = 1;
        while (channels < given_.channels) channels *= 2;
        return channels;
    }
    int64_t terms_of_row() const { return whole_pieces(s_.kernel_w * channels_of_tap()); }
    /// An element of a tap, which has zeros behind its channels and its taps.
    Expr in_row(const Expr& k, const std::function<Expr(Expr tap, Expr channel)>& element) const {
        const int64_t each = channels_of_tap();
        const Expr tap = k / each, channel = k % each;
        return select(tap < s_.kernel_w && channel < given_.channels, element(tap, channel), constant(s_.type, 0.0));
    }

    Tensor rows_of_taps() {
        return copied("x_rows", {s_.images, s_.height, s_.columns(), terms_of_row()},
                      [&](Expr n, Expr h, Expr q, Expr k) {
                          return in_row(k, [&](Expr tap, Expr c) { return padded(c_.x, 0)(n, h, place(q, tap), c); });
                      });
    }
    Tensor filters_of_rows() {
        c_.copies.push_back(compute("w_rows", {s_.filters, s_.kernel_h, terms_of_row()}, [&](Expr f, Expr r, Expr k) {
            return in_row(k, [&](Expr tap, Expr c) { return padded(c_.w, 0)(f, r, tap, c); });
        }));
        return c_.copies.back();
    }
    Tensor sum_of_rows(const Tensor& rows, const Tensor& w) const {
        Axis r = reduce_axis("r", s_.kernel_h), k = reduce_axis("k", terms_of_row());
        return compute("y", {s_.images, s_.rows(), s_.columns(), s_.filters}, [&](Expr n, Expr p, Expr q, Expr f) {
            Expr element = padded(rows, 0)(n, place(p, r), q, k);
            return cast(s_.type, sum(cast(f32, element) * cast(f32, w(f, r, k)), {r, k}));
        });
    }

    // Few channels of the data gradient with a stride: those of the pixels between two of dy's together as columns.
    // Pixel u a + i takes tap r = i + padding - u (p - a) of pixel p of dy.

    bool joins_phases() const {
        constexpr int64_t most_columns = 64;
        return s_.stride > 1 && s_.dilation == 1 && s_.stride * s_.stride * given_.channels <= most_columns;
    }

    void of_joined_phases() {
        const int64_t u = s_.stride, channels = given_.channels;
        const int64_t first_h = -floor_of(s_.kernel_h - 1 - s_.padding, u),
                      first_w = -floor_of(s_.kernel_w - 1 - s_.padding, u), last = floor_of(u - 1 + s_.padding, u);
        const int64_t taps_h = last - first_h + 1, taps_w = last - first_w + 1;
        const int64_t columns = whole_pieces(u * u * channels);
        c_.other = copied("w_phases", {s_.filters, taps_h, taps_w, columns}, [&](Expr f, Expr r, Expr t, Expr column) {
            Expr phase = column / channels;
            Expr element = padded(c_.w, 0)(f, phase / u + s_.padding - (r + first_h) * u,
                                           phase % u + s_.padding - (t + first_w) * u, column % channels);
            return select(phase < u * u, element, constant(s_.type, 0.0));
        });
        Axis r = reduce_axis("r", taps_h), t = reduce_axis("s", taps_w), k = reduce_axis("f", s_.filters);
        const int64_t height = divided(s_.height, u), width = divided(s_.width, u);
        c_.product = compute("dx_phases", {s_.images, height, width, columns}, [&](Expr n, Expr h, Expr w, Expr c) {
            Expr element = padded(c_.windows, 0)(n, h + r + first_h, w + t + first_w, k);
            return cast(s_.type, sum(cast(f32, element) * cast(f32, c_.other(k, r, t, c)), {r, t, k}));
        });
        c_.result = compute("dx", shape_like(c_.x), [&](Expr n, Expr h, Expr w, Expr c) {
            return c_.product(n, h / u, w / u, (h % u * u + w % u) * channels + c);
        });
        c_.extents = {s_.images * height * width, columns, s_.filters, 1, as_double(taps_h * taps_w)};
        c_.terms_axis = 2;
    }

    // The data gradient with taps as far apart as the declaration's, from the last one on.

    /// Of dy, a pixel each stride, zeros between.
    Tensor apart() {
        const int64_t u = s_.stride;
        return copied("dy_apart", {s_.images, (s_.rows() - 1) * u + 1, (s_.columns() - 1) * u + 1, s_.filters},
                      [&](Expr n, Expr h, Expr w, Expr f) {
                          Expr element = padded(c_.dy, 0)(n, h / u, w / u, f);
                          return select(h % u == 0 && w % u == 0, element, constant(s_.type, 0.0));
                      });
    }
    Tensor sum_of_flipped(const Tensor& dy, const Tensor& w) const {
        Axis r = reduce_axis("r", s_.kernel_h), t = reduce_axis("s", s_.kernel_w), k = reduce_axis("f", s_.filters);
        return compute("d_x", shape_of(of_x()), [&](Expr n, Expr h, Expr v, Expr c) {
            Expr element = padded(dy, 0)(n, h + s_.padding - r * s_.dilation, v + s_.padding - t * s_.dilation, k);
            return cast(s_.type, sum(cast(f32, element) * cast(f32, w(k, r, t, c)), {r, t, k}));
        });
    }

    const ConvolutionShape given_;
    ConvolutionShape
        s_;  ///< as the product's operands lie; of the forward pass filters are rows of them, of any number
    const ConvolutionPass pass_;
    Convolution c_;
};

}  // namespace

Convolution declare_convolution(const ConvolutionShape& shape, ConvolutionPass pass, std::source_location where) {
    CalledFrom caller(where);
    user_check(std::min({shape.kernel_h, shape.kernel_w, shape.stride, shape.dilation}) > 0 && shape.padding >= 0 &&
                   shape.has_pixels(),
               where,
               "convolution: a kernel of {} x {} with dilation {} and stride {} has no place in images of {} x {} with "
               "{} zeros around them",
               shape.kernel_h, shape.kernel_w, shape.dilation, shape.stride, shape.height, shape.width, shape.padding);
    return Declaration(shape, pass).run();
}

}  // namespace tw::schedules
