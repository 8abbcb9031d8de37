#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "dsl/differentiate.h"
#include "dsl/simplify.h"
#include "schedules/channels_last.h"
#include "schedules/plan_groups.h"
#include "schedules/whole_sectors.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

using Extents = std::array<int64_t, 4>;

/// Of two numbers, rounded towards the smaller one; the second is positive.
int64_t floor_of(int64_t a, int64_t b) { return a >= 0 ? a / b : -divided(-a, b); }

/// Neighbouring taps along a side.
struct Taps {
    int64_t first, count;
};

Shape shape_of(const Extents& extents) { return {extents.begin(), extents.end()}; }

class Declaration {
public:
    Declaration(const ConvolutionShape& shape, ConvolutionPass pass, const GroupPlan& plan)
        : given_(shape), s_(shape), pass_(pass) {
        join_groups(plan);
        if (s_.groups == 1) pad_rows();
        c_.x = input("x", s_.type, {s_.images, s_.height, s_.width, given_.channels});
        c_.w = input("w", s_.type, {given_.filters, s_.kernel_h, s_.kernel_w, given_.channels / given_.groups});
        if (pass != ConvolutionPass::Forward)
            c_.dy = input("dy", s_.type, {s_.images, given_.rows(), given_.columns(), given_.filters});
        leave_out_taps();
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
    int64_t outputs() const { return s_.images * given_.rows() * given_.columns(); }
    int64_t taps() const { return rows_.count * columns_.count; }

    /// Rows of operands are whole pieces, and, where a copy costs less than it gains, whole sectors.
    void pad_rows() {
        const bool forward = pass_ == ConvolutionPass::Forward, sums_pixels = pass_ == ConvolutionPass::WeightGradient;
        s_.channels = whole_pieces(s_.channels);
        if (!forward) s_.filters = whole_pieces(s_.filters);
        if (joins_taps()) return;
        // Of what boxes bring, as a third (280 channels beside 288) is to a quarter (328 filters beside 336).
        const double of_windows = sums_pixels ? 0.5 : 0.72, pixels = as_double(s_.images * s_.height * s_.width);
        const double of_all_taps = as_double(s_.filters) * as_double(taps());
        const bool filters_pay = !sums_pixels && pays_whole_sectors(given_, s_.channels, of_all_taps, 1 - of_windows);
        const bool pads_channels = pass_ == ConvolutionPass::DataGradient
                                       ? filters_pay
                                       : pays_whole_sectors(given_, s_.channels, pixels, of_windows);
        if (!forward && !joins_phases() && pays_whole_sectors(given_, s_.filters, as_double(outputs()), of_windows))
            s_.filters += piece;
        copies_filters_ = filters_pay && pads_channels;
        if (pads_channels) s_.channels += piece;
    }
    void join_groups(const GroupPlan& plan) {
        joined_ = plan.joined, s_.groups = given_.groups / joined_;
        s_.channels = plan.channels, s_.filters = plan.filters;
        pads_groups_ = s_.groups * s_.channels > given_.channels || s_.groups * s_.filters > given_.filters;
    }
    /// Of groups that have more than `each`, which is in the tensor: where element e stands there, if it does.
    struct InGroups {
        Expr there, element;
    };
    static InGroups in_groups(const Expr& e, int64_t each, int64_t padded) {
        return {e % padded < each, e / padded * each + e % padded};
    }
    /// Among elements of padded groups, number e of the tensor.
    static Expr among_padded(const Expr& e, int64_t each, int64_t padded) {
        return each == padded ? e : e / each * padded + e % each;
    }
    int64_t given_channels() const { return given_.channels / given_.groups; }
    int64_t given_filters() const { return given_.filters / given_.groups; }
    /// Among the channels of the groups that are joined with it, the first one of filter f.
    Expr first_channel(const Expr& f) const { return f / given_filters() % joined_ * given_channels(); }

    /// What the first and the last taps read is zeros wherever the kernel is large beside the image.
    void leave_out_taps() {
        if (!given_.reads_image() || (pass_ == ConvolutionPass::DataGradient && joins_phases())) return;
        auto hull = [](const std::vector<int64_t>& taps) { return Taps{taps.front(), taps.back() - taps.front() + 1}; };
        rows_ = hull(given_.taps_of_rows());
        if (!joins_taps()) columns_ = hull(given_.taps_of_columns());
    }
    bool leaves_out_taps() const { return rows_.count < given_.kernel_h || columns_.count < given_.kernel_w; }

    void forward() {
        if (joins_taps()) {
            c_.windows = rows_of_taps(), c_.other = filters_of_rows();
            c_.product = sum_of_rows(c_.windows, c_.other);
            return;
        }
        c_.windows = padded_copy(c_.x, of_x()), c_.other = filters();
        c_.product = sum_of_windows(c_.windows, c_.other);
        if (pads_groups_ && s_.filters > given_filters())
            c_.result = compute("y_of_groups", {s_.images, given_.rows(), given_.columns(), given_.filters},
                                [&](Expr n, Expr p, Expr q, Expr f) {
                                    return c_.product(n, p, q, among_padded(f, given_filters(), s_.filters));
                                });
    }

    void weight_gradient() {
        c_.windows = padded_copy(c_.dy, of_y());
        if (joins_taps()) {
            c_.other = rows_of_taps();
            const Tensor of = input("w", s_.type, {s_.filters, rows_.count, terms_of_row()});
            c_.product = gradients(sum_of_rows(c_.other, of), c_.windows, {of})[0];
            c_.result = compute("dw", shape_like(c_.w), [&](Expr f, Expr r, Expr t, Expr c) {
                return element_of_product(f, r - rows_.first, t * channels_of_tap() + channel(f, c));
            });
            return;
        }
        c_.other = padded_copy(c_.x, of_x());
        c_.product = sum_of_pixels(c_.windows, c_.other);
        if (leaves_out_taps() || joined_ > 1 || pads_groups_)
            c_.result = compute("dw", shape_like(c_.w), [&](Expr f, Expr r, Expr t, Expr c) {
                return element_of_product(among_padded(f, given_.filters / s_.groups, filters_of_group()),
                                          r - rows_.first, t - columns_.first, channel(f, c));
            });
    }

    void data_gradient() {
        const bool derived = has_shorter_taps();
        const bool phased = !derived && s_.stride > 1;
        c_.windows = padded_copy(c_.dy, of_y());
        if (joins_phases()) return of_joined_phases();
        c_.other = filters();
        const Extents results{s_.images, s_.height, s_.width, s_.groups * channels_of_group()};
        if (derived) {
            const Tensor of = input("x", s_.type, shape_of(results));
            c_.product = gradients(sum_of_windows(of, c_.other), c_.windows, {of})[0];
        } else if (phased) {
            // With stride 4 and dilation 2 bounds do not show that taps end where filters do.
            pads_filters_ |= std::gcd(s_.stride, s_.dilation) > 1 && s_.dilation % s_.stride != 0;
            c_.product = sum_of_phases(c_.windows, c_.other, results);
        } else {
            c_.product = sum_of_flipped(c_.windows, c_.other, results);
        }
        if (pads_groups_ && s_.channels > given_channels())
            c_.result = compute("dx", shape_like(c_.x), [&](Expr n, Expr h, Expr w, Expr c) {
                return c_.product(n, h, w, among_padded(c, given_channels(), s_.channels));
            });
    }

    /// Whether gradients() finds a sum over taps: else it is one over pixels, or takes each tap where it falls on one.
    bool has_shorter_taps() const {
        const int64_t holes = s_.dilation > 1 ? 1 : 0;  // with which as many taps as pixels are no sum over taps
        return rows_.count + holes <= given_.rows() && columns_.count + holes <= given_.columns() &&
               (s_.stride == 1 || s_.dilation == 1);
    }

    Extents of_x() const { return {s_.images, s_.height, s_.width, s_.groups * s_.channels}; }
    /// Of results, which have no more than there are.
    int64_t channels_of_group() const { return pads_groups_ ? s_.channels : given_.channels / s_.groups; }
    int64_t filters_of_group() const { return pads_groups_ ? s_.filters : given_.filters / s_.groups; }
    Extents of_y() const { return {s_.images, given_.rows(), given_.columns(), s_.groups * s_.filters}; }
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
        const int64_t each = as_constant(tensor.shape()[3]).value_or(0) / s_.groups, all = extents[3] / s_.groups;
        if (pads_groups_)
            return copied(tensor.name() + "_padded", shape_of(extents), [&](Expr a, Expr b, Expr d, Expr e) {
                const auto [there, element] = in_groups(e, each, all);
                return select(there, padded(tensor, 0)(a, b, d, element), constant(s_.type, 0.0));
            });
        return copied(tensor.name() + "_padded", shape_of(extents),
                      [&](Expr a, Expr b, Expr d, Expr e) { return padded(tensor, 0)(a, b, d, e); });
    }

    bool multiplies_filters_as_given() const {
        return joined_ == 1 && s_.groups * s_.filters == given_.filters && s_.groups * s_.channels == given_.channels;
    }
    /// Boxes give zeros behind their ends, if rows of channels are whole pieces.
    bool copies_filters() const {
        return copies_filters_ || joined_ > 1 || pads_groups_ || given_.channels / given_.groups % piece != 0;
    }
    /// The filters, or a copy of them with zeros behind their ends and for channels of other groups.
    Tensor filters() {
        if (multiplies_filters_as_given()) return c_.w;
        pads_filters_ = !copies_filters();
        if (pads_filters_) return c_.w;
        return copied("w_padded", {s_.groups * s_.filters, given_.kernel_h, given_.kernel_w, s_.channels},
                      [&](Expr f, Expr r, Expr t, Expr c) { return any_filter(f, r, t, c); });
    }
    /// Zero where there is none.
    Expr any_filter(const Expr& f, const Expr& r, const Expr& t, const Expr& c) const {
        if (!pads_groups_) return padded(c_.w, 0)(f, r, t, joined_ == 1 ? c : c - first_channel(f));
        const auto [there, filter] = in_groups(f, given_filters(), s_.filters);
        return select(there, padded(c_.w, 0)(filter, r, t, c), constant(s_.type, 0.0));
    }
    /// Of all groups that are joined.
    Expr channel(const Expr& f, const Expr& c) const { return joined_ == 1 ? c : first_channel(f) + c; }
    /// Of a tap that is read, in filters of all taps, or of those alone.
    Expr filter(const Tensor& w, const Expr& f, const Expr& r, const Expr& t, const Expr& c) const {
        const bool all = is_constant(w.shape()[1], given_.kernel_h) && is_constant(w.shape()[2], given_.kernel_w);
        const bool moved = all && leaves_out_taps();
        const Expr row = moved ? r + rows_.first : r, column = moved ? t + columns_.first : t;
        return pads_filters_ ? padded(w, 0)(f, row, column, c) : w(f, row, column, c);
    }
    /// Zero of taps that were left out.
    template <class... Indices>
    Expr element_of_product(const Indices&... at) const {
        return leaves_out_taps() ? padded(c_.product, 0)(at...) : c_.product(at...);
    }

    /// y of operands of these extents, summed over the channels that x has.
    Tensor sum_of_windows(const Tensor& x, const Tensor& w) const {
        const int64_t channels = as_constant(x.shape()[3]).value_or(0) / s_.groups;
        Axis r = reduce_axis("r", rows_.count), t = reduce_axis("s", columns_.count), k = reduce_axis("c", channels);
        return compute("y", shape_of(of_y()), [&](Expr n, Expr p, Expr q, Expr f) {
            Expr element = padded(x, 0)(n, row(p, r), column(q, t), in_group(f, s_.filters, channels, k));
            return cast(s_.type, sum(cast(f32, element) * cast(f32, filter(w, f, r, t, k)), {r, t, k}));
        });
    }
    Tensor sum_of_pixels(const Tensor& dy, const Tensor& x) const {
        Axis n = reduce_axis("n", s_.images), p = reduce_axis("p", given_.rows()),
             q = reduce_axis("q", given_.columns());
        const Extents extents{s_.groups * filters_of_group(), rows_.count, columns_.count, channels_of_group()};
        return compute("d_w", shape_of(extents), [&](Expr f, Expr r, Expr t, Expr c) {
            Expr element = padded(x, 0)(n, row(p, r), column(q, t), in_group(f, s_.filters, s_.channels, c));
            return cast(s_.type, sum(cast(f32, dy(n, p, q, f)) * cast(f32, element), {n, p, q}));
        });
    }
    /// The k-th of those elements, so many a group, that belong to element e of others.
    Expr in_group(const Expr& e, int64_t of_e, int64_t elements, const Expr& k) const {
        return s_.groups == 1 ? k : e / of_e * elements + k;
    }
    /// In the image, of a tap that is read by a pixel.
    Expr row(const Expr& pixel, const Expr& tap) const { return pixel * s_.stride + tap * s_.dilation - before(rows_); }
    Expr column(const Expr& pixel, const Expr& tap) const {
        return pixel * s_.stride + tap * s_.dilation - before(columns_);
    }
    /// From the first tap of the first pixel to the image.
    int64_t before(const Taps& taps) const { return s_.padding - taps.first * s_.dilation; }

    // Few channels, in one product: a copy has those of all taps of a row together, for each pixel of y along a row.

    bool joins_taps() const { return given_.channels < piece && given_.kernel_w > 1 && s_.groups == 1; }
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
        return copied("x_rows", {s_.images, s_.height, given_.columns(), terms_of_row()},
                      [&](Expr n, Expr h, Expr q, Expr k) {
                          return in_row(k, [&](Expr tap, Expr c) { return padded(c_.x, 0)(n, h, column(q, tap), c); });
                      });
    }
    Tensor filters_of_rows() {
        c_.copies.push_back(compute("w_rows", {s_.filters, rows_.count, terms_of_row()}, [&](Expr f, Expr r, Expr k) {
            return in_row(k, [&](Expr tap, Expr c) { return any_filter(f, r + rows_.first, tap, c); });
        }));
        return c_.copies.back();
    }
    Tensor sum_of_rows(const Tensor& rows, const Tensor& w) const {
        Axis r = reduce_axis("r", rows_.count), k = reduce_axis("k", terms_of_row());
        return compute("y", shape_of(of_y()), [&](Expr n, Expr p, Expr q, Expr f) {
            Expr element = padded(rows, 0)(n, row(p, r), q, k);
            return cast(s_.type, sum(cast(f32, element) * cast(f32, w(f, r, k)), {r, k}));
        });
    }

    // Few channels of the data gradient with a stride: those of the pixels between two of dy's together as columns.
    // Pixel u a + i takes tap r = i + padding - u (p - a) of pixel p of dy.

    bool joins_phases() const {
        constexpr int64_t most_columns = 64;
        return s_.stride > 1 && s_.dilation == 1 && s_.groups == 1 &&
               s_.stride * s_.stride * given_.channels <= most_columns;
    }

    void of_joined_phases() {
        const int64_t u = s_.stride, channels = given_.channels;
        const int64_t first_h = -floor_of(s_.kernel_h - 1 - s_.padding, u),
                      first_w = -floor_of(s_.kernel_w - 1 - s_.padding, u), last = floor_of(u - 1 + s_.padding, u);
        const int64_t taps_h = last - first_h + 1, taps_w = last - first_w + 1;
        const int64_t columns = whole_pieces(u * u * channels);
        c_.other = copied("w_phases", {s_.filters, taps_h, taps_w, columns}, [&](Expr f, Expr r, Expr t, Expr column) {
            Expr phase = column / channels;
            Expr element = any_filter(f, phase / u + s_.padding - (r + first_h) * u,
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
    }

    /// The data gradient with taps as far apart as the declaration's, from the last one on.
    Tensor sum_of_flipped(const Tensor& dy, const Tensor& w, const Extents& results) const {
        Axis r = reduce_axis("r", rows_.count), t = reduce_axis("s", columns_.count), k = reduce_axis("f", s_.filters);
        return compute("d_x", shape_of(results), [&](Expr n, Expr h, Expr v, Expr c) {
            const Expr f = in_group(c, channels_of_group(), s_.filters, k);
            Expr element =
                padded(dy, 0)(n, h + before(rows_) - r * s_.dilation, v + before(columns_) - t * s_.dilation, f);
            Expr weight = filter(w, f, r, t, s_.groups == 1 ? c : c % channels_of_group());
            return cast(s_.type, sum(cast(f32, element) * cast(f32, weight), {r, t, k}));
        });
    }

    /// With the taps of a pixel's phase alone, also where dy has fewer pixels than there are taps. Pixel h takes tap r
    /// of dy's pixel (h + before - r dilation) / u: where g = gcd(u, dilation) divides h + before, every u / g-th.
    Tensor sum_of_phases(const Tensor& dy, const Tensor& w, const Extents& results) const {
        return compute("d_x", shape_of(results), [&](Expr n, Expr h, Expr v, Expr c) {
            const Phase row = phase_of(h + before(rows_), rows_), column = phase_of(v + before(columns_), columns_);
            Axis r = reduce_axis("r", row.taps), t = reduce_axis("s", column.taps), k = reduce_axis("f", s_.filters);
            const Expr f = in_group(c, channels_of_group(), s_.filters, k);
            Expr element = padded(dy, 0)(n, row.pixel - r * row.between, column.pixel - t * column.between, f);
            Expr weight = filter(w, f, r * row.stride + row.first, t * column.stride + column.first,
                                 s_.groups == 1 ? c : c % channels_of_group());
            return cast(s_.type, sum(cast(f32, element) * cast(f32, weight), {r, t, k}));
        });
    }
    /// Taps first + i stride of pixels of dy, from the last one on.
    struct Phase {
        Expr taps, first, pixel;
        int64_t stride, between;  ///< of taps, and of their pixels
    };
    Phase phase_of(const Expr& place, const Taps& of) const {
        const int64_t common = std::gcd(s_.stride, s_.dilation), u = s_.stride / common, d = s_.dilation / common;
        int64_t inverse = 1;  // of d modulo u
        while (inverse * d % u != 1 % u) ++inverse;
        const Expr whole = simplify(place / common), first = simplify(whole * inverse % u);
        const Expr none = (place % common + (common - 1)) / common, left = of.count - first + (u - 1);
        return {.taps = simplify(common == 1 ? left / u : max((left - none * (of.count + u)) / u, 0)),
                .first = first,
                .pixel = simplify((whole - first * d) / u),
                .stride = u,
                .between = d};
    }

    const ConvolutionShape given_;
    ConvolutionShape
        s_;  ///< as the product's operands lie; of the forward pass filters are rows of them, of any number
    bool pads_groups_ = false;     ///< copies have zeros behind each group's
    bool copies_filters_ = false;  ///< so that their rows are whole sectors
    bool pads_filters_ = false;    ///< the product reads `other` as `padded(.., 0)`
    int64_t joined_ = 1;           ///< groups that are multiplied together; s_ has the others, and what one of them has
    const ConvolutionPass pass_;
    Taps rows_{0, s_.kernel_h}, columns_{0, s_.kernel_w};  ///< that are multiplied
    Convolution c_;
};

void check_shape(const ConvolutionShape& shape, std::source_location where) {
    user_check(std::min({shape.kernel_h, shape.kernel_w, shape.stride, shape.dilation}) > 0 && shape.padding >= 0 &&
                   shape.has_pixels(),
               where,
               "convolution: a kernel of {} x {} with dilation {} and stride {} has no place in images of {} x {} with "
               "{} zeros around them",
               shape.kernel_h, shape.kernel_w, shape.dilation, shape.stride, shape.height, shape.width, shape.padding);
    user_check(shape.has_groups(), where,
               "convolution: {} groups do not divide {} channels and {} filters; give a common divisor", shape.groups,
               shape.channels, shape.filters);
}

}  // namespace

Convolution declare_convolution(const ConvolutionShape& shape, ConvolutionPass pass, std::source_location where) {
    CalledFrom caller(where);
    check_shape(shape, where);
    return declare_convolution(shape, pass, plan_groups(shape, pass), where);
}

Convolution declare_convolution(const ConvolutionShape& shape, ConvolutionPass pass, const GroupPlan& plan,
                                std::source_location where) {
    CalledFrom caller(where);
    check_shape(shape, where);
    const Convolution declared = Declaration(shape, pass, plan).run();
    return shape.layout == Layout::ChannelsFirst ? with_channels_first(declared) : declared;
}

}  // namespace tw::schedules
