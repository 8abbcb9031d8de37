#include "codegen/tile_ir/tile_ir.h"

#include <algorithm>

#include "dsl/simplify.h"
#include "support/overloaded.h"

namespace tw::codegen {

int threads_of(const RoleSpec& role) { return (role.warps + 3) / 4 * 128; }

int turns_of(const TileKernel& kernel) { return kernel.roles.empty() ? 1 : kernel.roles[0].ping_pong; }

Expr tile_of_round(const TileKernel& kernel, const Expr& round) {
    const Persistence& persistent = *kernel.persistent;
    const Expr& block = kernel.block[0];
    if (persistent.tickets)
        return persistent.longest_first ? persistent.tiles - 1 - persistent.ticket : persistent.ticket;
    if (!persistent.longest_first) return block + round * persistent.blocks;
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

TileOp call_op(std::vector<Instruction> instructions, const Expr& active, int role) {
    TileOp op{CallOp{std::move(instructions)}};
    op.active = active;
    op.role = role;
    return op;
}

std::vector<TileStmt> children(const TileStmt& stmt) {
    return std::visit(Overloaded{[](const TileOp&) { return std::vector<TileStmt>(); },
                                 [](const TileLoop& loop) { return std::vector{loop.body}; },
                                 [](const TileAllocate& allocate) { return std::vector{allocate.body}; },
                                 [](const TileBlock& block) { return block.stmts; }},
                      (*stmt).kind);
}

TileStmt with_children(const TileStmt& stmt, std::vector<TileStmt> kids) {
    return std::visit(Overloaded{[&](const TileOp&) { return stmt; },
                                 [&](TileLoop loop) {
                                     loop.body = std::move(kids[0]);
                                     return make_tile(std::move(loop));
                                 },
                                 [&](TileAllocate allocate) {
                                     allocate.body = std::move(kids[0]);
                                     return make_tile(std::move(allocate));
                                 },
                                 [&](const TileBlock&) { return make_tile(TileBlock{std::move(kids)}); }},
                      (*stmt).kind);
}

TileStmt map_children(const TileStmt& stmt, const std::function<TileStmt(const TileStmt&)>& rule) {
    if (stmt.as<TileOp>()) return stmt;
    std::vector<TileStmt> kids = children(stmt);
    for (TileStmt& kid : kids) kid = rule(kid);
    return with_children(stmt, std::move(kids));
}

void visit(const TileStmt& root, const std::function<void(const TileStmt&)>& see) {
    see(root);
    for (const TileStmt& kid : children(root)) visit(kid, see);
}

TileStmt replace_ops(const TileStmt& stmt, const std::function<TileStmt(const TileOp&)>& rule) {
    if (const TileOp* op = stmt.as<TileOp>()) return rule(*op);
    return map_children(stmt, [&](const TileStmt& kid) { return replace_ops(kid, rule); });
}

TileStmt map_ops(const TileStmt& stmt, const OpRule& rule) {
    return replace_ops(stmt, [&](const TileOp& op) { return make_tile(rule(op)); });
}

void visit_ops(const TileStmt& stmt, const std::function<void(const TileOp&)>& see) {
    visit(stmt, [&](const TileStmt& each) {
        if (const TileOp* op = each.as<TileOp>()) see(*op);
    });
}

TileOp map_exprs(const TileOp& op, const std::function<Expr(const Expr&)>& rule) {
    TileOp result = op;
    for (OpLoop& loop : result.loops) loop.extent = rule(loop.extent);
    for (StoreTo& store : result.stores) {
        for (Expr& index : store.indices) index = rule(index);
        store.value = rule(store.value);
    }
    std::visit(
        Overloaded{[&](AccessOp& access) {
                       for (Expr& index : access.place.indices) index = rule(index);
                   },
                   [&](CallOp& call) {
                       for (Instruction& i : call.instructions) i = map_exprs(i, rule);
                   },
                   [&](UpdateOp& update) {
                       if (update.readers_mask.defined()) update.readers_mask = rule(update.readers_mask);
                   },
                   [](OneOf<InitOp, CombineOp, MapOp, CopyOp, AsyncCopyOp, AwaitedOp, TmaCopyOp, FragmentOp> auto&) {}},
        result.action);
    result.mask = rule(op.mask);
    result.active = rule(op.active);
    if (op.otherwise.defined()) result.otherwise = rule(op.otherwise);
    if (op.iteration.defined()) result.iteration = rule(op.iteration);
    return result;
}

void visit_exprs(const TileOp& op, const std::function<void(const Expr&)>& see) {
    map_exprs(op, [&](const Expr& e) {
        see(e);
        return e;
    });
}

void visit_places(const TileOp& op, const std::function<void(const Buffer&)>& see) {
    for (const StoreTo& store : op.stores) see(store.buffer);
    if (const AccessOp* access = op.as<AccessOp>()) see(access->place.buffer);
    if (const CallOp* call = op.as<CallOp>())
        for (const Instruction& i : call->instructions)
            visit_places(i, [&](const Access& place) { see(place.buffer); });
}

TileOp map_places(const TileOp& op, const std::function<Access(const Access&)>& rule) {
    TileOp result = map_exprs(op, [&](const Expr& root) {
        return transform(root, [&](const Expr& e) -> Expr {
            const Load* load = e.as<Load>();
            if (!load) return {};
            Access place = rule({load->buffer, load->indices});
            if (place.buffer == load->buffer) return {};
            return make_expr(e.type(), Load{place.buffer, place.indices});
        });
    });
    for (StoreTo& store : result.stores) {
        Access place = rule({store.buffer, store.indices});
        store.buffer = place.buffer, store.indices = place.indices;
    }
    if (AccessOp* access = std::get_if<AccessOp>(&result.action)) access->place = rule(access->place);
    if (CallOp* call = std::get_if<CallOp>(&result.action))
        for (Instruction& i : call->instructions) i = map_places(i, rule);
    return result;
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
