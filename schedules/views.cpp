#include "schedules/views.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "dsl/check_sizes.h"
#include "dsl/differentiate.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

std::optional<std::vector<int64_t>> numbers_of(const std::vector<Expr>& shape) {
    std::vector<int64_t> numbers;
    for (const Expr& extent : shape) {
        const auto number = as_constant(extent);
        if (!number) return {};
        numbers.push_back(*number);
    }
    return numbers;
}

int64_t product_of(const std::vector<int64_t>& extents) {
    return std::accumulate(extents.begin(), extents.end(), int64_t{1}, std::multiplies<>());
}

std::vector<size_t> wide_dimensions(const std::vector<int64_t>& shape) {
    std::vector<size_t> wide;
    for (size_t d = 0; d < shape.size(); ++d)
        if (shape[d] != 1) wide.push_back(d);
    return wide;
}

/// Where the element at `at` of shape `to` stands in shape `from`. Dimensions that are the same in both keep their
/// index: only those between are put together and taken apart.
std::vector<Expr> reshaped_indices(const std::vector<Expr>& at, const std::vector<int64_t>& to,
                                   const std::vector<int64_t>& from) {
    std::vector<Expr> indices(from.size(), integer(0));
    const std::vector<size_t> rows = wide_dimensions(from), columns = wide_dimensions(to);
    size_t i = 0, j = 0;
    while (i < rows.size()) {
        size_t end_i = i, end_j = j;
        int64_t of_from = from[rows[end_i++]], of_to = to[columns[end_j++]];
        while (of_from != of_to) (of_from < of_to) ? of_from *= from[rows[end_i++]] : of_to *= to[columns[end_j++]];
        Expr flat = at[columns[j]];
        for (size_t d = j + 1; d < end_j; ++d) flat = flat * to[columns[d]] + at[columns[d]];
        for (size_t d = end_i; d-- > i;) {
            const int64_t extent = from[rows[d]];
            indices[rows[d]] = d == i ? flat : flat % extent;
            flat = flat / extent;
        }
        i = end_i;
        j = end_j;
    }
    return indices;
}

Expr element(const Tensor& x, const std::vector<Expr>& at) { return x.read({at.begin(), at.end()}); }

/// The place in memory of the element, counted in elements.
Expr flat_place_of(const std::vector<Expr>& at, const std::vector<int64_t>& shape) {
    Expr place = integer(0);
    for (size_t d = 0; d < shape.size(); ++d) place = place * shape[d] + at[d];
    return simplify(place);
}

std::vector<int64_t> with_what_is_left(const std::vector<int64_t>& shape, const Tensor& x, int64_t count,
                                       std::source_location where) {
    const auto open = std::ranges::count(shape, -1);
    const std::string asked =
        fmt::format("reshape of '{}' {} to [{}]", x.name(), shape_text(x.shape()), fmt::join(shape, ", "));
    user_check(open <= 1 && std::ranges::all_of(shape, [](int64_t extent) { return extent > 0 || extent == -1; }),
               where, "{}: extents are positive, but for one that may be -1", asked);
    std::vector<int64_t> result = shape;
    const int64_t known = product_of(shape) * (open == 1 ? -1 : 1);
    if (open == 1 && count % known == 0) *std::ranges::find(result, -1) = count / known;
    user_check(product_of(result) == count, where, "{}: there are {} elements, not {}{}", asked, count,
               open == 1 ? "a multiple of " : "", known);
    return result;
}

}  // namespace

Tensor reshape(const std::string& name, const Tensor& x, const std::vector<int64_t>& shape,
               std::source_location where) {
    const auto from = numbers_of(x.shape(where));
    user_check(from.has_value(), where, "reshape of '{}': it has the shape {}; only numbers can be put together anew",
               x.name(), shape_text(x.shape()));
    const std::vector<int64_t> to = with_what_is_left(shape, x, product_of(*from), where);
    const Tensor view = compute(
        name, {to.begin(), to.end()},
        [&](const std::vector<Expr>& at) { return element(x, reshaped_indices(at, to, *from)); }, where);
    return with_gradient(
        view, {x},
        [=](const Tensor&, const Tensor& adjoint) { return std::vector{reshape("d_" + name, adjoint, *from, where)}; },
        where);
}

Tensor slice(const std::string& name, const Tensor& x, int dim, int64_t begin, int64_t end,
             std::source_location where) {
    const std::string asked = fmt::format("slice of '{}' {}", x.name(where), shape_text(x.shape()));
    const int given = std::exchange(dim, dim < 0 ? dim + x.rank() : dim);
    user_check(dim >= 0 && dim < x.rank(), where, "{}: there is no dimension {}", asked, given);
    const auto extent = as_constant(x.shape()[static_cast<size_t>(dim)]);
    user_check(extent.has_value(), where, "{}: dimension {} is a named size; slice one that is a number", asked, dim);
    const int64_t from = begin < 0 ? begin + *extent : begin, to = end < 0 ? end + *extent : end;
    user_check(from >= 0 && from < to && to <= *extent, where,
               "{}: from {} to {} along dimension {}; write 0 <= begin < end <= {}, or count from the end by negative "
               "numbers",
               asked, begin, end, dim, *extent);
    Shape shape(x.shape().begin(), x.shape().end());
    shape[static_cast<size_t>(dim)] = to - from;
    return compute(
        name, shape,
        [&](const std::vector<Expr>& at) {
            std::vector<Expr> places = at;
            places[static_cast<size_t>(dim)] = at[static_cast<size_t>(dim)] + from;
            return element(x, places);
        },
        where);
}

Tensor permute(const std::string& name, const Tensor& x, const std::vector<int>& given, std::source_location where) {
    std::vector<int> order = given, all(static_cast<size_t>(x.rank(where)));
    for (int& from : order) from += from < 0 ? x.rank() : 0;
    std::vector<int> sorted = order;
    std::ranges::sort(sorted);
    std::iota(all.begin(), all.end(), 0);
    user_check(sorted == all, where, "permute of '{}' {} by [{}]: name each of its dimensions, from 0 on, once",
               x.name(), shape_text(x.shape()), fmt::join(given, ", "));
    Shape shape;
    for (int from : order) shape.emplace_back(x.shape()[static_cast<size_t>(from)]);
    return compute(
        name, shape,
        [&](const std::vector<Expr>& at) {
            std::vector<Expr> places(at.size());
            for (size_t d = 0; d < at.size(); ++d) places[static_cast<size_t>(order[d])] = at[d];
            return element(x, places);
        },
        where);
}

bool is_view(const Operation& operation) {
    if (operation.is_input() || operation.outputs.size() != 1) return false;
    int reads = 0;
    bool moves = true;
    visit_with_extents(operation.outputs[0].body, [&](const Expr& e) {
        const bool number = e.as<IntConstant>() || e.as<FloatConstant>();
        const bool place = !is_float(e.type()) && (e.as<Variable>() || e.as<Unary>() || e.as<Binary>());
        if (e.as<Read>()) ++reads;
        moves = moves && (number || place || e.as<Read>() || e.as<Select>());
    });
    return moves && reads == 1;
}

std::optional<Tensor> reshaped_from(const Operation& view) {
    if (view.is_input() || view.outputs.size() != 1) return {};
    const Read* read = view.outputs[0].body.as<Read>();
    if (!read || read->guarded || !read->operation->strides.empty()) return {};
    const auto to = numbers_of(view.shape), from = numbers_of(read->operation->shape);
    if (!to || !from || product_of(*to) == 0 || product_of(*to) != product_of(*from)) return {};
    const std::vector<Expr> expected = reshaped_indices(view.axes, *to, *from);
    const bool is_written_so = std::ranges::equal(
        read->indices, expected, [](const Expr& a, const Expr& b) { return equal(simplify(a), simplify(b)); });
    if (!is_written_so && !equal(flat_place_of(read->indices, *from), flat_place_of(view.axes, *to))) return {};
    return Tensor(read->operation, read->output);
}

}  // namespace tw::schedules
