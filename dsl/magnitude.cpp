#include "dsl/magnitude.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "dsl/simplify.h"

namespace tw {
namespace {

constexpr double unknown = std::numeric_limits<double>::infinity();

/// Zero times what may be anything is zero: of real numbers.
double product(double a, double b) { return a == 0 || b == 0 ? 0 : a * b; }

double of_integer(const Expr& expr) {
    const Interval bounds = bounds_of(expr);
    if (!bounds.min || !bounds.max) return unknown;
    return std::max(std::abs(static_cast<double>(*bounds.min)), std::abs(static_cast<double>(*bounds.max)));
}

/// Each expression looked at once.
class Bound {
public:
    double of(const Expr& expr) {
        if (auto known = known_.find(expr.id()); known != known_.end()) return known->second;
        const double bound = is_float(expr.type()) ? of_float(expr) : of_integer(expr);
        return known_[expr.id()] = bound;
    }

private:
    double of_float(const Expr& expr) {
        if (const auto* node = expr.as<FloatConstant>()) return node->value == -unknown ? 0 : std::abs(node->value);
        if (const auto* node = expr.as<Unary>()) return of_unary(*node);
        if (const auto* node = expr.as<Binary>()) return of_binary(*node);
        if (const auto* node = expr.as<Fma>()) return product(of(node->a), of(node->b)) + of(node->c);
        if (const auto* node = expr.as<Select>()) return std::max(of(node->yes), of(node->no));
        if (const auto* node = expr.as<Cast>()) return of(node->a);
        return unknown;
    }

    double of_unary(const Unary& node) {
        switch (node.op) {
            case UnaryOp::Negate:
            case UnaryOp::Abs:
            case UnaryOp::TruncateTf32: return of(node.a);
            case UnaryOp::Floor:
            case UnaryOp::Ceil:
            case UnaryOp::Round: return std::ceil(of(node.a));
            case UnaryOp::Sqrt: return std::sqrt(of(node.a));
            case UnaryOp::ExpNonpositive: return 1;
            case UnaryOp::Exp: return std::exp(of(node.a));
            case UnaryOp::Exp2: return std::exp2(of(node.a));
            case UnaryOp::Tanh:
            case UnaryOp::TanhApprox:
            case UnaryOp::Erf:
            case UnaryOp::ErfUnbranched:
            case UnaryOp::Sigmoid:
            case UnaryOp::NormalCdf:
            case UnaryOp::Logistic2: return 1;
            default: return unknown;
        }
    }

    double of_binary(const Binary& node) {
        switch (node.op) {
            case BinaryOp::Add:
            case BinaryOp::Sub: return of(node.a) + of(node.b);
            case BinaryOp::Mul: return product(of(node.a), of(node.b));
            case BinaryOp::Div: return of_quotient(node);
            case BinaryOp::Min:
            case BinaryOp::Max: return std::max(of(node.a), of(node.b));
            default: return unknown;
        }
    }

    double of_quotient(const Binary& node) {
        const auto* divisor = node.b.as<FloatConstant>();
        return divisor && divisor->value != 0 ? of(node.a) / std::abs(divisor->value) : unknown;
    }

    std::unordered_map<const ExprNode*, double> known_;
};

}  // namespace

double largest_magnitude(const Expr& expr) { return Bound().of(expr); }

}  // namespace tw
