#include <set>

#include "codegen/async/async_passes.h"

namespace tw::codegen {
namespace {

using Buffers = std::set<const BufferNode*>;

Buffers read_another_way(const TileKernel& kernel) {
    Buffers found;
    visit_ops(kernel.body, [&](const TileOp& op) {
        if (op.is<TmaCopyOp>())
            for (const Buffer& buffer : loads_of(op)) found.insert(buffer.get());
        const CallOp* call = op.as<CallOp>();
        for (const Instruction& i : call ? call->instructions : std::vector<Instruction>())
            for (const Operand& operand : operands(i))
                if (auto matrix = std::get_if<MatrixOperand>(&operand)) found.insert(matrix->place.buffer.get());
    });
    return found;
}

/// Whether what the op stores is there behind it, written by threads.
bool writes(const TileStmt& stmt, const Buffers& buffers) {
    bool found = false;
    visit_ops(stmt, [&](const TileOp& op) {
        if (op.is<AsyncCopyOp>()) return;
        for (const StoreTo& store : op.stores) found = found || buffers.count(store.buffer.get());
    });
    return found;
}

TileStmt fence() { return make_tile(call_op({FenceProxyAsync{}})); }

TileStmt fenced(const TileStmt& stmt, const Buffers& buffers) {
    if (stmt.as<TileLoop>() || stmt.as<TileAllocate>())
        return map_children(stmt, [&](const TileStmt& kid) { return fenced(kid, buffers); });
    TileBlock result;
    const TileBlock* block = stmt.as<TileBlock>();
    std::vector<TileStmt> stmts = block ? block->stmts : std::vector<TileStmt>{stmt};
    bool open = false;  // written, and not fenced yet
    for (const TileStmt& kid : stmts) {
        bool is_op = kid.as<TileOp>();
        bool is_write = is_op && writes(kid, buffers);
        if (open && !is_write) result.stmts.push_back(fence());
        open = is_write;
        result.stmts.push_back(is_op ? kid : fenced(kid, buffers));
    }
    if (open) result.stmts.push_back(fence());
    return result.stmts.size() == 1 ? result.stmts[0] : make_tile(std::move(result));
}

}  // namespace

TileKernel fence_proxies(const TileKernel& kernel) {
    Buffers buffers = read_another_way(kernel);
    if (buffers.empty()) return kernel;
    TileKernel result = kernel;
    result.body = fenced(kernel.body, buffers);
    return result;
}

}  // namespace tw::codegen
