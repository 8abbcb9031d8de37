#include "ops/joining.h"

#include <numeric>

#include <fmt/ranges.h>

#include "ops/broadcasting.h"
#include "ops/views.h"
#include "support/error.h"

namespace tw::nn {
namespace {

std::string shapes_text(const std::vector<Tensor>& tensors) {
    std::vector<std::string> texts;
    for (const Tensor& tensor : tensors) texts.push_back(shape_text(tensor.shape()));
    return fmt::format("{}", fmt::join(texts, ", "));
}

/// Along `dim`, the last part that begins at or before the place.
Expr chosen(const Expr& place, const std::vector<int64_t>& begins, const std::vector<Expr>& parts) {
    Expr element = parts.back();
    for (size_t k = parts.size() - 1; k-- > 0;) element = select(place < begins[k + 1], parts[k], element);
    return element;
}

tw::Tensor declared_concatenation(const std::vector<tw::Tensor>& in, size_t dim) {
    std::vector<int64_t> begins, shape = extents_of(in[0]);
    shape[dim] = 0;
    for (const tw::Tensor& part : in) {
        begins.push_back(shape[dim]);
        shape[dim] += extents_of(part)[dim];
    }
    return compute("concatenated", {shape.begin(), shape.end()}, [&](const std::vector<Expr>& at) {
        std::vector<Expr> parts;
        for (size_t k = 0; k < in.size(); ++k) {
            std::vector<Operand> places(at.begin(), at.end());
            if (k > 0) places[dim] = at[dim] - begins[k];
            parts.push_back(in.size() == 1 ? in[k].read(places)
                                           : padded(in[k], constant(in[k].type(), 0)).read(places));
        }
        return chosen(at[dim], begins, parts);
    });
}

tw::Tensor declared_stack(const std::vector<tw::Tensor>& in, size_t dim) {
    std::vector<int64_t> begins(in.size()), shape = extents_of(in[0]);
    std::iota(begins.begin(), begins.end(), 0);
    shape.insert(shape.begin() + static_cast<ptrdiff_t>(dim), static_cast<int64_t>(in.size()));
    return compute("stacked", {shape.begin(), shape.end()}, [&](const std::vector<Expr>& at) {
        std::vector<Operand> places(at.begin(), at.end());
        places.erase(places.begin() + static_cast<ptrdiff_t>(dim));
        std::vector<Expr> parts;
        for (const tw::Tensor& part : in) parts.push_back(part.read(places));
        return chosen(at[dim], begins, parts);
    });
}

void check_parts(const std::string& who, const std::vector<Tensor>& tensors, std::source_location where) {
    user_check(!tensors.empty(), where, "{}: no tensors; give at least one", who);
    for (const Tensor& each : tensors) check_one_type(who, tensors[0], each, where);
}

}  // namespace

Tensor concatenate(const std::vector<Tensor>& tensors, int dim, std::source_location where) {
    check_parts("concatenate", tensors, where);
    const int along = dimension_of("concatenate", tensors[0].shape(), dim, where);
    const size_t d = static_cast<size_t>(along);
    for (const Tensor& each : tensors) {
        std::vector<int64_t> like_first = each.shape();
        if (d < like_first.size()) like_first[d] = tensors[0].shape()[d];
        user_check(like_first == tensors[0].shape(), where,
                   "concatenate: tensors are {}; they may differ in dimension {} alone", shapes_text(tensors), along);
    }
    return operator_with("concatenate", fmt::format("{}", d), [d](const std::vector<tw::Tensor>& in) {
        return declared_concatenation(in, d);
    })(tensors, where);
}

Tensor stack(const std::vector<Tensor>& tensors, int dim, std::source_location where) {
    check_parts("stack", tensors, where);
    for (const Tensor& each : tensors)
        user_check(each.shape() == tensors[0].shape(), where, "stack: tensors are {}; give some of one shape",
                   shapes_text(tensors));
    std::vector<int64_t> result = tensors[0].shape();
    result.push_back(1);
    const size_t d = static_cast<size_t>(dimension_of("stack, of what it makes", result, dim, where));
    return operator_with("stack", fmt::format("{}", d),
                         [d](const std::vector<tw::Tensor>& in) { return declared_stack(in, d); })(tensors, where);
}

std::vector<Tensor> split(const Tensor& x, const std::vector<int64_t>& sizes, int dim, std::source_location where) {
    const int along = dimension_of("split", x.shape(), dim, where);
    const int64_t extent = x.shape()[static_cast<size_t>(along)];
    int64_t total = 0;
    bool are_positive = true;
    for (int64_t size : sizes) {
        total += size;
        are_positive = are_positive && size > 0;
    }
    user_check(are_positive && total == extent, where,
               "split: x is {}, cut along dimension {} into [{}]; give positive extents that add up to {}",
               shape_text(x.shape()), along, fmt::join(sizes, ", "), extent);
    std::vector<Tensor> parts;
    int64_t begin = 0;
    for (int64_t size : sizes) {
        parts.push_back(slice(x, along, begin, begin + size, where));
        begin += size;
    }
    return parts;
}

}  // namespace tw::nn
