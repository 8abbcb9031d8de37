#include "ops/views.h"

#include <algorithm>
#include <numeric>

#include <fmt/ranges.h>

#include "ops/broadcasting.h"
#include "schedules/views.h"
#include "support/error.h"

namespace tw::nn {

Tensor reshape(const Tensor& x, const std::vector<int64_t>& shape, std::source_location where) {
    return operator_with("reshape", fmt::format("{}", shape), [shape](const std::vector<tw::Tensor>& in) {
        return schedules::reshape("reshaped", in[0], shape);
    })({x}, where);
}

Tensor slice(const Tensor& x, int dim, int64_t begin, int64_t end, std::source_location where) {
    return operator_with("slice", fmt::format("{} {} {}", dim, begin, end), [=](const std::vector<tw::Tensor>& in) {
        return schedules::slice("slice", in[0], dim, begin, end);
    })({x}, where);
}

Tensor permute(const Tensor& x, const std::vector<int>& order, std::source_location where) {
    return operator_with("permute", fmt::format("{}", order), [order](const std::vector<tw::Tensor>& in) {
        return schedules::permute("permuted", in[0], order);
    })({x}, where);
}

Tensor slice(const Tensor& x, int dim, int64_t begin, int64_t end, int64_t step, std::source_location where) {
    user_check(step > 0, where, "slice of '{}': the step is {}; give 1 or more", x.name(), step);
    const Tensor whole = slice(x, dimension_of("slice", x.shape(), dim, where), begin, end, where);
    if (step == 1) return whole;
    const size_t d = static_cast<size_t>(dimension_of("slice", x.shape(), dim, where));
    return operator_with("every", fmt::format("{} {}", d, step), [=](const std::vector<tw::Tensor>& in) {
        std::vector<int64_t> shape = extents_of(in[0]);
        shape[d] = (shape[d] + step - 1) / step;
        return compute("every", {shape.begin(), shape.end()}, [&](const std::vector<Expr>& at) {
            std::vector<Operand> places(at.begin(), at.end());
            places[d] = at[d] * step;
            return in[0].read(places);
        });
    })({whole}, where);
}

Tensor transpose(const Tensor& x, int a, int b, std::source_location where) {
    std::vector<int> order(x.shape().size());
    std::iota(order.begin(), order.end(), 0);
    const auto place = [&](int dim) { return static_cast<size_t>(dimension_of("transpose", x.shape(), dim, where)); };
    std::swap(order[place(a)], order[place(b)]);
    return permute(x, order, where);
}

Tensor broadcast_to(const Tensor& x, const std::vector<int64_t>& shape, std::source_location where) {
    user_check(x.shape().size() <= shape.size() && broadcast_shape("broadcast_to", x.shape(), shape, where) == shape,
               where, "broadcast_to: x is {}, the shape {}; extents of x that are not 1 have to stay",
               shape_text(x.shape()), shape_text(shape));
    return operator_with("broadcast_to", fmt::format("{}", shape), [shape](const std::vector<tw::Tensor>& in) {
        return compute("broadcast", {shape.begin(), shape.end()},
                       [&](const std::vector<Expr>& at) { return broadcast_element(in[0], at, shape); });
    })({x}, where);
}

Tensor squeeze(const Tensor& x, int dim, std::source_location where) {
    const int place = dimension_of("squeeze", x.shape(), dim, where);
    std::vector<int64_t> shape = x.shape();
    user_check(shape[static_cast<size_t>(place)] == 1, where,
               "squeeze: x is {}, and dimension {} is not 1; sum() leaves out others", shape_text(shape), place);
    shape.erase(shape.begin() + place);
    return reshape(x, shape, where);
}

Tensor unsqueeze(const Tensor& x, int dim, std::source_location where) {
    std::vector<int64_t> shape = x.shape();
    shape.push_back(1);
    const int place = dimension_of("unsqueeze, of what it makes", shape, dim, where);
    std::rotate(shape.begin() + place, shape.end() - 1, shape.end());
    return reshape(x, shape, where);
}

}  // namespace tw::nn
