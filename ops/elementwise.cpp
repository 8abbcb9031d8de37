#include "ops/elementwise.h"

#include <cmath>

#include "ops/broadcasting.h"
#include "support/error.h"

namespace tw::nn {
namespace {

using OfOne = std::function<Expr(const Expr& x)>;
using OfTwo = Expr (*)(const Operand& x, const Operand& y);

/// Declares `each` of the elements of x, computed in f32 if x is of a storage type.
Expression of_one(const std::string& name, const OfOne& each) {
    return [=](const std::vector<tw::Tensor>& in) {
        const Type type = in[0].type();
        return compute(name, {in[0].shape().begin(), in[0].shape().end()}, [&](const std::vector<Expr>& at) {
            const Expr element = in[0].read({at.begin(), at.end()});
            return tw::cast(type, each(tw::cast(computed_type(type), element)));
        });
    };
}

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

Tensor call(const Operator& op, const std::string& who, const Tensor& x, const Tensor& y, std::source_location where) {
    check_one_type(who, x, y, where);
    broadcast_shape(who, x.shape(), y.shape(), where);
    return op({x, y}, where);
}

Tensor call(const Operator& op, const std::string& who, const Tensor& x, std::source_location where) {
    check_float(who, x, where);
    return op({x}, where);
}

/// Of two terms, of which one may be a number.
Tensor call(const Operator& op, const std::string& who, OfTwo each, const Term& x, const Term& y) {
    if (!x.number && !y.number) return call(op, who, x.tensor, y.tensor, x.where);
    const Term& term = x.number ? y : x;
    check_float(who, term.tensor, term.where);
    const bool is_first = !x.number;
    const double number = is_first ? *y.number : *x.number;
    const OfOne with_number = [=](const Expr& element) {
        const Expr other = constant(element.type(), number);
        return is_first ? each(element, other) : each(other, element);
    };
    return operator_with(who, fmt::format("{} {}", is_first ? "x and" : "x behind", number), of_one(who, with_number))(
        {term.tensor}, term.where);
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

const Operator& add_operator() {
    static const Operator op("add", of_two("add", sum_of));
    return op;
}
const Operator& subtract_operator() {
    static const Operator op("subtract", of_two("subtract", difference_of));
    return op;
}
const Operator& multiply_operator() {
    static const Operator op("multiply", of_two("multiply", product_of));
    return op;
}
const Operator& divide_operator() {
    static const Operator op("divide", of_two("divide", ratio_of));
    return op;
}

}  // namespace

Tensor add(const Tensor& x, const Tensor& y, std::source_location where) {
    return call(add_operator(), "add", x, y, where);
}
Tensor subtract(const Tensor& x, const Tensor& y, std::source_location where) {
    return call(subtract_operator(), "subtract", x, y, where);
}
Tensor multiply(const Tensor& x, const Tensor& y, std::source_location where) {
    return call(multiply_operator(), "multiply", x, y, where);
}
Tensor divide(const Tensor& x, const Tensor& y, std::source_location where) {
    check_float("divide", x, where);
    return call(divide_operator(), "divide", x, y, where);
}
Tensor maximum(const Tensor& x, const Tensor& y, std::source_location where) {
    static const Operator op("maximum", of_two("maximum", tw::max));
    return call(op, "maximum", x, y, where);
}
Tensor minimum(const Tensor& x, const Tensor& y, std::source_location where) {
    static const Operator op("minimum", of_two("minimum", tw::min));
    return call(op, "minimum", x, y, where);
}

Tensor exp(const Tensor& x, std::source_location where) {
    static const Operator op("exp", of_one("exp", [](const Expr& e) { return tw::exp(e); }));
    return call(op, "exp", x, where);
}
Tensor log(const Tensor& x, std::source_location where) {
    static const Operator op("log", of_one("log", [](const Expr& e) { return tw::log(e); }));
    return call(op, "log", x, where);
}
Tensor sqrt(const Tensor& x, std::source_location where) {
    static const Operator op("sqrt", of_one("sqrt", [](const Expr& e) { return tw::sqrt(e); }));
    return call(op, "sqrt", x, where);
}
Tensor abs(const Tensor& x, std::source_location where) {
    static const Operator op("abs", of_one("abs", [](const Expr& e) { return tw::abs(e); }));
    return call(op, "abs", x, where);
}

Tensor pow(const Tensor& x, double exponent, std::source_location where) {
    check_float("pow", x, where);
    std::optional<NoGrad> constant;
    if (exponent == 0) constant.emplace();  // 1, of whatever x is
    return operator_with("pow", fmt::format("{}", exponent), of_one("pow", [exponent](const Expr& element) {
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

Tensor operator+(const Term& x, const Term& y) { return call(add_operator(), "add", sum_of, x, y); }
Tensor operator-(const Term& x, const Term& y) { return call(subtract_operator(), "subtract", difference_of, x, y); }
Tensor operator*(const Term& x, const Term& y) { return call(multiply_operator(), "multiply", product_of, x, y); }
Tensor operator/(const Term& x, const Term& y) {
    if (!x.number && !y.number) return divide(x.tensor, y.tensor, x.where);
    return call(divide_operator(), "divide", ratio_of, x, y);
}
Tensor operator-(const Term& x) { return call(multiply_operator(), "multiply", product_of, x, Term(-1.0, x.where)); }

}  // namespace tw::nn
