#include "dsl/joint_gradient.h"

#include <algorithm>
#include <set>
#include <utility>

#include "dsl/walk.h"

namespace tw {
namespace {

void add_with_rules(const std::shared_ptr<const Operation>& operation, std::set<const Operation*>& seen,
                    std::vector<std::shared_ptr<const Operation>>& order) {
    if (!seen.insert(operation.get()).second) return;
    for (const auto& output : operation->outputs) {
        if (!output.body.defined()) continue;
        visit_with_extents(output.body, [&](const Expr& e) {
            if (const Read* read = e.as<Read>()) add_with_rules(read->operation, seen, order);
        });
    }
    if (operation->gradient)
        for (const Tensor& input : operation->gradient->inputs) add_with_rules(input.operation(), seen, order);
    order.push_back(operation);
}

}  // namespace

struct JointGradient::State {
    std::string name;
    std::vector<Tensor> tensors;
    Function function;
    std::source_location where;
    /// The adjoint of an output, and what has been passed on to `joint` for it: what that is made of tells which
    /// adjoints belong to a differentiation.
    struct Given {
        Tensor token;
        size_t index;
        Tensor adjoint;
    };
    std::vector<Given> given = {};
};

JointGradient::JointGradient(const std::string& name, std::vector<Tensor> tensors, const std::vector<Tensor>& inputs,
                             Function function, std::source_location where)
    : state_(std::make_shared<State>(State{name, std::move(tensors), std::move(function), where})) {
    const Tensor nothing = compute(name + "_joint", {}, [](const std::vector<Expr>&) { return constant(f32, 0.0); });
    joint_ = with_gradient(
        nothing, inputs,
        [state = state_](const Tensor& joint, const Tensor& adjoint) { return follow(state, joint, adjoint); }, where);
}

JointGradient::JointGradient(std::shared_ptr<State> state, Tensor joint)
    : state_(std::move(state)), joint_(std::move(joint)) {}

Tensor JointGradient::output(size_t index) const {
    const Tensor& tensor = state_->tensors.at(index);
    const auto give = [state = state_, index](const Tensor&, const Tensor& adjoint) {
        const Tensor token =
            compute(state->name + "_given", {}, [](const std::vector<Expr>&) { return constant(f32, 0.0); });
        state->given.push_back({token, index, adjoint});
        return std::vector{token, Tensor()};
    };
    const Tensor view = compute(
        tensor.name(), {tensor.shape().begin(), tensor.shape().end()},
        [&](const std::vector<Expr>& at) {
            return tensor.read({at.begin(), at.end()});
        },
        state_->where);
    return with_gradient(view, {joint_, tensor}, give, state_->where);
}

std::vector<Tensor> JointGradient::follow(const std::shared_ptr<State>& state, const Tensor& joint,
                                          const Tensor& adjoint) {
    const auto operations = operations_of({adjoint});
    std::vector<std::vector<Tensor>> found(state->tensors.size());
    std::erase_if(state->given, [&](const State::Given& each) {
        if (std::ranges::find(operations, each.token.operation()) == operations.end()) return false;
        found[each.index].push_back(each.adjoint);
        return true;
    });
    return state->function(JointGradient(state, joint), found);
}

std::vector<std::shared_ptr<const Operation>> operations_with_rules(const Tensor& output) {
    std::set<const Operation*> seen;
    std::vector<std::shared_ptr<const Operation>> order;
    add_with_rules(output.operation(), seen, order);
    return order;
}

}  // namespace tw
