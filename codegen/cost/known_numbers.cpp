#include "codegen/cost/known_numbers.h"

namespace tw::codegen {

bool KnownNumbers::holds(const Expr& expr) const {
    if (as_constant(expr) || expr.as<FloatConstant>()) return true;
    if (expr.as<Variable>()) return variables_.contains(expr.id());
    if (const Load* load = expr.as<Load>()) return registers_.contains(load->buffer.get());
    if (const Unary* node = expr.as<Unary>()) return holds(node->a);
    if (const Binary* node = expr.as<Binary>()) return holds(node->a) && holds(node->b);
    if (const Cast* node = expr.as<Cast>()) return holds(node->a);
    const Select* select = expr.as<Select>();
    return select && holds(select->condition) && holds(select->yes) && holds(select->no);
}

void KnownNumbers::define(const Expr& variable, const Expr& value) {
    if (holds(value))
        variables_.insert(variable.id());
    else
        variables_.erase(variable.id());
}

void KnownNumbers::store(const BufferNode* registers, const Expr& value) {
    if (holds(value))
        registers_.insert(registers);
    else
        registers_.erase(registers);
}

}  // namespace tw::codegen
