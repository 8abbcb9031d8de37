#include "dsl/distinct_names.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "dsl/walk.h"

namespace tw {

std::string axis_name(size_t dimension) {
    static const char* names[] = {"i", "j", "p", "q", "u", "v"};
    return dimension < std::size(names) ? names[dimension] : fmt::format("i{}", dimension);
}

namespace {

Expr renamed(const Expr& variable, const std::string& name) {
    Variable result = *variable.as<Variable>();
    result.name = name;
    return make_expr(variable.type(), std::move(result));
}

class Renaming {
public:
    Renaming(std::vector<Expr>& axes, std::vector<Expr>& bodies, const std::vector<Expr>& shape)
        : axes_(axes), bodies_(bodies) {
        for (const Expr& extent : shape) collect(extent);
        for (const Expr& body : bodies) collect(body);
    }

    void run() {
        std::set<std::string> visible = free_;
        for (size_t d = 0; d < axes_.size(); ++d) {
            rename_axis(d);
            visible.insert(name_after(axes_[d]));
        }
        for (const Expr& body : bodies_) number_reductions(body, visible);
        if (renamed_.empty()) return;
        for (Expr& axis : axes_) axis = rewritten(axis);
        for (Expr& body : bodies_) body = rewritten(body);
    }

private:
    bool is_axis(const Expr& variable) const {
        return std::any_of(axes_.begin(), axes_.end(), [&](const Expr& axis) { return axis.same(variable); });
    }

    /// Names that axes must not take: those of sizes and scalars, and of the reductions' axes.
    void collect(const Expr& expr) {
        visit(expr, [&](const Expr& part) {
            if (part.as<Variable>() && !is_axis(part)) {
                others_.insert(name_of(part));
                if (part.as<Variable>()->kind != VariableKind::Index) free_.insert(name_of(part));
            }
            auto* reduce = part.as<Reduce>();
            if (!reduce) return;
            for (const Expr& axis : reduce->axes) {
                others_.insert(name_of(axis));
                if (axis.as<Variable>()->extent.defined()) collect(axis.as<Variable>()->extent);
            }
        });
    }

    void rename_axis(size_t d) {
        if (!others_.count(name_of(axes_[d]))) return;
        size_t next = axes_.size();
        auto is_taken = [&](const std::string& name) { return others_.count(name) != 0; };
        while (is_taken(axis_name(next))) ++next;
        others_.insert(axis_name(next));
        renamed_.emplace(axes_[d].id(), renamed(axes_[d], axis_name(next)));
    }

    /// Axes of reductions whose name is visible where they stand.
    void number_reductions(const Expr& expr, const std::set<std::string>& visible) {
        auto* reduce = expr.as<Reduce>();
        if (!reduce) {
            for (const Expr& kid : reductions_below(expr)) number_reductions(kid, visible);
            return;
        }
        std::set<std::string> inside = visible;
        for (const Expr& axis : reduce->axes) {
            if (inside.count(name_after(axis)) && !numbered_.count(axis.id())) {
                int number = 2;
                auto name = [&] { return fmt::format("{}{}", name_of(axis), number); };
                while (inside.count(name()) || others_.count(name())) ++number;
                renamed_.emplace(axis.id(), renamed(axis, name()));
            }
            numbered_.insert(axis.id());
            inside.insert(name_after(axis));
        }
        for (const Expr& value : reduce->values) number_reductions(value, inside);
    }

    /// The outermost reductions of an expression, each once.
    static std::vector<Expr> reductions_below(const Expr& expr) {
        std::vector<Expr> found;
        std::unordered_set<const ExprNode*> seen;
        auto walk = [&](auto& self, const Expr& part) -> void {
            if (!seen.insert(part.id()).second) return;
            if (part.as<Reduce>()) return found.push_back(part);
            for (const Expr& kid : children(part)) self(self, kid);
        };
        for (const Expr& kid : children(expr)) walk(walk, kid);
        return found;
    }

    const std::string& name_after(const Expr& variable) const {
        auto found = renamed_.find(variable.id());
        return name_of(found == renamed_.end() ? variable : found->second);
    }

    /// Axes of reductions whose extents mention what is renamed are new variables, too. Shared nodes stay shared, also
    /// among several bodies.
    Expr rewritten(const Expr& expr) {
        if (auto found = done_.find(expr.id()); found != done_.end()) return found->second;
        Expr result = map_children(expr, [&](const Expr& kid) { return rewritten(kid); });
        if (expr.as<Variable>()) result = rewritten_variable(expr);
        if (auto* reduce = result.as<Reduce>()) {
            Reduce copy = *reduce;
            bool changed = false;
            for (Expr& axis : copy.axes) {
                Expr before = std::exchange(axis, rewritten(axis));
                changed = changed || !axis.same(before);
            }
            if (changed) result = make_expr(expr.type(), std::move(copy));
        }
        done_.emplace(expr.id(), result);
        return result;
    }
    Expr rewritten_variable(const Expr& expr) {
        auto found = renamed_.find(expr.id());
        Expr result = found == renamed_.end() ? expr : found->second;
        Variable variable = *result.as<Variable>();
        if (!variable.extent.defined()) return result;
        Expr extent = rewritten(variable.extent);
        if (extent.same(variable.extent)) return result;
        variable.extent = extent;
        return make_expr(expr.type(), std::move(variable));
    }

    std::vector<Expr>& axes_;
    std::vector<Expr>& bodies_;
    std::set<std::string> others_, free_;
    std::unordered_map<const ExprNode*, Expr> renamed_, done_;
    std::unordered_set<const ExprNode*> numbered_;
};

}  // namespace

void give_distinct_names(std::vector<Expr>& axes, std::vector<Expr>& bodies, const std::vector<Expr>& shape) {
    Renaming(axes, bodies, shape).run();
}

}  // namespace tw
