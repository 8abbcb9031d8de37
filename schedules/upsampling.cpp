#include "schedules/upsampling.h"

#include "dsl/differentiate.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

std::vector<int64_t> checked_factors(const std::string& what, const Tensor& x, const std::vector<int64_t>& factors,
                                     std::source_location where) {
    user_check(x.rank() >= 3 && x.rank() <= 5 && is_float(x.type()), where,
               "{}: x is {} {}; give floats [images, extents..., channels] with 1 to 3 extents", what,
               name_of(x.type()), text_of_shape(x));
    const auto count = static_cast<size_t>(x.rank() - 2);
    check_entries(what, "factors", factors.size(), count, x, where);
    std::vector<int64_t> all;
    for (size_t d = 0; d < count; ++d) {
        all.push_back(entry_for(factors, d));
        user_check(all[d] > 0, where, "{}: factor {} along dimension {} of x {}; give one of 1 or more", what, all[d],
                   d + 1, text_of_shape(x));
        constant_extent(what, x, static_cast<int>(d) + 1, where);
    }
    return all;
}

Shape grown(const Tensor& x, const std::vector<int64_t>& factors) {
    Shape shape(x.shape().begin(), x.shape().end());
    for (size_t d = 0; d < factors.size(); ++d) shape[d + 1] = simplify(x.shape()[d + 1] * factors[d]);
    return shape;
}

/// Between two neighbours: the place of the first, -1 in front of all, and the weight of the second.
struct Between {
    Expr first, weight;
};
/// Element i of the result stands at i / factor + (2 (i % factor) + 1 - factor) / (2 factor).
Between between(const Expr& i, int64_t factor, Type type) {
    const Expr halves = 2 * (i % factor) + (1 - factor);  // of an element of the result
    const Expr weight = cast(type, simplify(halves % (2 * factor))) / constant(type, static_cast<double>(2 * factor));
    return {simplify(i / factor + halves / (2 * factor)), weight};
}

Expr mix(const Expr& first, const Expr& second, const Expr& weight) { return first * (1 - weight) + second * weight; }

/// Along one dimension of an image with a border of one element, [.., extent + 2, ..]: places are affine in the
/// quotient by the factor.
Tensor linear_in_border(const std::string& name, const Tensor& bordered, size_t dimension, int64_t factor,
                        int64_t extent, Type type) {
    Shape shape(bordered.shape().begin(), bordered.shape().end());
    shape[dimension] = extent * factor;
    return compute(name, shape, [&](const std::vector<Expr>& at) {
        const Between b = between(at[dimension], factor, type);
        const Axis k = reduce_axis("k", 2);
        std::vector<Operand> places(at.begin(), at.end());
        places[dimension] = b.first + 1 + k;
        return sum(cast(type, padded(bordered, 0).read(places)) * select(k == 0, 1 - b.weight, b.weight), k);
    });
}

/// sum over the 2^d neighbours
Expr interpolated(const Tensor& x, const std::vector<int64_t>& factors, const std::vector<Expr>& at, size_t dimension,
                  std::vector<Operand>& places) {
    const Type type = sum_type(x.type());
    if (dimension > factors.size()) return cast(type, x.read(places));
    if (factors[dimension - 1] == 1) return interpolated(x, factors, at, dimension + 1, places);
    const int64_t last = *as_constant(x.shape()[dimension]) - 1;
    const Between b = between(at[dimension], factors[dimension - 1], type);
    places[dimension] = max(b.first, 0);
    const Expr first = interpolated(x, factors, at, dimension + 1, places);
    places[dimension] = min(b.first + 1, last);
    const Expr second = interpolated(x, factors, at, dimension + 1, places);
    places[dimension] = at[dimension];
    return mix(first, second, b.weight);
}

}  // namespace

Tensor upsample_nearest(const std::string& name, const Tensor& x, const std::vector<int64_t>& factors,
                        std::source_location where) {
    CalledFrom caller(where);
    const std::vector<int64_t> all = checked_factors("upsample_nearest", x, factors, where);
    auto element = [&](const std::vector<Expr>& at) {
        std::vector<Operand> places(at.begin(), at.end());
        for (size_t d = 0; d < all.size(); ++d)
            if (all[d] != 1) places[d + 1] = at[d + 1] / all[d];
        return x.read(places);
    };
    return compute(name, grown(x, all), element, where);
}

Tensor upsample_linear(const std::string& name, const Tensor& x, const std::vector<int64_t>& factors,
                       std::source_location where) {
    CalledFrom caller(where);
    const std::vector<int64_t> all = checked_factors("upsample_linear", x, factors, where);
    auto element = [&](const std::vector<Expr>& at) {
        std::vector<Operand> places(at.begin(), at.end());
        return cast(x.type(), interpolated(x, all, at, 1, places));
    };
    // The same along one dimension after the other.
    auto rule = [name, x, all](const Tensor&, const Tensor& dy) {
        Tensor image = x;
        for (size_t d = 0; d < all.size(); ++d) {
            if (all[d] == 1) continue;
            std::vector<Sides> sides(all.size(), 0);
            sides[d] = 1;
            const std::string along = fmt::format("{}_along_{}", name, d + 1);
            const Tensor around = bordered(along + "_image", image, sides, PaddingMode::Replicate);
            image = linear_in_border(along, around, d + 1, all[d], *as_constant(x.shape()[d + 1]), sum_type(x.type()));
        }
        return image.same(x) ? std::vector<Tensor>{dy} : gradients(image, dy, {x});
    };
    return with_gradient(compute(name, grown(x, all), element, where), {x}, rule, where);
}

}  // namespace tw::schedules
