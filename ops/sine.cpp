#include <numbers>

#include "ops/broadcasting.h"
#include "ops/elementwise.h"

namespace tw::nn {
namespace {

/// c[0] + c[1] x + c[2] x^2 + ...
Expr polynomial(const Expr& x, const std::vector<double>& c) {
    Expr total = constant(f64, c.back());
    for (size_t k = c.size() - 1; k-- > 0;) total = total * x + constant(f64, c[k]);
    return total;
}

/// 1, 1 / first, 1 / (first (first + 1) (first + 2)), ..., with signs in turn: Taylor's.
std::vector<double> inverse_factorials(double first, int count) {
    std::vector<double> c{1};
    for (int k = 1; k < count; ++k, first += 2) c.push_back(-c.back() / (first * (first + 1)));
    return c;
}

/// The sine `quarters` quarters of a turn ahead of x. What is left of x is in +-pi/4, where the first term that is left
/// out is below 2^-53 of the sum.
Expr sine_ahead(const Expr& given, int quarters) {
    const Expr x = tw::cast(f64, given);
    const Expr turns = tw::round(x * (2 / std::numbers::pi));
    // pi/2 in three parts (fdlibm's e_rem_pio2.c), of which the first two have 33 bits: their products are exact for
    // turns below 2^20.
    Expr left = x - turns * 1.57079632673412561417e+00;
    left = left - turns * 6.07710050630396597660e-11;
    left = left - turns * 2.02226624879595063154e-21;
    const Expr most = constant(f64, std::numbers::pi / 4);  // beyond it where x has too few bits for a place
    left = select(left > most, most, select(left < -most, -most, left));
    const Expr square = left * left;
    const Expr sine = left * polynomial(square, inverse_factorials(2, 9));
    const Expr cosine = polynomial(square, inverse_factorials(1, 9));
    const Expr ahead = turns + double(quarters);
    const Expr quadrant = ahead - tw::floor(ahead * 0.25) * 4.0;  // 0, 1, 2 or 3
    const Expr half = select(quadrant == 0.0 || quadrant == 2.0, sine, cosine);
    return tw::cast(given.type(), select(quadrant < 2.0, half, -half));
}

/// Its slope is the one a quarter further on.
Expression declared_sine(const std::string& name, int quarters) {
    return of_each_with_slope(
        name, [quarters](const Expr& x) { return sine_ahead(x, quarters); },
        [quarters](const Expr& x) { return sine_ahead(x, quarters + 1); });
}

}  // namespace

Tensor sin(const Tensor& x, std::source_location where) {
    static const Operator op("sin", declared_sine("sin", 0));
    check_float("sin", x, where);
    return op({x}, where);
}
Tensor cos(const Tensor& x, std::source_location where) {
    static const Operator op("cos", declared_sine("cos", 1));
    check_float("cos", x, where);
    return op({x}, where);
}

}  // namespace tw::nn
