#include "dsl/check_gradient_rules.h"

#include <set>
#include <utility>

#include "dsl/differentiate.h"
#include "dsl/walk.h"
#include "support/error.h"

namespace tw {
namespace {

using Key = std::pair<const Operation*, int>;
Key key_of(const Tensor& tensor) { return {tensor.operation().get(), tensor.output()}; }

bool has_no_slope(const Expr& e) {
    const Unary* unary = e.as<Unary>();
    return unary && (unary->op == UnaryOp::Floor || unary->op == UnaryOp::Ceil || unary->op == UnaryOp::Round);
}

/// The tensors of which the element is made, but for what has no derivative.
std::vector<Tensor> smooth_reads(const Expr& body) {
    std::vector<Tensor> reads;
    std::set<const ExprNode*> seen;
    std::vector<Expr> open{body};
    while (!open.empty()) {
        const Expr e = open.back();
        open.pop_back();
        if (!is_float(e.type()) || has_no_slope(e) || !seen.insert(&*e).second) continue;
        if (const Read* read = e.as<Read>())
            reads.emplace_back(read->operation, read->output);
        else
            for_each_child(*e, [&](const Expr& child) { open.push_back(child); });
    }
    return reads;
}

/// Where adjoints of the tensor go on to.
std::vector<Tensor> behind(const Tensor& tensor) {
    const Operation& operation = *tensor.operation();
    if (operation.gradient) return operation.gradient->inputs;
    return operation.is_input() ? std::vector<Tensor>() : smooth_reads(operation.outputs[tensor.output()].body);
}

/// Calls see(tensor) once for all that are reached from the first ones, until it says so for one.
template <class See>
void reach(std::vector<Tensor> open, See&& goes_on) {
    std::set<Key> seen;
    while (!open.empty()) {
        const Tensor tensor = open.back();
        open.pop_back();
        if (!seen.insert(key_of(tensor)).second || !goes_on(tensor)) continue;
        for (const Tensor& next : behind(tensor)) open.push_back(next);
    }
}

void check_rule(const Tensor& tensor, const std::vector<Tensor>& inputs, std::source_location where) {
    const GradientRule& rule = *tensor.operation()->gradient;
    std::set<Key> listed, wanted;
    for (const Tensor& input : rule.inputs) listed.insert(key_of(input));
    for (const Tensor& input : inputs) wanted.insert(key_of(input));
    reach(smooth_reads(tensor.operation()->outputs[tensor.output()].body), [&](const Tensor& read) {
        if (listed.contains(key_of(read))) return false;
        user_check(
            !wanted.contains(key_of(read)), where,
            "gradients: '{}' is made of '{}', of which its own gradient, with_gradient at {}, says nothing; list "
            "'{}' among that one's inputs, with an undefined adjoint if it counts as constant there, or do not "
            "ask for its gradient",
            tensor.name(), read.name(), place_text(rule.where), read.name());
        return true;
    });
}

}  // namespace

void check_gradient_rules(const Tensor& output, const std::vector<Tensor>& inputs, std::source_location where) {
    reach({output}, [&](const Tensor& tensor) {
        const auto& rule = tensor.operation()->gradient;
        if (rule && !rule->inputs.empty()) check_rule(tensor, inputs, where);
        return true;
    });
}

}  // namespace tw
