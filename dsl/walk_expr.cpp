// Walks of expressions: children, rewriting, substitution, equality.
#include <algorithm>
#include <bit>
#include <optional>
#include <unordered_set>
#include <variant>

#include <boost/container/small_vector.hpp>

#include "dsl/deep.h"
#include "dsl/expr.h"
#include "dsl/node_table.h"
#include "dsl/walk.h"
#include "support/error.h"

namespace tw {

std::vector<Expr> children(const Expr& expr) {
    std::vector<Expr> kids;
    for_each_child(*expr, [&](const Expr& kid) { kids.push_back(kid); });
    return kids;
}

Expr with_children(const Expr& expr, const std::vector<Expr>& kids) {
    size_t next = 0;
    return map_children(expr, [&](const Expr&) { return kids.at(next++); });
}

Expr transform(const Expr& root, const std::function<Expr(const Expr&)>& rule) {
    NodeTable<Expr> done;
    auto walk = [&](auto& self, const Expr& expr) -> Expr {
        if (const Expr* known = done.find(expr.id())) return *known;
        Expr rebuilt = map_children(expr, [&](const Expr& kid) { return self(self, kid); });
        Expr changed = rule(rebuilt);
        if (!changed.defined()) changed = std::move(rebuilt);
        done.insert(expr.id(), changed);
        return changed;
    };
    return with_room_for(root, [&] { return walk(walk, root); });
}

void visit(const Expr& root, const std::function<void(const Expr&)>& see) {
    NodeTable<std::monostate> seen;
    auto walk = [&](auto& self, const Expr& expr) -> void {
        if (!seen.insert(expr.id())) return;
        see(expr);
        for_each_child(*expr, [&](const Expr& kid) { self(self, kid); });
    };
    with_room_for(root, [&] { walk(walk, root); });
}

void visit_with_extents(const Expr& root, const std::function<void(const Expr&)>& see) {
    visit(root, [&](const Expr& e) {
        see(e);
        auto* reduce = e.as<Reduce>();
        if (!reduce) return;
        for (const Expr& axis : reduce->axes)
            if (axis.as<Variable>()->extent.defined()) visit_with_extents(axis.as<Variable>()->extent, see);
    });
}

namespace {

/// The reduction over axes whose extents are changed: those that data or other axes decide. Undefined if none is.
Expr with_extents(const Expr& expr, const Reduce& reduce, const std::function<Expr(const Expr&)>& change) {
    Substitution renamed;
    for (const Expr& axis : reduce.axes) {
        Variable variable = *axis.as<Variable>();
        if (!variable.extent.defined() || as_constant(variable.extent)) continue;
        Expr extent = change(variable.extent);
        if (extent.same(variable.extent)) continue;
        variable.extent = extent;
        renamed.emplace_back(axis, make_expr(axis.type(), std::move(variable)));
    }
    if (renamed.empty()) return {};
    Reduce result = reduce;
    for (Expr& value : result.values) value = substitute(value, renamed);
    for (Expr& axis : result.axes) axis = substitute(axis, renamed);
    return make_expr(expr.type(), std::move(result));
}

}  // namespace

Expr transform_with_extents(const Expr& root, const std::function<Expr(const Expr&)>& rule) {
    return transform(root, [&](const Expr& expr) -> Expr {
        const Reduce* reduce = expr.as<Reduce>();
        if (!reduce) return rule(expr);
        const Expr over = with_extents(expr, *reduce, [&](const Expr& e) { return transform_with_extents(e, rule); });
        if (!over.defined()) return rule(expr);
        const Expr changed = rule(over);
        return changed.defined() ? changed : over;
    });
}

Expr substitute(const Expr& root, const Substitution& replacements) {
    if (replacements.empty()) return root;
    return transform(root, [&](const Expr& expr) -> Expr {
        if (auto* reduce = expr.as<Reduce>())
            return with_extents(expr, *reduce, [&](const Expr& extent) { return substitute(extent, replacements); });
        if (!expr.as<Variable>()) return {};
        for (const auto& [variable, value] : replacements)
            if (expr.same(variable)) return value;
        return {};
    });
}

namespace {

/// Pairs of nodes that must be equal for others to be.
using Pairs = boost::container::small_vector<std::pair<const Expr*, const Expr*>, 8>;

/// Are two nodes of different identity equal if their children are, which are appended to the list?
struct EqualNodes {
    const ExprNode& other;
    Pairs& kids;

    template <class T>
    const T& theirs() const {
        return std::get<T>(other.kind);
    }
    bool pair(const Expr& a, const Expr& b) const {
        kids.emplace_back(&a, &b);
        return true;
    }
    bool pair_all(const std::vector<Expr>& a, const std::vector<Expr>& b) const {
        if (a.size() != b.size()) return false;
        for (size_t i = 0; i < a.size(); ++i) pair(a[i], b[i]);
        return true;
    }
    bool operator()(const IntConstant& n) const { return n.value == theirs<IntConstant>().value; }
    bool operator()(const FloatConstant& n) const {  // by bits: 0 is not -0, NaN is NaN
        return std::bit_cast<uint64_t>(n.value) == std::bit_cast<uint64_t>(theirs<FloatConstant>().value);
    }
    bool operator()(const Variable&) const { return false; }
    bool operator()(const Unary& n) const {
        const Unary& m = theirs<Unary>();
        return n.op == m.op && pair(n.a, m.a);
    }
    bool operator()(const Binary& n) const {
        const Binary& m = theirs<Binary>();
        return n.op == m.op && pair(n.b, m.b) && pair(n.a, m.a);
    }
    bool operator()(const Fma& n) const {
        const Fma& m = theirs<Fma>();
        return pair(n.c, m.c) && pair(n.b, m.b) && pair(n.a, m.a);
    }
    bool operator()(const Select& n) const {
        const Select& m = theirs<Select>();
        return pair(n.no, m.no) && pair(n.yes, m.yes) && pair(n.condition, m.condition);
    }
    bool operator()(const Cast& n) const { return pair(n.a, theirs<Cast>().a); }
    bool operator()(const Bitcast& n) const { return pair(n.a, theirs<Bitcast>().a); }
    bool operator()(const Read& n) const {
        const Read& m = theirs<Read>();
        return n.operation == m.operation && n.output == m.output && n.guarded == m.guarded &&
               pair_all(n.indices, m.indices);
    }
    bool operator()(const Load& n) const {
        const Load& m = theirs<Load>();
        return n.buffer == m.buffer && pair_all(n.indices, m.indices);
    }
    bool operator()(const Reduce& n) const {
        const Reduce& m = theirs<Reduce>();
        return n.reducer == m.reducer && n.component == m.component && pair_all(n.values, m.values) &&
               pair_all(n.axes, m.axes);
    }
    bool operator()(const Exchange& n) const {
        const Exchange& m = theirs<Exchange>();
        return n.lane_bits == m.lane_bits && pair(n.a, m.a);
    }
};

bool may_be_equal(const Expr& a, const Expr& b) {
    return a.defined() && b.defined() && a.type() == b.type() && (*a).kind.index() == (*b).kind.index() &&
           depth_of(a) == depth_of(b);
}

struct HashOfPair {
    size_t operator()(const std::pair<const ExprNode*, const ExprNode*>& p) const {
        return std::hash<const void*>()(p.first) * 31 + std::hash<const void*>()(p.second);
    }
};

}  // namespace

bool equal(const Expr& a, const Expr& b) {
    if (a.same(b)) return true;
    if (!may_be_equal(a, b)) return false;
    constexpr size_t few = 64;  // steps in which shared nodes may be met again
    std::unordered_set<std::pair<const ExprNode*, const ExprNode*>, HashOfPair> known;
    Pairs open;
    if (!std::visit(EqualNodes{*b, open}, (*a).kind)) return false;
    for (size_t steps = 0; !open.empty(); ++steps) {
        auto [x, y] = open.back();
        open.pop_back();
        if (x->same(*y)) continue;
        if (steps > few && !known.emplace(x->id(), y->id()).second) continue;
        if (!may_be_equal(*x, *y) || !std::visit(EqualNodes{**y, open}, (**x).kind)) return false;
    }
    return true;
}

bool contains(const Expr& root, const Expr& part) {
    const int depth = depth_of(part);  // what is no deeper holds none but itself
    NodeTable<std::monostate> seen;
    auto walk = [&](auto& self, const Expr& expr) -> bool {
        if (equal(expr, part)) return true;
        if (depth_of(expr) <= depth || !seen.insert(expr.id())) return false;
        bool found = false;
        for_each_child(*expr, [&](const Expr& kid) { found = found || self(self, kid); });
        return found;
    };
    return with_room_for(root, [&] { return walk(walk, root); });
}

std::vector<Expr> variables_of(const Expr& expr) {
    std::vector<Expr> found;
    visit(expr, [&](const Expr& node) {
        if (node.as<Variable>()) found.push_back(node);
    });
    return found;
}

bool mentions_index(const Expr& expr) {
    bool found = false;
    visit(expr, [&](const Expr& node) {
        const Variable* variable = node.as<Variable>();
        found = found || (variable && variable->kind == VariableKind::Index);
    });
    return found;
}

std::optional<int64_t> as_constant(const Expr& expr) {
    if (auto* integer = expr.as<IntConstant>()) return integer->value;
    return {};
}

int64_t require_constant(const Expr& expr) {
    auto value = as_constant(expr);
    internal_check(value, "{} is not a constant", to_string(expr));
    return *value;
}

bool is_zero(const Expr& expr) {
    const FloatConstant* real = expr.as<FloatConstant>();
    return real ? real->value == 0 : is_constant(expr, 0);
}

const std::string& name_of(const Expr& variable) { return variable.as<Variable>()->name; }

}  // namespace tw
