#include "ops/reductions.h"

#include <fmt/ranges.h>

#include "dsl/differentiate.h"
#include "ops/broadcasting.h"
#include "ops/reduced.h"
#include "ops/views.h"
#include "support/error.h"

namespace tw::nn {
namespace {

tw::Tensor declared_sum(const tw::Tensor& x, const std::vector<int>& dims, bool keep, bool is_mean) {
    const Reduced of(x, dims, keep);
    return compute(is_mean ? "mean" : "sum", of.shape, [&](const std::vector<Expr>& at) {
        const Expr total = of.axes.empty() ? of.term(at) : tw::sum(of.term(at), of.axes);
        return cast(x.type(), is_mean ? total / constant(total.type(), of.count) : total);
    });
}

Tensor call_sum(bool is_mean, const Tensor& x, const std::vector<int>& dims, bool keep, std::source_location where) {
    const char* who = is_mean ? "mean" : "sum";
    const std::vector<int> named = dimensions_of(who, x, dims, where);
    return operator_with(who, fmt::format("{} {}", named, keep), [=](const std::vector<tw::Tensor>& in) {
        return declared_sum(in[0], named, keep, is_mean);
    })({x}, where);
}

tw::Tensor declared_softmax(const tw::Tensor& x, size_t dim, bool is_log) {
    const Type type = computed_type(x.type());
    const Axis k = reduce_axis("k", x.shape()[dim]);
    Shape rows(x.shape().begin(), x.shape().end()), shape = rows;
    rows.erase(rows.begin() + static_cast<ptrdiff_t>(dim));
    const auto element = [&](const std::vector<Expr>& at) { return cast(type, x.read({at.begin(), at.end()})); };
    const auto along = [&](std::vector<Expr> row) {
        row.insert(row.begin() + static_cast<ptrdiff_t>(dim), Expr(k));
        return element(row);
    };
    const auto of_row = [](const tw::Tensor& y, const std::vector<Expr>& row) {
        return y.read({row.begin(), row.end()});
    };
    const tw::Tensor top =
        stop_gradient(compute("top", rows, [&](const std::vector<Expr>& row) { return reduce_max(along(row), k); }));
    const tw::Tensor total = compute(
        "total", rows, [&](const std::vector<Expr>& row) { return tw::sum(exp(along(row) - of_row(top, row)), k); });
    return compute(is_log ? "log_softmax" : "softmax", shape, [&](const std::vector<Expr>& at) {
        std::vector<Expr> row = at;
        row.erase(row.begin() + static_cast<ptrdiff_t>(dim));
        const Expr lowered = element(at) - of_row(top, row), sums = of_row(total, row);
        return cast(x.type(), is_log ? lowered - log(sums) : exp(lowered) / sums);
    });
}

Tensor call_softmax(bool is_log, const Tensor& x, int dim, std::source_location where) {
    const char* who = is_log ? "log_softmax" : "softmax";
    check_float(who, x, where);
    const size_t along = static_cast<size_t>(dimension_of(who, x.shape(), dim, where));
    return operator_with(who, fmt::format("{}", along), [=](const std::vector<tw::Tensor>& in) {
        return declared_softmax(in[0], along, is_log);
    })({x}, where);
}

std::vector<int64_t> in_front(const std::vector<int64_t>& shape) { return {shape.begin(), shape.end() - 2}; }

tw::Tensor declared_matmul(const std::vector<tw::Tensor>& in) {
    const std::vector<int64_t> a = extents_of(in[0]), b = extents_of(in[1]);
    const std::vector<int64_t> batch = broadcast_shape("matmul", in_front(a), in_front(b), {});
    const Type type = computed_type(in[0].type());
    const Axis k = reduce_axis("k", a.back());
    const auto behind = [&](auto front, const auto& i, const auto& j) {
        front.push_back(i);
        front.push_back(j);
        return front;
    };
    const std::vector<int64_t> shape = behind(batch, a[a.size() - 2], b.back());
    return compute("product", {shape.begin(), shape.end()}, [&](const std::vector<Expr>& at) {
        const std::vector<Expr> front(at.begin(), at.end() - 2);
        const Expr i = at[at.size() - 2], j = at.back(), term = k;
        const Expr x = broadcast_element(in[0], behind(front, i, term), behind(batch, shape[batch.size()], a.back()));
        const Expr y = broadcast_element(in[1], behind(front, term, j), behind(batch, a.back(), b.back()));
        return cast(in[0].type(), tw::sum(cast(type, x) * cast(type, y), k));
    });
}

}  // namespace

Tensor sum(const Tensor& x, const std::vector<int>& dims, bool keep, std::source_location where) {
    return call_sum(/*is_mean=*/false, x, dims, keep, where);
}

Tensor mean(const Tensor& x, const std::vector<int>& dims, bool keep, std::source_location where) {
    check_float("mean", x, where);
    return call_sum(/*is_mean=*/true, x, dims, keep, where);
}

Tensor softmax(const Tensor& x, int dim, std::source_location where) {
    return call_softmax(/*is_log=*/false, x, dim, where);
}
Tensor log_softmax(const Tensor& x, int dim, std::source_location where) {
    return call_softmax(/*is_log=*/true, x, dim, where);
}

Tensor matmul(const Tensor& x, const Tensor& y, std::source_location where) {
    static const Operator op("matmul", declared_matmul);
    check_one_type("matmul", x, y, where);
    const std::vector<int64_t>&a = x.shape(), &b = y.shape();
    user_check(a.size() >= 2 && b.size() >= 2 && a.back() == b[b.size() - 2], where,
               "matmul: x is {}, y {}; give [..., m, k] and [..., k, n], a vector as a matrix by unsqueeze()",
               shape_text(a), shape_text(b));
    broadcast_shape("matmul, in front of its matrices", in_front(a), in_front(b), where);
    if (a.size() == 2 || b.size() > 2) return op({x, y}, where);
    std::vector<int64_t> shape = a;
    shape.back() = b.back();
    return reshape(op({reshape(x, {-1, a.back()}, where), y}, where), shape, where);
}

}  // namespace tw::nn
