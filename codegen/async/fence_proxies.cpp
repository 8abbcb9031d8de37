#include <set>

#include "codegen/async/async_passes.h"

namespace tw::codegen {
namespace {

using Buffers = std::set<const BufferNode*>;

Buffers read_another_way(const TileKernel& kernel) {
    Buffers found;
    visit_ops(kernel.body, [&](const TileOp& op) {
        if (op.kind == TileOp::Kind::TmaCopy)
            for (const Buffer& buffer : loads_of(op)) found.insert(buffer.get());
        for (const CallArgument& argument : op.call.arguments)
            if (argument.effect == CallArgument::Effect::Matrix) found.insert(argument.place.buffer.get());
    });
    return found;
}

/// Whether what the op stores is there behind it, written by threads.
bool writes(const TileStmt& stmt, const Buffers& buffers) {
    bool found = false;
    visit_ops(stmt, [&](const TileOp& op) {
        if (op.kind == TileOp::Kind::AsyncCopy) return;
        for (const StoreTo& store : op.stores) found = found || buffers.count(store.buffer.get());
    });
    return found;
}

TileStmt fence() {
    TileOp op;
    op.kind = TileOp::Kind::Call;
    op.name = op.call.primitive = "fence_async_proxy";
    op.mask = op.active = all_of({});
    return make_tile(std::move(op));
}

TileStmt fenced(const TileStmt& stmt, const Buffers& buffers) {
    if (const TileLoop* loop = stmt.as<TileLoop>()) {
        TileLoop copy = *loop;
        copy.body = fenced(loop->body, buffers);
        return make_tile(std::move(copy));
    }
    if (const TileAllocate* allocate = stmt.as<TileAllocate>())
        return make_tile(TileAllocate{allocate->buffer, fenced(allocate->body, buffers), allocate->around});
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
