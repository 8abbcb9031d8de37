#include "ops/reduced.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "ops/broadcasting.h"
#include "support/error.h"

namespace tw::nn {

std::vector<int> dimensions_of(const std::string& who, const Tensor& x, const std::vector<int>& dims,
                               std::source_location where) {
    std::vector<int> named;
    for (int dim : dims) named.push_back(dimension_of(who, x.shape(), dim, where));
    std::ranges::sort(named);
    user_check(std::ranges::adjacent_find(named) == named.end(), where,
               "{}: dimensions [{}] of x, {}; name each of them once", who, fmt::join(dims, ", "),
               shape_text(x.shape()));
    for (int dim = 0; dims.empty() && dim < static_cast<int>(x.shape().size()); ++dim) named.push_back(dim);
    return named;
}

int64_t terms_of(const Tensor& x, const std::vector<int>& dims) {
    int64_t terms = 1;
    for (int dim : dims) terms *= x.shape()[static_cast<size_t>(dim)];
    return terms;
}

Reduced::Reduced(const tw::Tensor& x, const std::vector<int>& dims, bool keep) : x(x), keep_(keep) {
    const std::vector<int64_t> extents = extents_of(x);
    for (int d = 0; d < x.rank(); ++d) {
        const int64_t extent = extents[static_cast<size_t>(d)];
        is_reduced_.push_back(std::ranges::binary_search(dims, d));
        if (is_reduced_.back()) axes.push_back(reduce_axis(fmt::format("d{}", d), extent));
        if (is_reduced_.back()) count *= static_cast<double>(extent);
        if (!is_reduced_.back() || keep) shape.push_back(is_reduced_.back() ? 1 : extent);
    }
}

Expr Reduced::term(const std::vector<Expr>& at) const {
    std::vector<Operand> places;
    size_t axis = 0, place = 0;
    for (const bool is_reduced : is_reduced_) {
        places.emplace_back(is_reduced ? Expr(axes[axis++]) : at[place]);
        place += !is_reduced || keep_;
    }
    return cast(computed_type(x.type()), x.read(places));
}

}  // namespace tw::nn
