#include "schedules/normalization.h"

#include <functional>

#include "dsl/differentiate.h"
#include "dsl/simplify.h"
#include "schedules/windows.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

using Indices = std::vector<Expr>;

Shape shape_of(const Tensor& x) { return {x.shape().begin(), x.shape().end()}; }

void check_floats(const std::string& what, const Tensor& x, int least, std::source_location where) {
    user_check(x.rank() >= least && is_float(x.type()), where, "{}: x is {} {}; give floats of {} dimensions at least",
               what, name_of(x.type()), text_of_shape(x), least);
}

/// Of images with channels in front of their pixels.
std::string advice_on_channels(const Tensor& part, const Tensor& x) {
    if (part.rank() != 1 || x.rank() < 3 || !equal(part.shape()[0], x.shape()[1])) return "";
    std::string order = "0";
    for (int d = 2; d < x.rank(); ++d) order += fmt::format(", {}", d);
    return fmt::format("; channels are its last dimension here: give it permute(x, {{{}, 1}})", order);
}

/// `part` has the shape of the last dimensions of x.
void check_part(const std::string& what, const std::string& name, const Tensor& part, const Tensor& x,
                size_t dimensions, std::source_location where) {
    if (!part.defined()) return;
    bool fits = static_cast<size_t>(part.rank()) == dimensions &&
                (part.type() == x.type() || part.type() == sum_type(x.type()));
    const size_t outer = static_cast<size_t>(x.rank()) - dimensions;
    for (size_t d = 0; fits && d < dimensions; ++d) fits = equal(part.shape()[d], x.shape()[outer + d]);
    user_check(fits, where, "{}: x is {} {}, the {} {} {}; give it the last {} of x's extents, and x's type or {}{}",
               what, name_of(x.type()), text_of_shape(x), name, name_of(part.type()), text_of_shape(part), dimensions,
               name_of(sum_type(x.type())), dimensions == 1 ? advice_on_channels(part, x) : "");
}

void check_affinity(const std::string& what, const Affinity& affinity, const Tensor& x, size_t dimensions,
                    std::source_location where) {
    check_part(what, "gain", affinity.gain, x, dimensions, where);
    check_part(what, "bias", affinity.bias, x, dimensions, where);
}

/// Their product, as a number to divide by.
Expr number_of(const std::vector<Axis>& axes, Type type) {
    Expr count = integer(1);
    for (const Axis& axis : axes) count = count * axis.extent;
    return cast(type, simplify(count));
}

/// Of all dimensions of x but the last.
std::vector<Axis> pixels_of(const Tensor& x) {
    std::vector<Axis> axes;
    for (int d = 0; d + 1 < x.rank(); ++d) axes.push_back(reduce_axis("n", x.shape()[static_cast<size_t>(d)]));
    return axes;
}

/// Moments over `axes` of what `element` gives for one of each of them.
Moments moments_of(const std::string& name, const Shape& kept, const std::vector<Axis>& axes, Type type,
                   const std::function<Expr(const Indices&)>& element) {
    const Expr elements = number_of(axes, type);
    const Tensor mean =
        compute(name + "_mean", kept, [&](const Indices& at) { return sum(element(at), axes) / elements; });
    const Tensor variance = compute(name + "_variance", kept, [&](const Indices& at) {
        const Expr off = element(at) - mean.read({at.begin(), at.end()});
        return sum(off * off, axes) / elements;
    });
    return {mean, variance};
}

/// `place`: of an element's moments; gain and bias stand at the element's last indices.
Tensor normalised(const std::string& name, const Tensor& x, const Moments& moments,
                  const std::function<Indices(const Indices&)>& place, const Affinity& affinity, double epsilon,
                  std::source_location where) {
    const Type type = sum_type(x.type());
    auto element = [&](const Indices& at) {
        const Indices of_moments = place(at);
        const std::vector<Operand> m(of_moments.begin(), of_moments.end());
        auto part = [&](const Tensor& tensor) { return cast(type, tensor.read({at.end() - tensor.rank(), at.end()})); };
        const Expr scale = rsqrt(cast(type, moments.variance.read(m)) + constant(type, epsilon));
        Expr value = (cast(type, x.read({at.begin(), at.end()})) - cast(type, moments.mean.read(m))) * scale;
        if (affinity.gain.defined()) value = value * part(affinity.gain);
        if (affinity.bias.defined()) value = value + part(affinity.bias);
        return cast(x.type(), value);
    };
    return compute(name, shape_of(x), element, where);
}

Indices last_of(const Indices& at) { return {at.back()}; }

/// For each channel.
Tensor channel_sum(const std::string& name, const Tensor& x, const std::function<Expr(const Indices&)>& term) {
    const std::vector<Axis> axes = pixels_of(x);
    return compute(name, {x.shape().back()}, [&](const Indices& channel) {
        Indices at(axes.begin(), axes.end());
        at.push_back(channel[0]);
        return sum(term(at), axes);
    });
}

/// The adjoints of x, gain and bias, those that are defined, of y = (x - mean) scale gain + bias, where mean and
/// scale = 1 / sqrt(variance + epsilon) are of x itself. Both sums are over the n elements of a channel:
///
///     dbias = sum(dy)    dgain = scale sum(dy (x - mean))
///     dx = gain scale (dy - sum(dy) / n - (x - mean) scale^2 sum(dy (x - mean)) / n)
std::vector<Tensor> batch_norm_adjoints(const std::string& name, const Tensor& x, const Moments& moments,
                                        const Affinity& affinity, double epsilon, const Tensor& dy) {
    const Type type = sum_type(x.type());
    auto element = [&](const Tensor& tensor, const Indices& at) {
        return cast(type, tensor.read({at.begin(), at.end()}));
    };
    auto off = [&](const Indices& at) { return element(x, at) - moments.mean(at.back()); };
    auto scale = [&](const Expr& channel) { return rsqrt(moments.variance(channel) + constant(type, epsilon)); };
    const Tensor total = channel_sum("d_" + name + "_total", x, [&](const Indices& at) { return element(dy, at); });
    const Tensor product =
        channel_sum("d_" + name + "_product", x, [&](const Indices& at) { return element(dy, at) * off(at); });
    const Expr elements = number_of(pixels_of(x), type);
    auto dx = [&](const Indices& at) {
        const Expr& channel = at.back();
        const Expr slope = product(channel) * scale(channel) * scale(channel);
        const Expr rest = element(dy, at) - (total(channel) + off(at) * slope) / elements;
        const Expr factor =
            affinity.gain.defined() ? scale(channel) * element(affinity.gain, {channel}) : scale(channel);
        return rest * factor;
    };
    std::vector<Tensor> adjoints{compute("d_" + name + "_x", shape_of(x), dx)};
    if (affinity.gain.defined())
        adjoints.push_back(compute("d_" + name + "_gain", {x.shape().back()},
                                   [&](Expr channel) { return product(channel) * scale(channel); }));
    if (affinity.bias.defined()) adjoints.push_back(total);
    return adjoints;
}

}  // namespace

Moments channel_moments(const std::string& name, const Tensor& x, std::source_location where) {
    CalledFrom caller(where);
    check_floats("channel_moments", x, 2, where);
    const std::vector<Axis> axes = pixels_of(x);
    const Type type = sum_type(x.type());
    return moments_of(name, {x.shape().back()}, axes, type, [&](const Indices& channel) {
        std::vector<Operand> at(axes.begin(), axes.end());
        at.emplace_back(channel[0]);
        return cast(type, x.read(at));
    });
}

Tensor batch_norm(const std::string& name, const Tensor& x, const Affinity& affinity, double epsilon,
                  std::source_location where) {
    CalledFrom caller(where);
    check_floats("batch_norm", x, 2, where);
    check_affinity("batch_norm", affinity, x, 1, where);
    const Moments moments = channel_moments(name, x, where);
    std::vector<Tensor> inputs{x};
    for (const Tensor& part : {affinity.gain, affinity.bias})
        if (part.defined()) inputs.push_back(part);
    return with_gradient(
        normalised(name, x, moments, last_of, affinity, epsilon, where), inputs,
        [=](const Tensor&, const Tensor& dy) { return batch_norm_adjoints(name, x, moments, affinity, epsilon, dy); },
        where);
}

Tensor batch_norm_by(const std::string& name, const Moments& moments, const Tensor& x, const Affinity& affinity,
                     double epsilon, std::source_location where) {
    CalledFrom caller(where);
    check_floats("batch_norm_by", x, 2, where);
    check_part("batch_norm_by", "mean", moments.mean, x, 1, where);
    check_part("batch_norm_by", "variance", moments.variance, x, 1, where);
    check_affinity("batch_norm_by", affinity, x, 1, where);
    return normalised(name, x, moments, last_of, affinity, epsilon, where);
}

Tensor group_norm(const std::string& name, const Tensor& x, int64_t groups, const Affinity& affinity, double epsilon,
                  std::source_location where) {
    CalledFrom caller(where);
    check_floats("group_norm", x, 2, where);
    const int64_t channels = constant_extent("group_norm", x, x.rank() - 1, where);
    user_check(groups > 0 && channels % groups == 0, where,
               "group_norm: {} groups do not divide the {} channels of x {}; give a divisor", groups, channels,
               text_of_shape(x));
    check_affinity("group_norm", affinity, x, 1, where);
    const int64_t of_group = channels / groups;
    std::vector<Axis> axes;
    for (int d = 1; d + 1 < x.rank(); ++d) axes.push_back(reduce_axis("n", x.shape()[static_cast<size_t>(d)]));
    axes.push_back(reduce_axis("c", of_group));
    const Type type = sum_type(x.type());
    const Moments moments = moments_of(name, {x.shape()[0], groups}, axes, type, [&](const Indices& kept) {
        std::vector<Operand> at = {kept[0]};
        at.insert(at.end(), axes.begin(), axes.end() - 1);
        at.emplace_back(kept[1] * of_group + axes.back());
        return cast(type, x.read(at));
    });
    return normalised(
        name, x, moments,
        [&](const Indices& at) {
            return Indices{at[0], at.back() / of_group};
        },
        affinity, epsilon, where);
}

Tensor layer_norm(const std::string& name, const Tensor& x, int64_t dimensions, const Affinity& affinity,
                  double epsilon, std::source_location where) {
    CalledFrom caller(where);
    check_floats("layer_norm", x, 1, where);
    user_check(dimensions >= 1 && dimensions <= x.rank(), where,
               "layer_norm: over the last {} dimensions of x {}; give 1 to {}", dimensions, text_of_shape(x), x.rank());
    check_affinity("layer_norm", affinity, x, static_cast<size_t>(dimensions), where);
    const auto outer = static_cast<std::ptrdiff_t>(x.rank() - dimensions);
    Shape kept(x.shape().begin(), x.shape().begin() + outer);
    std::vector<Axis> axes;
    for (auto extent = x.shape().begin() + outer; extent != x.shape().end(); ++extent)
        axes.push_back(reduce_axis("c", *extent));
    const Type type = sum_type(x.type());
    const Moments moments = moments_of(name, kept, axes, type, [&](const Indices& row) {
        std::vector<Operand> at(row.begin(), row.end());
        at.insert(at.end(), axes.begin(), axes.end());
        return cast(type, x.read(at));
    });
    return normalised(
        name, x, moments, [&](const Indices& at) { return Indices(at.begin(), at.begin() + outer); }, affinity, epsilon,
        where);
}

}  // namespace tw::schedules
