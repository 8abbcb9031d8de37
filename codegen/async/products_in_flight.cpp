#include "codegen/async/products_in_flight.h"

#include <algorithm>
#include <map>
#include <set>

#include "codegen/async/async_copy.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

void append_flat(const TileStmt& stmt, std::vector<TileStmt>& flat) {
    const TileBlock* block = stmt.as<TileBlock>();
    if (!block) return flat.push_back(stmt);
    for (const TileStmt& kid : block->stmts) append_flat(kid, flat);
}

std::vector<TileStmt> flat(const std::vector<TileStmt>& stmts) {
    std::vector<TileStmt> result;
    for (const TileStmt& stmt : stmts) append_flat(stmt, result);
    return result;
}

/// What products read until they are over, and their sums.
struct ProductOperands {
    std::set<const BufferNode*> sums, read;

    void add(const TileStmt& stmt) {
        visit_ops(stmt, [&](const TileOp& op) {
            const Wgmma* product = lone_instruction<Wgmma>(op);
            if (!product) return;
            sums.insert(product->sums.place.buffer.get());
            visit_places(op, [&](const Buffer& buffer) { read.insert(buffer.get()); });
        });
    }
};

/// Instructions that touch registers and matrices in the order of products.
bool is_call(const TileStmt& stmt) {
    const TileOp* op = stmt.as<TileOp>();
    return op && op->is<CallOp>();
}

/// Whether threads of the role that computes touch the sums here, or store what products read.
bool conflicts(const TileStmt& stmt, const ProductOperands& products, const std::set<const BufferNode*>& made) {
    bool found = false;
    visit_ops(stmt, [&](const TileOp& op) {
        if (op.role > 0) return;
        for (const Buffer& buffer : loads_of(op)) found = found || products.sums.contains(buffer.get());
        for (const StoreTo& store : op.stores)
            found = found || (products.read.contains(store.buffer.get()) && !made.contains(store.buffer.get()));
        visit_places(op, [&](const Buffer& buffer) { found = found || products.sums.contains(buffer.get()); });
    });
    return found;
}

/// All but the last of the iterations of its outermost loop, if that and another one go over terms, and that last one.
struct Parts {
    TileOp first, last;
};
std::optional<Parts> parts_of(const TileOp& products) {
    if (products.loops.empty() || !products.loops[0].reduces) return {};
    if (std::ranges::count_if(products.loops, &OpLoop::reduces) < 2) return {};
    const auto extent = as_constant(products.loops[0].extent);
    if (!extent || *extent < 2) return {};
    Parts parts{products, products};
    parts.first.loops[0].extent = integer(*extent - 1);
    const Expr variable = products.loops[0].variable;
    parts.last = map_exprs(parts.last, [&](const Expr& e) {
        return simplify(substitute(e, {{variable, integer(*extent - 1)}}));
    });
    parts.last.loops.erase(parts.last.loops.begin());
    return parts;
}

}  // namespace

bool has_products(const TileStmt& stmt) {
    bool found = false;
    visit_ops(stmt, [&](const TileOp& op) { found = found || lone_instruction<Wgmma>(op); });
    return found;
}

std::optional<ProductsInFlight> keep_in_flight(const std::vector<TileStmt>& stmts, int in_flight,
                                               const std::set<const BufferNode*>& made) {
    const std::vector<TileStmt> all = flat(stmts);
    const auto wait = std::ranges::find_if(all, [](const TileStmt& stmt) {
        const TileOp* op = stmt.as<TileOp>();
        return op && lone_instruction<WgmmaWait>(*op);
    });
    if (wait == all.end()) return {};
    ProductsInFlight products{{all.begin(), wait}, {*wait}};
    ProductOperands operands;
    for (const TileStmt& stmt : products.kept) operands.add(stmt);
    for (const TileStmt& stmt : products.kept)
        if (!is_call(stmt) && conflicts(stmt, operands, made)) return {};
    TileOp some = *wait->as<TileOp>();
    some.action = CallOp{{WgmmaWait{in_flight}}};
    products.kept.push_back(make_tile(std::move(some)));
    for (auto stmt = wait + 1; stmt != all.end(); ++stmt) {
        const TileOp* op = stmt->as<TileOp>();
        if (!op || !(op->is<AccessOp>() || lone_instruction<WgmmaFenceOperand>(*op))) return {};
        if (!op->is<AccessOp>())
            products.behind.push_back(*stmt);
        else if (made.contains(op->as<AccessOp>()->place.buffer.get()))
            products.reads.push_back(*op);
        else
            products.kept.push_back(*stmt);
    }
    return products;
}

std::optional<std::vector<TileStmt>> tell_when_earlier_are_over(const std::vector<TileStmt>& stmts,
                                                                const std::vector<TileStmt>& over,
                                                                const std::set<const BufferNode*>& made) {
    std::vector<TileStmt> all = flat(stmts);
    const auto place = std::ranges::find_if(all, has_products);
    const TileLoop* loop = place == all.end() ? nullptr : place->as<TileLoop>();
    if (!loop || loop->in_flight == 0) return {};
    ProductOperands operands;
    operands.add(*place);
    for (auto stmt = all.begin(); stmt != all.end(); ++stmt)
        if (stmt != place && (has_products(*stmt) || conflicts(*stmt, operands, made))) return {};
    const Expr first = simplify(loop->variable == integer(loop->in_flight - 1));
    TileLoop result = *loop;
    result.body = replace_ops(loop->body, [&](const TileOp& op) {
        if (!lone_instruction<WgmmaWait>(op)) return make_tile(TileOp(op));
        TileBlock block{{make_tile(TileOp(op))}};
        for (const TileStmt& stmt : over)
            block.stmts.push_back(map_ops(stmt, [&](TileOp told) {
                told.active = simplify(all_of({first, told.active}));
                return told;
            }));
        return make_tile(std::move(block));
    });
    *place = make_tile(std::move(result));
    return all;
}

std::vector<TileOp> last_reads(const std::vector<TileStmt>& stmts, const std::set<const BufferNode*>& made) {
    const std::vector<TileStmt> all = flat(stmts);
    const auto place = std::ranges::find_if(all, has_products);
    const TileLoop* loop = place == all.end() ? nullptr : place->as<TileLoop>();
    std::vector<TileOp> found;
    for (int last = loop ? loop->in_flight : 0; last > 0; --last)
        visit_ops(*place, [&](const TileOp& op) {
            const AccessOp* access = op.as<AccessOp>();
            if (!access || access->writes || !made.contains(access->place.buffer.get())) return;
            const Expr iteration = cast_unchecked(Type::I64, loop->extent) - last;
            found.push_back(map_exprs(op, [&](const Expr& e) {
                return simplify(substitute(e, {{loop->variable, iteration}}));
            }));
        });
    return found;
}

std::vector<Buffer> made_for_products(const TileKernel& kernel, const TileLoop& loop) {
    std::map<const BufferNode*, int> inside, everywhere;
    const auto count = [](const TileStmt& stmt, std::map<const BufferNode*, int>& touched) {
        visit_ops(stmt, [&](const TileOp& op) {
            visit_places(op, [&](const Buffer& buffer) { ++touched[buffer.get()]; });
            for (const Buffer& buffer : loads_of(op)) ++touched[buffer.get()];
        });
    };
    count(kernel.body, everywhere);
    visit(kernel.body, [&](const TileStmt& stmt) {
        const TileLoop* own = stmt.as<TileLoop>();
        if (own && own->variable.same(loop.variable)) count(stmt, inside);
    });
    std::vector<Buffer> made;
    std::set<const BufferNode*> others;  // read before they are made, updated, or filled by another role
    ProductOperands operands;
    operands.add(loop.body);
    const auto is_made = [&](const Buffer& buffer) { return std::ranges::find(made, buffer) != made.end(); };
    visit_ops(loop.body, [&](const TileOp& op) {
        for (const Buffer& buffer : loads_of(op)) others.insert(buffer.get());
        visit_places(op, [&](const Buffer& buffer) {
            const bool stores = op.is<MapOp>() && op.role == 0;
            if (!stores && (!op.stores.empty() || !is_made(buffer))) others.insert(buffer.get());
            if (buffer->memory != Memory::Shared || !operands.read.contains(buffer.get()) || is_made(buffer)) return;
            if (inside[buffer.get()] == everywhere[buffer.get()]) made.push_back(buffer);
        });
    });
    std::erase_if(made, [&](const Buffer& buffer) { return others.contains(buffer.get()); });
    return made;
}

std::optional<std::vector<TileStmt>> tell_before_last_products(const std::vector<TileStmt>& stmts,
                                                               const TileStmt& done) {
    std::vector<TileStmt> all = flat(stmts);
    const auto last = std::find_if(all.rbegin(), all.rend(), has_products);
    if (last == all.rend()) return {};
    const auto place = last.base() - 1;
    const TileOp* op = place->as<TileOp>();
    const auto parts = op ? parts_of(*op) : std::nullopt;
    if (!parts) {
        all.insert(place, done);
        return all;
    }
    *place = make_tile(TileOp(parts->last));
    all.insert(all.insert(place, done), make_tile(TileOp(parts->first)));
    return all;
}

}  // namespace tw::codegen
