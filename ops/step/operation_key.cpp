#include "ops/step/operation_key.h"

#include <algorithm>
#include <bit>

#include "dsl/deep.h"

namespace tw {
namespace {

void add(std::string& line, int64_t word) { line.append(reinterpret_cast<const char*>(&word), sizeof word); }
void add(std::string& line, const void* pointer) { add(line, std::bit_cast<int64_t>(pointer)); }

}  // namespace

std::string OperationKeys::of(const Operation& operation) {
    numbers_.clear();
    variables_.clear();
    for (const Expr& axis : operation.axes) variables_.try_emplace(axis.id(), static_cast<int64_t>(variables_.size()));
    int depth = 0;
    for (const Operation::Output& output : operation.outputs) depth = std::max(depth, depth_of(output.body));
    std::string key;
    with_room_for(depth, [&] {
        for (const Expr& extent : operation.shape) add(key, number(extent));
        for (const Operation::Output& output : operation.outputs) {
            add(key, static_cast<int64_t>(output.type));
            add(key, number(output.body));
        }
    });
    return key;
}

int64_t OperationKeys::number(const Expr& expr) {
    if (!expr.defined()) return -1;
    if (const auto known = numbers_.find(expr.id()); known != numbers_.end()) return known->second;
    const int64_t number = number_of_line(line_of(expr));
    return numbers_[expr.id()] = number;
}

int64_t OperationKeys::number_of_line(const std::string& line) {
    return lines_.try_emplace(line, static_cast<int64_t>(lines_.size())).first->second;
}

std::string OperationKeys::line_of(const Expr& expr) {
    std::string line;
    add(line, static_cast<int64_t>(expr.type()));
    add(line, static_cast<int64_t>((*expr).kind.index()));
    if (const IntConstant* n = expr.as<IntConstant>()) add(line, n->value);
    if (const FloatConstant* n = expr.as<FloatConstant>()) add(line, std::bit_cast<int64_t>(n->value));
    if (const Unary* n = expr.as<Unary>()) add(line, static_cast<int64_t>(n->op));
    if (const Binary* n = expr.as<Binary>()) add(line, static_cast<int64_t>(n->op));
    if (const Variable* n = expr.as<Variable>()) {
        const auto bound = variables_.find(expr.id());
        if (bound == variables_.end())
            add(line, expr.id());
        else
            add(line, -1 - bound->second);
        add(line, n->min.value_or(-1));
        add(line, n->max.value_or(-1));
        add(line, n->multiple_of);
        add(line, number(n->extent));
    }
    if (const Read* n = expr.as<Read>()) {
        add(line, n->operation.get());
        add(line, n->output * 2 + (n->guarded ? 1 : 0));
    }
    if (const Reduce* n = expr.as<Reduce>()) {
        add(line, n->component);
        for (const Expr& axis : n->axes) variables_.try_emplace(axis.id(), static_cast<int64_t>(variables_.size()));
        for (const Expr& axis : n->axes) add(line, number(axis));
        add(line, number_of_line(reducer_line(*n->reducer)));
    }
    for (const Expr& kid : children(expr)) add(line, number(kid));
    return line;
}

std::string OperationKeys::reducer_line(const ReducerNode& reducer) {
    for (const auto* operands : {&reducer.left, &reducer.right})
        for (const Expr& each : *operands) variables_.try_emplace(each.id(), static_cast<int64_t>(variables_.size()));
    std::string line = reducer.commutative ? "commutative" : "ordered";
    for (const auto* list : {&reducer.identity, &reducer.left, &reducer.right, &reducer.combined})
        for (const Expr& each : *list) add(line, number(each));
    return line;
}

}  // namespace tw
