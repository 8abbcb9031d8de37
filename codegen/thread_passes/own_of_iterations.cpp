#include "codegen/thread_passes/own_of_iterations.h"

#include <algorithm>

#include "codegen/access/access.h"

namespace tw::codegen {

OwnOfIterations::OwnOfIterations(const ThreadLoop& loop) {
    variables.push_back(loop.variable);
    visit(loop.body, [&](const ThreadStmt& stmt) {
        if (const ThreadLoop* inner = stmt.as<ThreadLoop>()) {
            variables.push_back(inner->variable);
            if (inner->unroll && as_constant(inner->extent)) nested.push_back(inner);
        }
        if (const ThreadLet* let = stmt.as<ThreadLet>()) variables.push_back(let->variable);
        if (const ThreadDeclare* declare = stmt.as<ThreadDeclare>()) written.insert(declare->buffer.get());
        for (const MemoryAccess& access : memory_accesses(stmt))
            if (access.writes) written.insert(access.place.buffer.get());
    });
}

int64_t OwnOfIterations::values_all_have(const Expr& expr) const {
    int64_t values = 1;
    Expr at_one_place = expr;
    for (const ThreadLoop* inner : nested)
        if (contains(expr, inner->variable)) {
            values *= *as_constant(inner->extent);
            at_one_place = substitute(at_one_place, {{inner->variable, integer(0)}});
        }
    return all_have(at_one_place) ? values : 0;
}

bool OwnOfIterations::all_have(const Expr& expr, const std::set<const BufferNode*>& constant) const {
    bool common = true;
    visit(expr, [&](const Expr& node) {
        if (const Load* load = node.as<Load>())
            common = common && (load->buffer->memory == Memory::Registers ? !written.contains(load->buffer.get())
                                                                          : constant.contains(load->buffer.get()));
        common = common && !node.as<Exchange>();
    });
    return common && std::ranges::none_of(variables, [&](const Expr& each) { return contains(expr, each); });
}

}  // namespace tw::codegen
