#include "schedules/exact_types.h"

#include <algorithm>
#include <cmath>

#include "dsl/simplify.h"

namespace tw::schedules {
namespace {

using Types = std::vector<Type>;

const Types all_types{e4m3, e5m2, bf16, f16}, halves{bf16, f16};
constexpr int64_t most_whole = 256;  // that 8 bits of a fraction tell apart

Types both(const Types& a, const Types& b) {
    Types common;
    std::ranges::copy_if(a, std::back_inserter(common), [&](Type type) { return std::ranges::count(b, type) > 0; });
    return common;
}

/// Of whole numbers between these.
Types of_whole_numbers(const Expr& whole) {
    if (bytes_of(whole.type()) == 1) return halves;
    const Interval bounds = bounds_of(whole);
    return bounds.min && bounds.max && *bounds.min >= -most_whole && *bounds.max <= most_whole ? halves : Types();
}

Types of_cast(const Expr& from) {
    const Type type = from.type();
    if (type == e4m3 || type == e5m2) return {type, bf16, f16};
    if (type == bf16 || type == f16) return {type};
    return is_float(type) ? Types() : of_whole_numbers(from);
}

Types of_constant(double value) {
    if (value == 0) return all_types;
    return std::trunc(value) == value && std::abs(value) <= most_whole ? halves : Types();
}

}  // namespace

std::vector<Type> exact_types(const Expr& expr) {
    if (const FloatConstant* number = expr.as<FloatConstant>()) return of_constant(number->value);
    if (const Cast* cast = expr.as<Cast>()) return of_cast(cast->a);
    if (const Select* choice = expr.as<Select>()) return both(exact_types(choice->yes), exact_types(choice->no));
    if (const Unary* function = expr.as<Unary>()) {
        if (function->op == UnaryOp::TruncateTf32) return {tf32};
        const bool changes_sign = function->op == UnaryOp::Negate || function->op == UnaryOp::Abs;
        return changes_sign ? exact_types(function->a) : Types();
    }
    const Binary* pair = expr.as<Binary>();
    const bool chooses = pair && (pair->op == BinaryOp::Max || pair->op == BinaryOp::Min);
    return chooses ? both(exact_types(pair->a), exact_types(pair->b)) : Types();
}

}  // namespace tw::schedules
