#include "schedules/replace_tensors.h"

#include <algorithm>

namespace tw::schedules {

bool holds(const std::vector<Tensor>& tensors, const Tensor& tensor) {
    return std::ranges::any_of(tensors, [&](const Tensor& each) { return each.same(tensor); });
}

std::vector<Expr> changed_together(const std::vector<Expr>& bodies, const std::function<Expr(const Expr&)>& change) {
    return children(change(make_expr(Type::I64, Load{nullptr, bodies})));
}

std::vector<Expr> bodies_of(const Operation& operation) {
    std::vector<Expr> bodies;
    for (const Operation::Output& output : operation.outputs) bodies.push_back(output.body);
    return bodies;
}

std::shared_ptr<const Operation> declared_again(const Operation& operation, const std::string& name,
                                                const std::vector<Expr>& bodies) {
    const DeclaredIn scope(operation.scope);
    std::vector<std::string> names;
    for (const Operation::Output& output : operation.outputs) names.push_back(output.name);
    if (names[0].empty()) names.clear();
    auto body = [&](const std::vector<Expr>& at) {
        Substitution renamed;
        for (size_t d = 0; d < at.size(); ++d) renamed.emplace_back(operation.axes[d], at[d]);
        return changed_together(bodies, [&](const Expr& all) { return substitute(all, renamed); });
    };
    return compute_tuple(name, names, {operation.shape.begin(), operation.shape.end()}, body, operation.where)[0]
        .operation();
}

Expr Replacement::in(const Expr& body) {
    return transform_with_extents(body, [&](const Expr& e) -> Expr {
        const Read* read = e.as<Read>();
        if (!read) return {};
        const Tensor first = of(read->operation);
        if (first.operation() == read->operation) return {};
        Read other = *read;
        other.operation = first.operation();
        other.output += first.output();
        return make_expr(e.type(), std::move(other));
    });
}

Tensor Replacement::of(const std::shared_ptr<const Operation>& operation) {
    if (const auto known = known_.find(operation); known != known_.end()) return known->second;
    // Producers first: chains of any length take no deeper stack.
    for (const auto& each :
         operations_of({Tensor(operation, 0)}, [&](const auto& one) { return known_.contains(one); })) {
        known_[each] = {each, 0};  // reads nothing that is replaced, unless a body says otherwise
        if (each->is_input()) continue;
        const std::vector<Expr> own = bodies_of(*each),
                                bodies = changed_together(own, [&](const Expr&all) { return in(all); });
        const bool same = std::ranges::equal(own, bodies, [](const Expr& a, const Expr& b) { return a.same(b); });
        if (!same) known_[each] = {declared_again(*each, each->name, bodies), 0};
    }
    return known_.at(operation);
}

Tensor Replacement::named(const std::string& name, const Tensor& tensor) {
    const Operation& operation = *tensor.operation();
    const Tensor stands{declared_again(operation, name, {in(operation.outputs[0].body)}), 0};
    known_[tensor.operation()] = stands;
    return stands;
}

}  // namespace tw::schedules
