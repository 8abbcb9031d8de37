#include "ops/unit_errors.h"

#include <algorithm>
#include <cmath>

#include "dsl/atoms.h"
#include "dsl/scaled_product.h"

namespace tw {
namespace {

bool is_narrow_float(Type type) { return is_float(type) && bytes_of(type) <= 2; }

/// The type in which a tensor core multiplies the factor, if any does.
std::optional<Type> type_in_unit(const Expr& factor, bool rounds_operands) {
    if (const Unary* function = factor.as<Unary>(); function && function->op == UnaryOp::TruncateTf32) return tf32;
    if (const Cast* cast = factor.as<Cast>(); cast && is_narrow_float(cast->a.type())) return cast->a.type();
    if (rounds_operands && factor.as<Read>()) return tf32;
    return {};
}

/// The error of each term of a sum: the errors of instructions of k terms that keep `fraction` bits behind the largest
/// and `mantissa` bits of the sum, and of an f32 addition, relative to the largest.
double error_of_instruction(int k, int fraction, int mantissa) {
    return (k + 1) * std::ldexp(1, -fraction) + std::ldexp(1, -mantissa) + 0x1p-24;
}

/// The errors of the instruction that adds the fewest terms. Instructions of fp8 are made of two of f16; what wgmma
/// keeps of its own is told apart.
UnitErrors errors_of_type(Type type, bool few_bits) {
    int terms = 16;
    for (const Atom& atom : atoms())
        if (atom.operand == type && atom.accumulator == f32) terms = std::min(terms, atom.k);
    if (bytes_of(type) == 1 && few_bits) return {error_of_instruction(2 * terms, 13, 13), 2 * terms};
    return {error_of_instruction(terms, 25, 23), terms};
}

bool is_worse(const UnitErrors& one, const UnitErrors& other) {
    return other.terms == 0 || one.instruction / one.terms > other.instruction / other.terms;
}

Expr with_sign(const SignedProduct& product, const Expr& scale) {
    const Expr both = binary(BinaryOp::Mul, product.a, product.b);
    const Expr scaled = scale.defined() ? binary(BinaryOp::Mul, both, scale) : both;
    return product.negative ? unary(UnaryOp::Negate, scaled) : scaled;
}

}  // namespace

std::optional<UnitErrors> unit_errors(const Expr& term, bool rounds_operands, bool few_bits) {
    const auto sum = sum_of_products(term);
    if (!sum) return {};
    UnitErrors worst;
    for (const SignedProduct& product : sum->products) {
        const auto a = type_in_unit(product.a, rounds_operands), b = type_in_unit(product.b, rounds_operands);
        if (!a || !b) return {};
        for (const Type type : {*a, *b})
            if (const UnitErrors own = errors_of_type(type, few_bits); is_worse(own, worst)) worst = own;
    }
    if (sum->products.size() > 1)
        for (const SignedProduct& product : sum->products) worst.products.push_back(with_sign(product, sum->scale));
    return worst;
}

}  // namespace tw
