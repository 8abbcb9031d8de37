#include "dsl/check_body.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <unordered_set>

#include <fmt/ranges.h>

#include "dsl/walk.h"
#include "support/error.h"

namespace tw {
namespace {

using Indices = std::vector<const ExprNode*>;

/// Expressions in which the same indices have values.
struct Scope {
    Indices indices;
    std::vector<Expr> exprs;
};

/// Each scope once: reductions open one, in which their axes have values, too.
class BodyCheck {
public:
    BodyCheck(const std::string& name, const std::vector<Expr>& axes, std::source_location where)
        : name_(name), axes_(axes), where_(where) {}

    void run(const Expr& body) {
        Indices indices;
        for (const Expr& axis : axes_) indices.push_back(axis.id());
        left_ = {{indices, {body}}};
        while (!left_.empty()) {
            Scope scope = std::move(left_.back());
            left_.pop_back();
            check(std::move(scope));
        }
    }

private:
    void check(Scope scope) {
        std::unordered_set<const ExprNode*> seen;
        while (!scope.exprs.empty()) {
            Expr expr = std::move(scope.exprs.back());
            scope.exprs.pop_back();
            if (!seen.insert(expr.id()).second) continue;
            if (auto* variable = expr.as<Variable>()) check_variable(expr, *variable, scope.indices);
            if (auto* number = expr.as<FloatConstant>()) check_number(*number, expr.type());
            if (auto* reduce = expr.as<Reduce>())
                enter(*reduce, scope);
            else
                for_each_child(*expr, [&](const Expr& kid) { scope.exprs.push_back(kid); });
        }
    }

    /// The extents of its axes stand outside.
    void enter(const Reduce& reduce, Scope& around) {
        Scope inside{around.indices, reduce.values};
        for (const Expr& axis : reduce.axes) {
            around.exprs.push_back(axis.as<Variable>()->extent);
            inside.indices.push_back(axis.id());
        }
        Indices entered = inside.indices;
        for (const Expr& value : reduce.values) entered.push_back(value.id());
        if (entered_.insert(entered).second) left_.push_back(std::move(inside));
    }

    void check_variable(const Expr& expr, const Variable& variable, const Indices& indices) const {
        user_check(variable.kind != VariableKind::Operand, where_,
                   "compute '{}': '{}' is an operand of a reducer, which has a value in its combine function alone; "
                   "use reduce(reducer, {{value}}, {{axis}})",
                   name_, variable.name);
        if (variable.kind != VariableKind::Index) return;
        if (std::ranges::find(indices, expr.id()) != indices.end()) return;
        std::vector<std::string> axes;
        for (const Expr& axis : axes_) axes.push_back(to_string(axis));
        user_error(
            where_,
            "compute '{}': index '{}' has no value here: it is none of the axes [{}], and no reduction around it "
            "runs over it. Reduce over it, e.g. sum(..., {}), or use the indices that the body is given",
            name_, variable.name, fmt::join(axes, ", "), variable.name);
    }

    void check_number(const FloatConstant& number, Type type) const {
        bool beyond = type == Type::F32 && std::isfinite(number.value) &&
                      std::abs(number.value) > std::numeric_limits<float>::max();
        user_check(!beyond, where_,
                   "compute '{}': the literal {} is beyond the largest f32; write infinity if that is meant", name_,
                   number.value);
    }

    const std::string& name_;
    const std::vector<Expr>& axes_;
    std::source_location where_;
    std::vector<Scope> left_;
    std::set<Indices> entered_;
};

}  // namespace

void check_body(const std::string& name, const Expr& body, const std::vector<Expr>& axes, std::source_location where) {
    BodyCheck(name, axes, where).run(body);
}

Expr part_beyond_sizes(const Expr& extent) {
    Expr found;
    visit(extent, [&](const Expr& e) {
        auto* variable = e.as<Variable>();
        bool other = variable ? variable->kind != VariableKind::Size : e.as<Read>() || e.as<Reduce>();
        if (other && !found.defined()) found = e;
    });
    return found;
}

void check_combination(const std::string& reducer, const Expr& combined, const std::vector<Expr>& operands,
                       std::source_location where) {
    visit(combined, [&](const Expr& e) {
        auto* variable = e.as<Variable>();
        bool own = std::any_of(operands.begin(), operands.end(), [&](const Expr& operand) { return operand.same(e); });
        bool fits = variable ? own || variable->kind == VariableKind::Size || variable->kind == VariableKind::Scalar
                             : !e.as<Read>() && !e.as<Reduce>();
        user_check(fits, where,
                   "reducer '{}': combine uses '{}'; it is made of its operands, scalars and named sizes alone, for it "
                   "must be associative. What depends on elements belongs into the values that are reduced",
                   reducer, to_string(e));
    });
}

}  // namespace tw
