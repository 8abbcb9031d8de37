#include "schedules/joined_axes.h"

namespace tw::schedules {

int64_t extent_of(const Expr& axis) {
    const Expr& extent = axis.as<Variable>()->extent;
    return extent.defined() ? as_constant(extent).value_or(0) : 0;
}

int64_t points_of(const std::vector<Expr>& axes) {
    int64_t points = 1;
    for (const Expr& axis : axes) points *= extent_of(axis);
    return points;
}

Substitution digits(const std::vector<Expr>& axes, Expr place) {
    Substitution at;
    for (size_t d = axes.size(); d-- > 0;) {
        const int64_t extent = extent_of(axes[d]);
        at.emplace_back(axes[d], simplify(d == 0 ? place : place % extent));
        place = place / extent;
    }
    return at;
}

Expr place_of(const std::vector<Expr>& axes) {
    Expr place = integer(0);
    for (const Expr& axis : axes) place = place * extent_of(axis) + axis;
    return simplify(place);
}

}  // namespace tw::schedules
