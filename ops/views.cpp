#include "ops/views.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>

#include <fmt/ranges.h>

#include "dsl/differentiate.h"
#include "ops/broadcasting.h"
#include "ops/tape/memory_views.h"
#include "schedules/views.h"
#include "support/error.h"

namespace tw::nn {
namespace {

int64_t product_of(const std::vector<int64_t>& extents) {
    return std::accumulate(extents.begin(), extents.end(), int64_t{1}, std::multiplies<>());
}

/// The shape with its -1 made out, if it has as many elements as `from`; nothing of what reshape() refuses.
std::optional<std::vector<int64_t>> shape_of_all(const std::vector<int64_t>& from, std::vector<int64_t> shape) {
    const auto open = std::ranges::find(shape, -1);
    if (open != shape.end()) *open = 1;
    if (std::ranges::any_of(shape, [](int64_t extent) { return extent <= 0; })) return {};
    if (open != shape.end()) *open = product_of(from) / product_of(shape);
    if (product_of(shape) != product_of(from)) return {};
    return shape;
}

/// Whether elements are in rows as before. Not so of what permute() refuses.
bool keeps_order(const std::vector<int64_t>& extents, const std::vector<int>& order) {
    std::vector<int> all(extents.size()), wide;
    std::iota(all.begin(), all.end(), 0);
    if (!std::ranges::is_permutation(order, all)) return false;
    std::ranges::copy_if(order, std::back_inserter(wide), [&](int d) { return extents[static_cast<size_t>(d)] != 1; });
    return std::ranges::is_sorted(wide);
}

/// Of the gradient of x's slice: that of x, 0 beside it.
ViewGradient gradient_around_slice(const std::vector<int64_t>& shape, int dim, int64_t begin, int64_t end,
                                   std::source_location where) {
    return [=](const Tensor& gradient) {
        const std::string options = fmt::format("{} {} {} {}", dim, begin, end, shape);
        return operator_with("around_slice", options, [=](const std::vector<tw::Tensor>& in) {
            const tw::Tensor x = input("x", in[0].type(), {shape.begin(), shape.end()});
            return tw::gradients(schedules::slice("slice", x, dim, begin, end), in[0], {x})[0];
        })({gradient}, where);
    };
}

/// Nothing of what slice() refuses, and where the elements do not lie side by side.
std::optional<Tensor> slice_in_memory(const Tensor& x, int dim, int64_t begin, int64_t end,
                                      std::source_location where) {
    const std::vector<int64_t>& from = x.shape();
    if (dim < 0 || dim >= static_cast<int>(from.size())) return {};
    const auto place = from.begin() + dim;
    const int64_t extent = *place, first = begin < 0 ? begin + extent : begin, last = end < 0 ? end + extent : end;
    if (first < 0 || first >= last || last > extent) return {};
    if (last - first == extent) return all_in_memory(x, "slice", from, where);
    if (product_of({from.begin(), place}) != 1) return {};
    std::vector<int64_t> shape = from;
    shape[static_cast<size_t>(dim)] = last - first;
    return view_in_memory(x, {"slice", first * product_of({place + 1, from.end()}), shape},
                          gradient_around_slice(from, dim, first, last, where), where);
}

}  // namespace

Tensor reshape(const Tensor& x, const std::vector<int64_t>& shape, std::source_location where) {
    if (const auto all = shape_of_all(x.shape(), shape))
        if (const auto view = all_in_memory(x, "reshape", *all, where)) return *view;
    return operator_with("reshape", fmt::format("{}", shape), [shape](const std::vector<tw::Tensor>& in) {
        return schedules::reshape("reshaped", in[0], shape);
    })({x}, where);
}

Tensor slice(const Tensor& x, int dim, int64_t begin, int64_t end, std::source_location where) {
    if (const auto view = slice_in_memory(x, dim, begin, end, where)) return *view;
    return operator_with("slice", fmt::format("{} {} {}", dim, begin, end), [=](const std::vector<tw::Tensor>& in) {
        return schedules::slice("slice", in[0], dim, begin, end);
    })({x}, where);
}

Tensor permute(const Tensor& x, const std::vector<int>& order, std::source_location where) {
    if (keeps_order(x.shape(), order)) {
        std::vector<int64_t> shape;
        for (const int d : order) shape.push_back(x.shape()[static_cast<size_t>(d)]);
        if (const auto view = all_in_memory(x, "permute", shape, where)) return *view;
    }
    return operator_with("permute", fmt::format("{}", order), [order](const std::vector<tw::Tensor>& in) {
        return schedules::permute("permuted", in[0], order);
    })({x}, where);
}

Tensor slice(const Tensor& x, int dim, int64_t begin, int64_t end, int64_t step, std::source_location where) {
    user_check(step > 0, where, "slice of '{}': the step is {}; give 1 or more", x.name(), step);
    const Tensor whole = slice(x, dimension_of("slice", x.shape(), dim, where), begin, end, where);
    if (step == 1) return whole;
    const size_t d = static_cast<size_t>(dimension_of("slice", x.shape(), dim, where));
    if (step >= whole.shape()[d]) return slice(whole, static_cast<int>(d), 0, 1, where);
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
    if (product_of(shape) == product_of(x.shape()))
        if (const auto view = all_in_memory(x, "broadcast_to", shape, where)) return *view;
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

Tensor clone(const Tensor& x, std::source_location where) {
    static const Operator op("clone", [](const std::vector<tw::Tensor>& in) {
        return compute("clone", {in[0].shape().begin(), in[0].shape().end()}, [&](const std::vector<Expr>& at) {
            return in[0].read({at.begin(), at.end()});
        });
    });
    return op({x}, where);
}

}  // namespace tw::nn
