#include "codegen/thread_passes/evaluation.h"

#include "codegen/access/access.h"

namespace tw::codegen {
namespace {

/// An array of registers has nothing beside its elements: what reads there may only stand behind the conditions that
/// keep it from doing so.
bool is_inside(const Load& load, const KnownBounds& bounds) {
    const BufferNode& array = *load.buffer;
    for (size_t d = 0; d < rank_of(array); ++d) {
        Interval index = bounds.of(load.indices[d]);
        if (index.min.value_or(-1) < 0 || !index.max || *index.max >= require_constant(array.shape[d])) return false;
    }
    return true;
}

}  // namespace

bool is_guarded(const Expr& expr, size_t kid) {
    const Binary* node = expr.as<Binary>();
    return kid > 0 && (expr.as<Select>() || (node && (node->op == BinaryOp::And || node->op == BinaryOp::Or)));
}

bool is_pure_by_itself(const Expr& expr, const KnownBounds& bounds) {
    if (const Load* load = expr.as<Load>())
        return load->buffer->memory == Memory::Registers && is_inside(*load, bounds);
    if (expr.as<Exchange>()) return false;
    const Binary* node = expr.as<Binary>();
    bool divides = node && is_integer(expr.type()) && (node->op == BinaryOp::Div || node->op == BinaryOp::Mod);
    return !divides || as_constant(node->b).value_or(0) > 0;
}

}  // namespace tw::codegen
