#include "codegen/tile_ir/tile_ir.h"

#include <algorithm>

#include "dsl/simplify.h"

namespace tw::codegen {

int threads_of(const RoleSpec& role) { return (role.warps + 3) / 4 * 128; }

int turns_of(const TileKernel& kernel) { return kernel.roles.empty() ? 1 : kernel.roles[0].turns; }

Expr tile_of_round(const TileKernel& kernel, const Expr& round) {
    const Persistence& persistent = *kernel.persistent;
    const Expr& block = kernel.block[0];
    if (!persistent.growing) return block + round * persistent.blocks;
    // Clusters change places, not the blocks in them. The last round goes forth: it may have too few tiles for all.
    Expr cluster = block / kernel.cluster, rank = block % kernel.cluster;
    int64_t clusters = persistent.blocks / kernel.cluster;
    Expr last_round = (persistent.tiles + (persistent.blocks - 1)) / persistent.blocks - 1;
    Expr place = select((last_round - round) % 2 == 1, clusters - 1 - cluster, cluster);
    return persistent.tiles - (round * clusters + place + 1) * kernel.cluster + rank;
}

int all_threads(const TileKernel& kernel) {
    int threads = kernel.threads * turns_of(kernel);
    for (size_t r = 1; r < kernel.roles.size(); ++r) threads += threads_of(kernel.roles[r]);
    return threads;
}

TileStmt replace_ops(const TileStmt& stmt, const std::function<TileStmt(const TileOp&)>& rule) {
    if (const TileOp* op = stmt.as<TileOp>()) return rule(*op);
    if (const TileLoop* loop = stmt.as<TileLoop>()) {
        TileLoop copy = *loop;
        copy.body = replace_ops(loop->body, rule);
        return make_tile(std::move(copy));
    }
    if (const TileAllocate* allocate = stmt.as<TileAllocate>())
        return make_tile(TileAllocate{allocate->buffer, replace_ops(allocate->body, rule), allocate->around});
    TileBlock block;
    for (const TileStmt& kid : stmt.as<TileBlock>()->stmts) block.stmts.push_back(replace_ops(kid, rule));
    return make_tile(std::move(block));
}

TileStmt map_ops(const TileStmt& stmt, const OpRule& rule) {
    return replace_ops(stmt, [&](const TileOp& op) { return make_tile(rule(op)); });
}

void visit_ops(const TileStmt& stmt, const std::function<void(const TileOp&)>& see) {
    if (const TileOp* op = stmt.as<TileOp>()) return see(*op);
    if (const TileLoop* loop = stmt.as<TileLoop>()) return visit_ops(loop->body, see);
    if (const TileAllocate* allocate = stmt.as<TileAllocate>()) return visit_ops(allocate->body, see);
    for (const TileStmt& kid : stmt.as<TileBlock>()->stmts) visit_ops(kid, see);
}

TileOp map_exprs(const TileOp& op, const std::function<Expr(const Expr&)>& rule) {
    TileOp result = op;
    for (OpLoop& loop : result.loops) loop.extent = rule(loop.extent);
    for (StoreTo& store : result.stores) {
        for (Expr& index : store.indices) index = rule(index);
        store.value = rule(store.value);
    }
    auto map_call = [&](ThreadCall& call) {
        for (CallArgument& argument : call.arguments) {
            if (argument.value.defined()) argument.value = rule(argument.value);
            for (Expr& index : argument.place.indices) index = rule(index);
        }
    };
    map_call(result.call);
    for (ThreadCall& call : result.then) map_call(call);
    result.mask = rule(op.mask);
    if (op.readers_mask.defined()) result.readers_mask = rule(op.readers_mask);
    result.active = rule(op.active);
    if (op.otherwise.defined()) result.otherwise = rule(op.otherwise);
    return result;
}

void visit_exprs(const TileOp& op, const std::function<void(const Expr&)>& see) {
    for (const OpLoop& loop : op.loops) see(loop.extent);
    for (const StoreTo& store : op.stores) {
        for (const Expr& index : store.indices) see(index);
        see(store.value);
    }
    auto see_call = [&](const ThreadCall& call) {
        for (const CallArgument& argument : call.arguments) {
            if (argument.value.defined()) see(argument.value);
            for (const Expr& index : argument.place.indices) see(index);
        }
    };
    see_call(op.call);
    for (const ThreadCall& call : op.then) see_call(call);
    see(op.mask);
    see(op.active);
    if (op.otherwise.defined()) see(op.otherwise);
}

std::vector<Buffer> loads_of(const TileOp& op) {
    std::vector<Buffer> found;
    visit_exprs(op, [&](const Expr& root) {
        visit(root, [&](const Expr& e) {
            const Load* load = e.as<Load>();
            if (load && std::find(found.begin(), found.end(), load->buffer) == found.end())
                found.push_back(load->buffer);
        });
    });
    return found;
}

bool mentions(const TileOp& op, const Expr& variable) {
    bool found = false;
    visit_exprs(op, [&](const Expr& e) { found = found || contains(e, variable); });
    return found;
}

bool stores_to(const TileOp& op, Memory memory) {
    return std::any_of(op.stores.begin(), op.stores.end(),
                       [&](const StoreTo& store) { return store.buffer->memory == memory; });
}

bool is_atomic(const TileOp& op) {
    return std::any_of(op.stores.begin(), op.stores.end(), [](const StoreTo& store) { return store.atomic; });
}

bool loads_from(const TileOp& op, Memory memory) {
    std::vector<Buffer> loads = loads_of(op);
    return std::any_of(loads.begin(), loads.end(), [&](const Buffer& buffer) { return buffer->memory == memory; });
}

}  // namespace tw::codegen
