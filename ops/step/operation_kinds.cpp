#include "ops/step/operation_kinds.h"

#include <algorithm>
#include <set>

#include "dsl/simplify.h"
#include "schedules/views.h"

namespace tw {
namespace {

bool reads_a_tensor(const Expr& expr) {
    bool found = false;
    visit(expr, [&](const Expr& e) { found |= e.as<Read>() != nullptr; });
    return found;
}

/// Variables of the places that are read.
std::set<const ExprNode*> axes_read(const Expr& expr) {
    std::set<const ExprNode*> axes;
    visit(expr, [&](const Expr& e) {
        if (const Read* read = e.as<Read>())
            for (const Expr& index : read->indices)
                for (const Expr& variable : variables_of(index)) axes.insert(variable.id());
    });
    return axes;
}

Expr without_casts(const Expr& expr) {
    const Cast* cast = expr.as<Cast>();
    return cast ? without_casts(cast->a) : expr;
}

bool is_sum_of_products(const Reduce& reduce) {
    const Binary* combined = reduce.reducer->combined[0].as<Binary>();
    if (reduce.values.size() != 1 || !combined || combined->op != BinaryOp::Add) return false;
    const Expr term = without_casts(reduce.values[0]);
    const Binary* product = term.as<Binary>();
    if (!product || product->op != BinaryOp::Mul) return false;
    const auto a = axes_read(product->a), b = axes_read(product->b);
    return !a.empty() && !b.empty() && a != b;
}

/// Axes of the operation that data of a term are compared with, so that it counts for one place along them.
std::set<const ExprNode*> scattered_axes(const Operation& operation, const Reduce& reduce) {
    std::set<const ExprNode*> axes;
    const Expr value = without_casts(reduce.values[0]);
    const Select* term = value.as<Select>();
    if (!term) return axes;
    visit(term->condition, [&](const Expr& e) {
        const Binary* equal = e.as<Binary>();
        if (!equal || equal->op != BinaryOp::Equal) return;
        for (const auto& [one, other] : {std::pair(equal->a, equal->b), std::pair(equal->b, equal->a)}) {
            const Expr axis = without_casts(one);
            const bool is_axis = std::ranges::any_of(operation.axes, [&](const Expr& own) { return own.same(axis); });
            if (is_axis && reads_a_tensor(other)) axes.insert(axis.id());
        }
    });
    return axes;
}

double most_of_extent(const Expr& extent) {
    return static_cast<double>(std::max<int64_t>(bounds_of(extent).max.value_or(1), 0));
}

/// Of one evaluation of an expression: what is shared in it counts once.
class FlopCount {
public:
    FlopCount(const Operation& operation, double elements) : operation_(operation), elements_(elements) {}

    /// `times`: how often each element evaluates it.
    void add(const Expr& expr, double times) {
        if (!seen_.insert(expr.id()).second || expr.as<Read>()) return;
        if (const Reduce* reduce = expr.as<Reduce>()) return add_reduction(*reduce, times);
        for (const Expr& kid : children(expr)) add(kid, times);
        if (is_float(expr.type())) note(expr.type(), times * operations_of(expr));
    }
    DeclaredFlops flops;

private:
    static double operations_of(const Expr& expr) {
        if (expr.as<Fma>()) return 2;
        return expr.as<Binary>() || expr.as<Unary>() ? 1 : 0;
    }
    void note(Type type, double count) {
        flops.all += elements_ * count;
        if (type == f64) flops.f64 += elements_ * count;
    }
    void add_reduction(const Reduce& reduce, double times) {
        for (const Expr& axis : reduce.axes) times *= most_of_extent(axis.as<Variable>()->extent);
        for (const Expr& axis : operation_.axes)
            if (scattered_axes(operation_, reduce).contains(axis.id()))
                times /= std::max(most_of_extent(axis.as<Variable>()->extent), 1.0);
        for (const Expr& value : reduce.values) add(value, times);
        visit(reduce.reducer->combined[static_cast<size_t>(reduce.component)], [&](const Expr& e) {
            if (is_float(e.type())) note(e.type(), times * operations_of(e));
        });
    }

    const Operation& operation_;
    const double elements_;
    std::set<const ExprNode*> seen_;
};

}  // namespace

std::string_view name_of(OperationKind kind) {
    switch (kind) {
        case OperationKind::OwnSchedule: return "own schedule";
        case OperationKind::SumOfProducts: return "sum of products";
        case OperationKind::Scatter: return "scatter";
        case OperationKind::Reduction: return "reduction";
        case OperationKind::Gather: return "gather";
        case OperationKind::Elements: return "elements";
        case OperationKind::View: break;
    }
    return "view";
}

OperationKind kind_of(const Operation& operation) {
    if (schedules::is_view(operation)) return OperationKind::View;
    OperationKind kind = OperationKind::Elements;
    const auto note = [&](OperationKind found) { kind = std::min(kind, found); };
    for (const Operation::Output& output : operation.outputs)
        visit(output.body, [&](const Expr& e) {
            if (const Reduce* reduce = e.as<Reduce>())
                note(is_sum_of_products(*reduce)                   ? OperationKind::SumOfProducts
                     : !scattered_axes(operation, *reduce).empty() ? OperationKind::Scatter
                                                                   : OperationKind::Reduction);
            if (const Read* read = e.as<Read>(); read && std::ranges::any_of(read->indices, reads_a_tensor))
                note(OperationKind::Gather);
        });
    return kind;
}

bool scatters(const Operation& operation) {
    bool found = false;
    for (const Operation::Output& output : operation.outputs)
        visit(output.body, [&](const Expr& e) {
            const Reduce* reduce = e.as<Reduce>();
            found = found || (reduce && !scattered_axes(operation, *reduce).empty());
        });
    return found;
}

DeclaredFlops declared_flops(const std::vector<Tensor>& outputs) {
    DeclaredFlops sum;
    for (const auto& operation : operations_of(outputs)) {
        if (operation->is_input()) continue;
        double elements = 1;
        for (const Expr& extent : operation->shape) elements *= most_of_extent(extent);
        FlopCount count(*operation, elements);
        for (const Operation::Output& output : operation->outputs) count.add(output.body, 1);
        sum.all += count.flops.all;
        sum.f64 += count.flops.f64;
    }
    return sum;
}

}  // namespace tw
