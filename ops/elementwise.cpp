#include "ops/elementwise.h"

#include <cmath>

#include "ops/broadcasting.h"
#include "support/error.h"

namespace tw::nn {
namespace {

using OfTwo = Expr (*)(const Operand& x, const Operand& y);

Expression of_two(const std::string& name, OfTwo each) {
    return [=](const std::vector<tw::Tensor>& in) {
        const Type type = in[0].type();
        const std::vector<int64_t> shape = broadcast_shape(name, extents_of(in[0]), extents_of(in[1]), {});
        const auto element = [&](const tw::Tensor& x, const std::vector<Expr>& at) {
            return tw::cast(computed_type(type), broadcast_element(x, at, shape));
        };
        return compute(name, {shape.begin(), shape.end()}, [&](const std::vector<Expr>& at) {
            return tw::cast(type, each(element(in[0], at), element(in[1], at)));
        });
    };
}

Expr sum_of(const Operand& x, const Operand& y) { return x + y; }
Expr difference_of(const Operand& x, const Operand& y) { return x - y; }
Expr product_of(const Operand& x, const Operand& y) { return x * y; }
Expr ratio_of(const Operand& x, const Operand& y) { return x / y; }

/// What two tensors are put together by, element by element.
struct Arithmetic {
    Arithmetic(const std::string& name, OfTwo each) : name(name), each(each), op(name, of_two(name, each)) {}
    std::string name;
    OfTwo each;
    Operator op;
};

const Arithmetic& addition() {
    static const Arithmetic of("add", sum_of);
    return of;
}
const Arithmetic& subtraction() {
    static const Arithmetic of("subtract", difference_of);
    return of;
}
const Arithmetic& multiplication() {
    static const Arithmetic of("multiply", product_of);
    return of;
}
const Arithmetic& division() {
    static const Arithmetic of("divide", ratio_of);
    return of;
}

Tensor call(const Arithmetic& of, const Tensor& x, const Tensor& y, std::source_location where) {
    check_one_type(of.name, x, y, where);
    broadcast_shape(of.name, x.shape(), y.shape(), where);
    return of.op({x, y}, where);
}

Tensor call(const Operator& op, const std::string& who, const Tensor& x, std::source_location where) {
    check_float(who, x, where);
    return op({x}, where);
}

/// Of two terms, of which one may be a number.
Tensor call(const Arithmetic& of, const Term& x, const Term& y) {
    if (!x.number && !y.number) return call(of, x.tensor, y.tensor, x.where);
    const Term& term = x.number ? y : x;
    check_float(of.name, term.tensor, term.where);
    const bool is_first = !x.number;
    const double number = is_first ? *y.number : *x.number;
    const auto with_number = [=](const Expr& element) {
        const Expr other = constant(element.type(), number);
        return is_first ? of.each(element, other) : of.each(other, element);
    };
    const std::string key = fmt::format("{} {}", is_first ? "x and" : "x behind", number);
    return operator_with(of.name, key, of_each(of.name, with_number))({term.tensor}, term.where);
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

Tensor add(const Tensor& x, const Tensor& y, std::source_location where) { return call(addition(), x, y, where); }
Tensor subtract(const Tensor& x, const Tensor& y, std::source_location where) {
    return call(subtraction(), x, y, where);
}
Tensor multiply(const Tensor& x, const Tensor& y, std::source_location where) {
    return call(multiplication(), x, y, where);
}
Tensor divide(const Tensor& x, const Tensor& y, std::source_location where) {
    check_float("divide", x, where);
    return call(division(), x, y, where);
}
Tensor maximum(const Tensor& x, const Tensor& y, std::source_location where) {
    static const Arithmetic of("maximum", tw::max);
    return call(of, x, y, where);
}
Tensor minimum(const Tensor& x, const Tensor& y, std::source_location where) {
    static const Arithmetic of("minimum", tw::min);
    return call(of, x, y, where);
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

Tensor operator+(const Term& x, const Term& y) { return call(addition(), x, y); }
Tensor operator-(const Term& x, const Term& y) { return call(subtraction(), x, y); }
Tensor operator*(const Term& x, const Term& y) { return call(multiplication(), x, y); }
Tensor operator/(const Term& x, const Term& y) {
    if (!x.number && !y.number) return divide(x.tensor, y.tensor, x.where);
    return call(division(), x, y);
}
Tensor operator-(const Term& x) { return x * Term(-1.0, x.where); }

}  // namespace tw::nn
