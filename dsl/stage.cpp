#include "dsl/stage.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "dsl/deep.h"
#include "dsl/schedule_state.h"
#include "dsl/simplify.h"
#include "dsl/walk.h"
#include "support/error.h"

namespace tw {
namespace {

bool one_reduction(const Reduce& a, const Reduce& b) {
    auto same = [](const std::vector<Expr>& x, const std::vector<Expr>& y) {
        return std::equal(x.begin(), x.end(), y.begin(), y.end(),
                          [](const Expr& p, const Expr& q) { return p.same(q); });
    };
    return a.reducer == b.reducer && same(a.values, b.values) && same(a.axes, b.axes);
}

/// Reductions of the bodies that stand in no other reduction, one node a group of components.
std::vector<Expr> outer_reductions(const std::vector<Expr>& bodies) {
    std::vector<Expr> found;
    std::unordered_set<const ExprNode*> seen;
    std::function<void(const Expr&)> walk = [&](const Expr& expr) {
        if (!seen.insert(expr.id()).second) return;
        if (const Reduce* reduce = expr.as<Reduce>()) {
            bool known = std::any_of(found.begin(), found.end(),
                                     [&](const Expr& f) { return one_reduction(*f.as<Reduce>(), *reduce); });
            if (!known) found.push_back(expr);
            return;
        }
        for_each_child(*expr, walk);
    };
    for (const Expr& body : bodies) with_room_for(body, [&] { walk(body); });
    return found;
}

std::vector<Expr> extents_of(const Reduce& reduce) {
    std::vector<Expr> extents;
    for (const Expr& axis : reduce.axes) extents.push_back(axis.as<Variable>()->extent);
    return extents;
}

/// Index variables that occur free: not bound by a reduction inside.
std::vector<Expr> free_indices(const std::vector<Expr>& exprs, std::vector<Expr> bound) {
    std::vector<Expr> found;
    auto has = [](const std::vector<Expr>& list, const Expr& v) {
        return std::any_of(list.begin(), list.end(), [&](const Expr& e) { return e.same(v); });
    };
    using Seen = std::unordered_set<const ExprNode*>;  // under the same hidden axes
    std::function<void(const Expr&, const std::vector<Expr>&, Seen&)> walk = [&](const Expr& expr, const auto& hidden,
                                                                                 Seen& seen) {
        if (!seen.insert(expr.id()).second) return;
        if (const Variable* v = expr.as<Variable>()) {
            if (v->kind == VariableKind::Index && !has(hidden, expr) && !has(found, expr)) found.push_back(expr);
            return;
        }
        const Reduce* reduce = expr.as<Reduce>();
        if (!reduce) {
            for_each_child(*expr, [&](const Expr& kid) { walk(kid, hidden, seen); });
            return;
        }
        for (const Expr& extent : extents_of(*reduce)) walk(extent, hidden, seen);
        std::vector<Expr> more = hidden;
        more.insert(more.end(), reduce->axes.begin(), reduce->axes.end());
        Seen seen_inside;
        for (const Expr& value : reduce->values) walk(value, more, seen_inside);
    };
    Seen seen;
    for (const Expr& expr : exprs) with_room_for(expr, [&] { walk(expr, bound, seen); });
    return found;
}

class Normaliser {
public:
    std::vector<StageDefinition> run(const std::vector<Tensor>& outputs) {
        for (const auto& operation : operations_of(outputs))
            if (!operation->is_input()) add(operation);
        return std::move(stages_);
    }

private:
    void add(const std::shared_ptr<const Operation>& operation) {
        StageDefinition stage{operation->name, operation, operation->axes, {}, {}, {}, {}, {}};
        std::vector<Expr> bodies;
        for (const auto& output : operation->outputs) bodies.push_back(output.body);
        std::vector<Expr> reductions = outer_reductions(bodies);
        if (reductions.size() == 1) {
            own_reduction(stage, *reductions[0].as<Reduce>());
            for (Expr& body : bodies) body = replace_own(body, *reductions[0].as<Reduce>(), stage.accumulators);
        } else {
            for (Expr& body : bodies) body = extract_all(body, stage.name);
        }
        for (const Expr& body : bodies) stage.finish.push_back(contract(simplify(body)));
        stages_.push_back(std::move(stage));
    }

    void own_reduction(StageDefinition& stage, const Reduce& reduce) {
        stage.reducer = reduce.reducer;
        stage.reduce_axes = reduce.axes;
        std::vector<Expr> extents = extents_of(reduce);
        if (std::any_of(extents.begin(), extents.end(), depends_on_element)) stage.reduce_extents = extents;
        Substitution operands;
        for (size_t c = 0; c < reduce.values.size(); ++c) {
            Variable accumulator{.name = "accumulator", .kind = VariableKind::Scalar};
            stage.accumulators.push_back(make_expr(reduce.values[c].type(), accumulator));
            operands.emplace_back(reduce.reducer->left[c], stage.accumulators[c]);
            operands.emplace_back(reduce.reducer->right[c], extract_all(reduce.values[c], stage.name));
        }
        for (const Expr& combined : reduce.reducer->combined)
            stage.update.push_back(contract(simplify(substitute(combined, operands))));
    }

    static Expr replace_own(const Expr& body, const Reduce& own, const std::vector<Expr>& accumulators) {
        std::unordered_map<const ExprNode*, Expr> done;
        std::function<Expr(const Expr&)> walk = [&](const Expr& expr) -> Expr {
            if (const Reduce* reduce = expr.as<Reduce>(); reduce && one_reduction(*reduce, own))
                return accumulators[reduce->component];
            if (auto known = done.find(expr.id()); known != done.end()) return known->second;
            std::vector<Expr> kids = children(expr);
            for (Expr& kid : kids) kid = walk(kid);
            return done[expr.id()] = with_children(expr, kids);
        };
        return with_room_for(body, [&] { return walk(body); });
    }

    /// Each reduction inside becomes an operation and a stage of its own; the expression reads it.
    Expr extract_all(const Expr& body, const std::string& parent) {
        Expr result = body;
        for (const Expr& found : outer_reductions({body})) result = extract(result, *found.as<Reduce>(), parent);
        return result;
    }

    Expr extract(const Expr& body, const Reduce& reduce, const std::string& parent) {
        auto operation = std::make_shared<Operation>();
        operation->name = unique_name(parent + "_" + reduce.reducer->name);
        std::vector<Expr> inside = reduce.values;
        for (const Expr& extent : extents_of(reduce)) inside.push_back(extent);
        operation->axes = free_indices(inside, reduce.axes);
        operation->where = reduce.where;
        for (const Expr& axis : operation->axes) operation->shape.push_back(axis.as<Variable>()->extent);
        for (size_t c = 0; c < reduce.values.size(); ++c) {
            Reduce component = reduce;
            component.component = static_cast<int>(c);
            operation->outputs.push_back({reduce.values[c].type(), make_expr(reduce.values[c].type(), component)});
        }
        add(operation);
        std::vector<Expr> reads;
        for (size_t c = 0; c < reduce.values.size(); ++c)
            reads.push_back(make_expr(reduce.values[c].type(), Read{operation, static_cast<int>(c), operation->axes}));
        return replace_own(body, reduce, reads);
    }

    std::string unique_name(const std::string& wanted) {
        int number = ++names_[wanted];
        return number == 1 ? wanted : fmt::format("{}{}", wanted, number);
    }

    std::vector<StageDefinition> stages_;
    std::map<std::string, int> names_;
};

}  // namespace

std::optional<BinaryOp> combining_operation(const ReducerNode& reducer) {
    auto* node = reducer.combined.size() == 1 ? reducer.combined[0].as<Binary>() : nullptr;
    if (!node || !node->a.same(reducer.left[0]) || !node->b.same(reducer.right[0])) return {};
    return node->op;
}

std::optional<BinaryOp> atomic_operation(const ReducerNode& reducer) {
    const auto operation = combining_operation(reducer);
    Type type = reducer.combined[0].type();
    bool integer = type == Type::I32 || type == Type::U32 || type == Type::I64;
    bool adds = operation == BinaryOp::Add && (integer || type == Type::F32 || type == Type::F64);
    bool picks = (operation == BinaryOp::Min || operation == BinaryOp::Max) && (integer || type == Type::F32);
    return adds || picks ? operation : std::nullopt;
}

std::vector<StageDefinition> stages_of(const std::vector<Tensor>& outputs) { return Normaliser().run(outputs); }

}  // namespace tw
