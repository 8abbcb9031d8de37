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

/// The shape whose -1 are extents of x, where x has one.
std::vector<int64_t> with_extents_of(const std::vector<int64_t>& x, std::vector<int64_t> shape) {
    for (size_t back = 1; back <= std::min(x.size(), shape.size()); ++back)
        if (int64_t& extent = shape[shape.size() - back]; extent == -1) extent = x[x.size() - back];
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
    if (dim < 0) dim += static_cast<int>(x.shape().size());
    if (const auto view = slice_in_memory(x, dim, begin, end, where)) return *view;
    return operator_with("slice", fmt::format("{} {} {}", dim, begin, end), [=](const std::vector<tw::Tensor>& in) {
        return schedules::slice("slice", in[0], dim, begin, end);
    })({x}, where);
}

Tensor permute(const Tensor& x, const std::vector<int>& given, std::source_location where) {
    std::vector<int> order = given;
    for (int& from : order) from += from < 0 ? static_cast<int>(x.shape().size()) : 0;
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
    user_check(step > 0, where, "slice of '{}': the step is {}; give 1 or more, and turn what it makes by flip()",
               x.name(), step);
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

Tensor select(const Tensor& x, int dim, int64_t index, std::source_location where) {
    const int along = dimension_of("select", x.shape(), dim, where);
    const int64_t extent = x.shape()[static_cast<size_t>(along)], place = index < 0 ? index + extent : index;
    user_check(place >= 0 && place < extent, where,
               "select of '{}' {}: there is no place {} along dimension {}; write one from {} to {}", x.name(),
               shape_text(x.shape()), index, along, -extent, extent - 1);
    return squeeze(slice(x, along, place, place + 1, where), along, where);
}

Tensor flip(const Tensor& x, const std::vector<int>& dims, std::source_location where) {
    std::vector<size_t> turned;
    for (const int dim : dims) {
        const auto d = static_cast<size_t>(dimension_of("flip", x.shape(), dim, where));
        user_check(std::ranges::count(turned, d) == 0, where, "flip: dimension {} is named twice; name each once", d);
        turned.push_back(d);
    }
    std::ranges::sort(turned);
    std::erase_if(turned, [&](size_t d) { return x.shape()[d] <= 1; });
    if (turned.empty()) return reshape(x, x.shape(), where);
    return operator_with("flip", fmt::format("{}", turned), [turned](const std::vector<tw::Tensor>& in) {
        const std::vector<int64_t> shape = extents_of(in[0]);
        return compute("flipped", {shape.begin(), shape.end()}, [&](const std::vector<Expr>& at) {
            std::vector<Operand> places(at.begin(), at.end());
            for (const size_t d : turned) places[d] = shape[d] - 1 - at[d];
            return in[0].read(places);
        });
    })({x}, where);
}

Tensor transpose(const Tensor& x, int a, int b, std::source_location where) {
    std::vector<int> order(x.shape().size());
    std::iota(order.begin(), order.end(), 0);
    const auto place = [&](int dim) { return static_cast<size_t>(dimension_of("transpose", x.shape(), dim, where)); };
    std::swap(order[place(a)], order[place(b)]);
    return permute(x, order, where);
}

Tensor broadcast_to(const Tensor& x, const std::vector<int64_t>& asked, std::source_location where) {
    const std::vector<int64_t> shape = with_extents_of(x.shape(), asked);
    user_check(std::ranges::all_of(shape, [](int64_t extent) { return extent >= 0; }), where,
               "broadcast_to: x is {}, the shape {}; -1 stands for an extent that x has, others are not negative",
               shape_text(x.shape()), shape_text(asked));
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
