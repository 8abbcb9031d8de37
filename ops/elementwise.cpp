#include "ops/elementwise.h"

#include <cmath>

#include "dsl/differentiate.h"
#include "ops/autograd.h"
#include "ops/broadcasting.h"
#include "ops/of_two.h"
#include "support/error.h"

namespace tw::nn {
namespace {

Expr sum_of(const Operand& x, const Operand& y) { return x + y; }
Expr difference_of(const Operand& x, const Operand& y) { return x - y; }
Expr product_of(const Operand& x, const Operand& y) { return x * y; }
Expr ratio_of(const Operand& x, const Operand& y) { return x / y; }

const OfTwo& addition() {
    static const OfTwo of("add", sum_of);
    return of;
}
const OfTwo& subtraction() {
    static const OfTwo of("subtract", difference_of);
    return of;
}
const OfTwo& multiplication() {
    static const OfTwo of("multiply", product_of);
    return of;
}
const OfTwo& division() {
    static const OfTwo of("divide", ratio_of);
    return of;
}

Tensor call(const Operator& op, const std::string& who, const Tensor& x, std::source_location where) {
    check_float(who, x, where);
    return op({x}, where);
}

/// The shape of a tensor with each element by its place.
tw::Tensor computed_like(const tw::Tensor& x, const std::string& name,
                         const std::function<Expr(const std::vector<Operand>& at)>& element) {
    return compute(name, {x.shape().begin(), x.shape().end()}, [&](const std::vector<Expr>& at) {
        return element({at.begin(), at.end()});
    });
}

/// The larger or smaller one. Derived, the second would have all of the adjoint where they are equal.
Expression extreme_of_two(const std::string& name, OfTwo::Each each) {
    return [=](const std::vector<tw::Tensor>& in) {
        const Type type = in[0].type(), computed = computed_type(type);
        const std::vector<int64_t> shape = broadcast_shape(name, extents_of(in[0]), extents_of(in[1]), {});
        std::vector<tw::Tensor> sides;
        for (const tw::Tensor& x : in)
            sides.push_back(compute(
                fmt::format("side{}", sides.size()), {shape.begin(), shape.end()},
                [&](const std::vector<Expr>& at) { return tw::cast(computed, broadcast_element(x, at, shape)); }));
        const tw::Tensor y = computed_like(sides[0], name, [&](const std::vector<Operand>& at) {
            return tw::cast(type, each(sides[0].read(at), sides[1].read(at)));
        });
        if (!is_float(type)) return y;
        return with_gradient(y, sides, [=](const tw::Tensor&, const tw::Tensor& adjoint) {
            std::vector<tw::Tensor> shares;
            for (const size_t k : {size_t{0}, size_t{1}})
                shares.push_back(computed_like(y, fmt::format("share{}", k), [&](const std::vector<Operand>& at) {
                    const Expr own = sides[k].read(at), other = sides[1 - k].read(at), given = adjoint.read(at);
                    const Expr none = constant(computed, 0.0);
                    return select(own == other, given * 0.5, select(each(own, other) == own, given, none));
                }));
            return shares;
        });
    };
}

Tensor call(const Operator& op, const std::string& who, const Tensor& x, const Tensor& y, std::source_location where) {
    check_one_type(who, x, y, where);
    broadcast_shape(who, x.shape(), y.shape(), where);
    return op({x, y}, where);
}

/// x to a whole power of 0 and more: a product for each binary digit, and one more for each that is set.
Expr whole_power(const Expr& x, int64_t exponent) {
    if (exponent == 0) return constant(x.type(), 1.0);
    if (exponent == 1) return x;
    const Expr half = whole_power(x, exponent / 2);
    return exponent % 2 == 0 ? half * half : half * half * x;
}

Expr power(const Expr& x, double exponent) {
    constexpr double Most = 64;  // 6 digits: the error is that of some 12 products
    if (std::nearbyint(exponent) != exponent || std::fabs(exponent) > Most)
        return exp2(log2(x) * constant(x.type(), exponent));
    const Expr product = whole_power(x, std::llabs(static_cast<int64_t>(exponent)));
    return exponent < 0 ? constant(x.type(), 1.0) / product : product;
}

}  // namespace

Tensor add(const Tensor& x, const Tensor& y, std::source_location where) { return addition()(x, y, where); }
Tensor subtract(const Tensor& x, const Tensor& y, std::source_location where) { return subtraction()(x, y, where); }
Tensor multiply(const Tensor& x, const Tensor& y, std::source_location where) { return multiplication()(x, y, where); }
Tensor divide(const Tensor& x, const Tensor& y, std::source_location where) {
    check_float("divide", x, where);
    return division()(x, y, where);
}
Tensor maximum(const Tensor& x, const Tensor& y, std::source_location where) {
    static const Operator op("maximum", extreme_of_two("maximum", tw::max));
    return call(op, "maximum", x, y, where);
}
Tensor minimum(const Tensor& x, const Tensor& y, std::source_location where) {
    static const Operator op("minimum", extreme_of_two("minimum", tw::min));
    return call(op, "minimum", x, y, where);
}

Tensor exp(const Tensor& x, std::source_location where) {
    static const Operator op("exp", of_each("exp", [](const Expr& e) { return tw::exp(e); }));
    return call(op, "exp", x, where);
}
Tensor log(const Tensor& x, std::source_location where) {
    static const Operator op("log", of_each("log", [](const Expr& e) { return tw::log(e); }));
    return call(op, "log", x, where);
}
Tensor sqrt(const Tensor& x, std::source_location where) {
    static const Operator op("sqrt", of_each("sqrt", [](const Expr& e) { return tw::sqrt(e); }));
    return call(op, "sqrt", x, where);
}
Tensor abs(const Tensor& x, std::source_location where) {
    static const Operator op("abs", of_each("abs", [](const Expr& e) { return tw::abs(e); }));
    return call(op, "abs", x, where);
}

Tensor rsqrt(const Tensor& x, std::source_location where) {
    static const Operator op("rsqrt", of_each("rsqrt", [](const Expr& e) { return tw::rsqrt(e); }));
    return call(op, "rsqrt", x, where);
}
Tensor reciprocal(const Tensor& x, std::source_location where) {
    static const Operator op("reciprocal", of_each("reciprocal", [](const Expr& e) { return 1.0 / e; }));
    return call(op, "reciprocal", x, where);
}
Tensor floor(const Tensor& x, std::source_location where) {
    static const Operator op("floor", of_each("floor", [](const Expr& e) { return tw::floor(e); }));
    return call(op, "floor", x, where);
}
Tensor ceil(const Tensor& x, std::source_location where) {
    static const Operator op("ceil", of_each("ceil", [](const Expr& e) { return tw::ceil(e); }));
    return call(op, "ceil", x, where);
}
Tensor round(const Tensor& x, std::source_location where) {
    static const Operator op("round", of_each("round", [](const Expr& e) { return tw::round(e); }));
    return call(op, "round", x, where);
}
Tensor erf(const Tensor& x, std::source_location where) {
    static const Operator op("erf", of_each("erf", [](const Expr& e) { return tw::erf(e); }));
    return call(op, "erf", x, where);
}
Tensor sign(const Tensor& x, std::source_location where) {
    static const Operator op("sign", of_each("sign", [](const Expr& e) {
                                 const Expr zero = number_of(e.type(), 0);
                                 return select(e > zero, number_of(e.type(), 1),
                                               select(e < zero, number_of(e.type(), -1), zero));
                             }));
    return op({x}, where);
}
Tensor negate(const Tensor& x, std::source_location where) {
    static const Operator op("negate", of_each("negate", [](const Expr& e) { return -e; }));
    return op({x}, where);
}
Tensor clamp(const Tensor& x, double low, double high, std::source_location where) {
    user_check(low <= high, where, "clamp: from {} to {}; give a lower end that is no more than the upper one", low,
               high);
    check_number("clamp", x, low, where);
    check_number("clamp", x, high, where);
    return operator_with("clamp", fmt::format("{} {}", low, high), of_each("clamp", [=](const Expr& e) {
                             const Expr lower = number_of(e.type(), low), upper = number_of(e.type(), high);
                             return select(e < lower, lower, select(e > upper, upper, e));
                         }))({x}, where);
}

Tensor pow(const Tensor& x, double exponent, std::source_location where) {
    check_float("pow", x, where);
    std::optional<NoGrad> constant;
    if (exponent == 0) constant.emplace();  // 1, of whatever x is
    return operator_with("pow", fmt::format("{}", exponent), of_each("pow", [exponent](const Expr& element) {
                             return power(element, exponent);
                         }))({x}, where);
}

Tensor cast(const Tensor& x, Type type, std::source_location where) {
    if (x.type() == type) return x;
    return operator_with("cast", std::string(name_of(type)), [type](const std::vector<tw::Tensor>& in) {
        return compute("cast", {in[0].shape().begin(), in[0].shape().end()}, [&](const std::vector<Expr>& at) {
            return tw::cast(type, in[0].read({at.begin(), at.end()}));
        });
    })({x}, where);
}

Tensor operator+(const Term& x, const Term& y) { return addition()(x, y); }
Tensor operator-(const Term& x, const Term& y) { return subtraction()(x, y); }
Tensor operator*(const Term& x, const Term& y) { return multiplication()(x, y); }
Tensor operator/(const Term& x, const Term& y) {
    if (!x.number && !y.number) return divide(x.tensor, y.tensor, x.where);
    if (x.tensor.defined() || y.tensor.defined()) check_float("divide", x.number ? y.tensor : x.tensor, x.where);
    return division()(x, y);
}
Tensor operator-(const Term& x) { return negate(x.tensor, x.where); }

}  // namespace tw::nn
