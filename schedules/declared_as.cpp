#include "schedules/declared_as.h"

#include <algorithm>

#include "dsl/simplify.h"
#include "schedules/window_terms.h"

namespace tw::schedules {

const Expr& body_of(const Tensor& tensor) { return tensor.operation()->outputs[0].body; }

Expr over(const std::vector<Expr>& axes, const Expr& expr, const std::vector<Expr>& at) {
    Substitution renamed;
    for (size_t d = 0; d < at.size(); ++d) renamed.emplace_back(axes[d], at[d]);
    return substitute(expr, renamed);
}

Expr exchanged(const Expr& expr, const Expr& part, const Expr& by) {
    return transform(expr, [&](const Expr& e) { return equal(e, part) ? by : Expr(); });
}

Expr reduction_of(const Tensor& tensor) {
    Expr found;
    visit(with_elements(body_of(tensor), {}, false), [&](const Expr& e) {
        if (e.as<Reduce>()) found = e;
    });
    return found;
}

Tensor declared_as(const Tensor& tensor, const Expr& body) {
    const Operation& operation = *tensor.operation();
    return compute(
        operation.name, {operation.shape.begin(), operation.shape.end()},
        [&](const std::vector<Expr>& at) { return over(operation.axes, body, at); }, operation.where);
}

Tensor with_sums(const Tensor& tensor, const Tensor& sums) {
    const Expr value = over(sums.operation()->axes, body_of(sums), tensor.operation()->axes);
    return declared_as(tensor, value.type() == tensor.type() ? value : cast(tensor.type(), value));
}

bool is_of_columns(const Tensor& sums, Type type) {
    const Expr rest = with_reduction(body_of(sums), constant(f32, 0.0));
    const auto& axes = sums.operation()->axes;
    return sums.type() == type &&
           std::none_of(axes.begin(), axes.end() - 1, [&](const Expr& axis) { return contains(rest, axis); });
}

}  // namespace tw::schedules
