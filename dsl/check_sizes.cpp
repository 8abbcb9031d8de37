#include "dsl/check_sizes.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "dsl/simplifier.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {
namespace {

constexpr double kMost = 0x1p63;

/// The least value of an extent or stride, 1 at least: an empty tensor has strides, too.
double least(const Expr& size) { return static_cast<double>(std::max<int64_t>(bounds_of(size).min.value_or(1), 1)); }

/// How large the parts of index expressions become, in magnitude, roughly: named sizes as small as they may be, every
/// axis at its end. NaN for what is no index.
class Magnitudes {
public:
    double of(const Expr& expr) {
        if (expr.type() != Type::I64) return NAN;
        if (auto found = known_.find(expr.id()); found != known_.end()) return found->second;
        double result = of_node(expr);
        if (std::isnan(result)) result = of_simpler(expr);
        if (expr.as<Binary>() && result > largest_) largest_ = result, where_ = expr;
        known_.emplace(expr.id(), result);
        return result;
    }
    double largest() const { return largest_; }
    const Expr& where() const { return where_; }

private:
    double of_node(const Expr& expr) {
        if (auto value = as_constant(expr)) {
            double magnitude = std::abs(static_cast<double>(*value));
            return magnitude <= kMost / 2 ? magnitude : NAN;  // no index, as in Simplifier::is_place
        }
        if (auto* variable = expr.as<Variable>()) return of_variable(*variable);
        if (auto* node = expr.as<Unary>()) return of(node->a);
        if (auto* node = expr.as<Select>()) return larger(of(node->yes), of(node->no));
        auto* node = expr.as<Binary>();
        if (!node) return NAN;
        double a = of(node->a), b = of(node->b);
        switch (node->op) {
            case BinaryOp::Add:
            case BinaryOp::Sub: return a + b;
            case BinaryOp::Mul: return a * b;
            case BinaryOp::Div: return a + 0 * b;
            default: return larger(a, b);
        }
    }
    /// Data that are never chosen, or cancel, leave an index: select(i < n, i, data) is i.
    double of_simpler(const Expr& expr) {
        if (!expr.as<Select>() && !expr.as<Binary>()) return NAN;
        Expr simpler = simplifier_.simplify(expr);
        simpler_.push_back(simpler);
        bool is_place = !simpler.same(expr) && simplifier_.is_place(simpler);
        return is_place ? of(simpler) : NAN;
    }
    double of_variable(const Variable& variable) {
        if (variable.kind == VariableKind::Scalar) return NAN;
        if (variable.kind == VariableKind::Size) return static_cast<double>(variable.min.value_or(1));
        if (variable.extent.defined()) return of(variable.extent);
        return static_cast<double>(std::max(std::abs(variable.min.value_or(0)), std::abs(variable.max.value_or(0))));
    }
    static double larger(double a, double b) { return a > b ? a + 0 * b : b + 0 * a; }

    Simplifier simplifier_;
    std::unordered_map<const ExprNode*, double> known_;
    std::vector<Expr> simpler_ = {};  // kept, as known_ goes by their addresses
    double largest_ = 0;
    Expr where_;
};

}  // namespace

std::string shape_text(const std::vector<Expr>& shape) {
    std::vector<std::string> extents;
    for (const Expr& extent : shape) extents.push_back(to_string(extent));
    return fmt::format("[{}]", fmt::join(extents, ", "));
}

void check_bytes(const std::string& what, const std::vector<Expr>& shape, const std::vector<Expr>& strides, Type type,
                 std::source_location where) {
    double elements = 1;
    for (size_t d = 0; d < shape.size(); ++d)
        elements = strides.empty() ? elements * least(shape[d]) : elements + (least(shape[d]) - 1) * least(strides[d]);
    user_check(elements * bytes_of(type) < kMost, where,
               "{}: {} elements of {}{} take {:.3g} bytes, but addresses end at 2^63; give smaller extents", what,
               shape_text(shape), name_of(type), strides.empty() ? "" : " with strides " + shape_text(strides),
               elements * bytes_of(type));
}

void check_indices(const std::string& what, const Expr& expr, std::source_location where) {
    Magnitudes magnitudes;
    visit(expr, [&](const Expr& part) { magnitudes.of(part); });
    user_check(magnitudes.largest() < kMost, where,
               "{}: the index {} becomes as large as {:.3g}, beyond the 64 bits of an index; give smaller extents or "
               "factors",
               what, to_string(magnitudes.where()), magnitudes.largest());
}

}  // namespace tw
