#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "codegen/tile_passes/tile_passes.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

bool starts_with_zeros(const TileOp& op) {
    if (!op.is<InitOp>() || op.stores.size() != 1 || !is_constant(op.mask, 1)) return false;
    const FloatConstant* real = op.stores[0].value.as<FloatConstant>();
    return real ? real->value == 0 : is_constant(op.stores[0].value, 0);
}

/// How many ops write a buffer.
struct Writers {
    int stores = 0, products = 0;  ///< as an argument of a matrix instruction
};

std::map<const BufferNode*, Writers> count_writers(const TileStmt& body) {
    std::map<const BufferNode*, Writers> writers;
    visit_ops(body, [&](const TileOp& op) {
        for (const StoreTo& store : op.stores) ++writers[store.buffer.get()].stores;
        if (auto product = lone_instruction<Wgmma>(op)) ++writers[product->sums.place.buffer.get()].products;
    });
    return writers;
}

/// A matrix instruction below some loops over the terms of its sums.
struct Found {
    std::vector<Expr> terms;          ///< variables of these loops
    bool certain = true;              ///< each runs at least once, and no other loop stands between
    WriteOperand registers = {};      ///< of the sums
    TileOp each = {};                 ///< an op with the instruction's other loops
    const TileNode* block = nullptr;  ///< in which it stands, beside other products of a group
};

void find(const TileStmt& stmt, const Buffer& sums, Found loops, std::vector<Found>& found) {
    auto enter = [&loops](const Expr& variable, const Expr& extent) {
        loops.terms.push_back(variable);
        loops.certain = loops.certain && prove(simplify(extent >= 1)) == true;
    };
    if (const TileLoop* loop = stmt.as<TileLoop>()) {
        if (!loop->reduces) loops.certain = false;
        enter(loop->variable, loop->extent);
    }
    if (stmt.as<TileBlock>()) loops.block = &*stmt;
    for (const TileStmt& kid : children(stmt)) find(kid, sums, loops, found);
    const TileOp* op = stmt.as<TileOp>();
    const Wgmma* product = op ? lone_instruction<Wgmma>(*op) : nullptr;
    if (!product || product->sums.place.buffer != sums || !is_constant(op->active, 1)) return;
    for (const OpLoop& loop : op->loops)
        if (loop.reduces) enter(loop.variable, loop.extent);
    loops.registers = product->sums;
    loops.each = *op;
    std::erase_if(loops.each.loops, [](const OpLoop& loop) { return loop.reduces; });
    found.push_back(loops);
}

class Starter {
public:
    explicit Starter(const TileKernel& kernel)
        : writers_(count_writers(kernel.body)), waits_for_turn_(turns_of(kernel) > 1) {}

    TileStmt rewrite(const TileStmt& stmt) const {
        TileStmt rewritten = map_children(stmt, [&](const TileStmt& kid) { return rewrite(kid); });
        const TileBlock* block = rewritten.as<TileBlock>();
        if (!block) return rewritten;
        TileBlock result = *block;
        for (size_t start = 0; start < result.stmts.size(); ++start)
            if (const TileOp* op = result.stmts[start].as<TileOp>(); op && starts_with_zeros(*op))
                change(result.stmts, start, op->stores[0].buffer);
        return make_tile(std::move(result));
    }

private:
    /// Instead of zeros the registers hold anything, if the only matrix instruction on these sums stands behind them,
    /// or the first of the only group, and runs in any case. A group of warps that waits for its turn has the time to
    /// set zeros, and needs no registers for what it has forgotten while it stores its last results. Zeros that are
    /// corrected before they are summed to stay in their registers, too: what the compiler knows of them, it would
    /// compute early, for all of them, beside what comes before the first product.
    void change(std::vector<TileStmt>& stmts, size_t start, const Buffer& sums) const {
        const Writers& writers = writers_.at(sums.get());
        std::vector<Found> found;
        for (size_t later = start + 1; later < stmts.size(); ++later) find(stmts[later], sums, {}, found);
        const bool corrected = writers.stores > 1 && !found.empty();
        const bool together = found.size() == 1 || std::ranges::all_of(found, [&](const Found& each) {
                                  return each.block && each.block == found[0].block;
                              });
        const bool elided = writers.stores == 1 && !found.empty() && together &&
                            writers.products == static_cast<int>(found.size()) && found[0].certain &&
                            !found[0].terms.empty();
        if (!corrected && !elided) return;
        TileOp op = found[0].each;
        if (corrected || waits_for_turn_) {
            op.action = CallOp{{WgmmaFenceOperand{found[0].registers}}};
            stmts.insert(stmts.begin() + static_cast<std::ptrdiff_t>(start) + 1, make_tile(std::move(op)));
            return;
        }
        op.action = CallOp{{LeaveUndefined{found[0].registers}}};
        Expr later_term = found[0].terms[0] > 0;
        for (size_t t = 1; t < found[0].terms.size(); ++t) later_term = later_term || found[0].terms[t] > 0;
        bool is_first = true;
        for (size_t later = start + 1; later < stmts.size(); ++later)
            stmts[later] = map_ops(stmts[later], [&](TileOp other) {
                auto product = lone_instruction<Wgmma>(other);
                if (product && product->sums.place.buffer == sums && std::exchange(is_first, false)) {
                    Wgmma starting = *product;
                    starting.accumulates = later_term;
                    other.action = CallOp{{std::move(starting)}};
                }
                return other;
            });
        stmts[start] = make_tile(std::move(op));
    }

    std::map<const BufferNode*, Writers> writers_;
    bool waits_for_turn_;
};

}  // namespace

TileKernel elide_zero_init(const TileKernel& kernel) {
    TileKernel result = kernel;
    result.body = Starter(kernel).rewrite(kernel.body);
    return result;
}

}  // namespace tw::codegen
