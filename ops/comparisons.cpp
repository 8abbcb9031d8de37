#include "ops/comparisons.h"

#include <limits>

#include "ops/broadcasting.h"
#include "ops/of_two.h"
#include "support/error.h"

namespace tw::nn {
namespace {

Tensor call_logical(const OfTwo& of, const Tensor& x, const Tensor& y, std::source_location where) {
    for (const Tensor* each : {&x, &y}) check_boolean(of.name, *each, where);
    return of(x, y, where);
}

/// Operands of where(): the condition, and those that are tensors.
struct Choice {
    std::vector<int64_t> shape;
    std::optional<double> yes, no;

    tw::Tensor declared(const std::vector<tw::Tensor>& in) const {
        const Type type = in.size() > 1 ? in[1].type() : f32;
        return compute("where", {shape.begin(), shape.end()}, [&](const std::vector<Expr>& at) {
            const Expr x = yes ? number_of(type, *yes) : broadcast_element(in[1], at, shape);
            const Expr y = no ? number_of(type, *no) : broadcast_element(in.back(), at, shape);
            return select(broadcast_element(in[0], at, shape), x, y);
        });
    }
    std::string key() const {
        const auto text = [](const std::optional<double>& number) { return number ? fmt::format("{}", *number) : "x"; };
        return fmt::format("{} {} {}", shape_text(shape), text(yes), text(no));
    }
};

}  // namespace

Tensor less(const Term& x, const Term& y) {
    static const OfTwo of(
        "less", [](const Operand& a, const Operand& b) { return a < b; }, boolean);
    return of(x, y);
}
Tensor less_equal(const Term& x, const Term& y) {
    static const OfTwo of(
        "less_equal", [](const Operand& a, const Operand& b) { return a <= b; }, boolean);
    return of(x, y);
}
Tensor greater(const Term& x, const Term& y) {
    static const OfTwo of(
        "greater", [](const Operand& a, const Operand& b) { return a > b; }, boolean);
    return of(x, y);
}
Tensor greater_equal(const Term& x, const Term& y) {
    static const OfTwo of(
        "greater_equal", [](const Operand& a, const Operand& b) { return a >= b; }, boolean);
    return of(x, y);
}
Tensor equal(const Term& x, const Term& y) {
    static const OfTwo of(
        "equal", [](const Operand& a, const Operand& b) { return a == b; }, boolean);
    return of(x, y);
}
Tensor not_equal(const Term& x, const Term& y) {
    static const OfTwo of(
        "not_equal", [](const Operand& a, const Operand& b) { return a != b; }, boolean);
    return of(x, y);
}

Tensor operator<(const Term& x, const Term& y) { return less(x, y); }
Tensor operator<=(const Term& x, const Term& y) { return less_equal(x, y); }
Tensor operator>(const Term& x, const Term& y) { return greater(x, y); }
Tensor operator>=(const Term& x, const Term& y) { return greater_equal(x, y); }
Tensor operator==(const Term& x, const Term& y) { return equal(x, y); }
Tensor operator!=(const Term& x, const Term& y) { return not_equal(x, y); }

Tensor logical_and(const Tensor& x, const Tensor& y, std::source_location where) {
    static const OfTwo of("logical_and", [](const Operand& a, const Operand& b) { return a && b; });
    return call_logical(of, x, y, where);
}
Tensor logical_or(const Tensor& x, const Tensor& y, std::source_location where) {
    static const OfTwo of("logical_or", [](const Operand& a, const Operand& b) { return a || b; });
    return call_logical(of, x, y, where);
}
Tensor logical_not(const Tensor& x, std::source_location where) {
    static const Operator op("logical_not", of_each("logical_not", [](const Expr& e) { return !e; }));
    check_boolean("logical_not", x, where);
    return op({x}, where);
}

Tensor operator&&(const Term& x, const Term& y) { return logical_and(x.tensor, y.tensor, x.where); }
Tensor operator||(const Term& x, const Term& y) { return logical_or(x.tensor, y.tensor, x.where); }
Tensor operator!(const Term& x) { return logical_not(x.tensor, x.where); }

Tensor is_finite(const Tensor& x, std::source_location where) {
    static const Operator op("is_finite", of_each(
                                              "is_finite",
                                              [](const Expr& e) {
                                                  const double infinity = std::numeric_limits<double>::infinity();
                                                  return tw::abs(e) < constant(e.type(), infinity);
                                              },
                                              boolean));
    check_float("is_finite", x, where);
    return op({x}, where);
}
Tensor is_nan(const Tensor& x, std::source_location where) {
    static const Operator op("is_nan", of_each(
                                           "is_nan", [](const Expr& e) { return e != e; }, boolean));
    check_float("is_nan", x, where);
    return op({x}, where);
}

Tensor where(const Tensor& condition, const Term& x, const Term& y) {
    check_boolean("where", condition, x.where);
    std::vector<Tensor> operands{condition};
    std::vector<int64_t> shape = condition.shape();
    for (const Term* each : {&x, &y}) {
        if (each->number) continue;
        operands.push_back(each->tensor);
        shape = broadcast_shape("where", shape, each->tensor.shape(), x.where);
    }
    if (operands.size() == 3) check_one_type("where", x.tensor, y.tensor, x.where);
    for (const Term* each : {&x, &y})
        if (each->number && operands.size() == 2) check_number("where", operands[1], *each->number, x.where);
    const Choice choice{shape, x.number, y.number};
    return operator_with("where", choice.key(), [choice](const std::vector<tw::Tensor>& in) {
        return choice.declared(in);
    })(operands, x.where);
}

}  // namespace tw::nn
