#include "ops/of_two.h"

#include "ops/broadcasting.h"
#include "support/error.h"

namespace tw::nn {
namespace {

/// Both elements in the type that they are computed in, and back.
Expression declaration_of_two(const std::string& name, OfTwo::Each each, std::optional<Type> result) {
    return [=](const std::vector<tw::Tensor>& in) {
        const Type type = in[0].type();
        const std::vector<int64_t> shape = broadcast_shape(name, extents_of(in[0]), extents_of(in[1]), {});
        const auto element = [&](const tw::Tensor& x, const std::vector<Expr>& at) {
            return tw::cast(computed_type(type), broadcast_element(x, at, shape));
        };
        return compute(name, {shape.begin(), shape.end()}, [&](const std::vector<Expr>& at) {
            return tw::cast(result.value_or(type), each(element(in[0], at), element(in[1], at)));
        });
    };
}

}  // namespace

void check_number(const std::string& who, const Tensor& x, double number, std::source_location where) {
    const Type type = is_float(x.type()) ? computed_type(x.type()) : x.type();
    user_check((is_float(type) || is_integer(type)) && is_number_of(type, number), where,
               "{}: '{}' is {}, the number {}; give a number of that type, or floats: cast() makes some of it", who,
               x.name(), name_of(x.type()), number);
}

OfTwo::OfTwo(const std::string& name, Each each, std::optional<Type> result)
    : name(name), each(each), result(result), op(name, declaration_of_two(name, each, result)) {}

Tensor OfTwo::operator()(const Tensor& x, const Tensor& y, std::source_location where) const {
    check_one_type(name, x, y, where);
    broadcast_shape(name, x.shape(), y.shape(), where);
    return op({x, y}, where);
}

Tensor OfTwo::operator()(const Term& x, const Term& y) const {
    if (!x.number && !y.number) return (*this)(x.tensor, y.tensor, x.where);
    user_check(!x.number || !y.number, x.where, "{}: {} and {} are numbers; give a tensor", name, *x.number, *y.number);
    const Term& term = x.number ? y : x;
    const bool is_first = !x.number;
    const double number = is_first ? *y.number : *x.number;
    check_number(name, term.tensor, number, term.where);
    const auto with_number = [number, is_first, each = each](const Expr& element) {
        const Expr other = number_of(element.type(), number);
        return is_first ? each(element, other) : each(other, element);
    };
    const std::string key = fmt::format("{} {}", is_first ? "x and" : "x behind", number);
    return operator_with(name, key, of_each(name, with_number, result))({term.tensor}, term.where);
}

}  // namespace tw::nn
