#include "ops/number_of_type.h"

#include <cmath>

namespace tw::nn {

bool is_number_of(Type type, double number) {
    if (type == Type::Bool) return number == 0 || number == 1;
    if (!is_float(type))
        return std::trunc(number) == number && std::abs(number) < 0x1p63 &&
               wrap_to_type(type, static_cast<int64_t>(number)) == static_cast<int64_t>(number);
    const double rounded = round_to_type(type, number);
    if (std::isnan(number)) return std::isnan(rounded);
    if (std::isinf(number) || std::isinf(rounded)) return rounded == number;
    return std::abs(number) < 1 || std::abs(number) <= std::abs(rounded) * (1 + 2 * unit_roundoff(type));
}

Expr number_of(Type type, double number) {
    return is_integer(type) ? constant(type, static_cast<int64_t>(number)) : constant(type, number);
}

}  // namespace tw::nn
