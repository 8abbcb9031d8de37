#include <algorithm>
#include <map>
#include <vector>

#include "codegen/tile_passes/tile_passes.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

constexpr size_t accumulate = 3;  // the argument of a warpgroup's matrix instruction that has it add to its sums

bool starts_with_zeros(const TileOp& op) {
    if (op.kind != TileOp::Kind::Init || op.stores.size() != 1 || !is_constant(op.mask, 1)) return false;
    const FloatConstant* real = op.stores[0].value.as<FloatConstant>();
    return real ? real->value == 0 : is_constant(op.stores[0].value, 0);
}

/// How many ops write a buffer by stores or as an argument of a matrix instruction.
std::map<const BufferNode*, int> count_writers(const TileStmt& body) {
    std::map<const BufferNode*, int> writers;
    visit_ops(body, [&](const TileOp& op) {
        for (const StoreTo& store : op.stores) ++writers[store.buffer.get()];
        if (op.atom) ++writers[op.call.arguments[0].place.buffer.get()];
    });
    return writers;
}

/// A matrix instruction below some loops over the terms of its sums.
struct Found {
    std::vector<Expr> terms;  ///< variables of these loops
    bool certain = true;      ///< each runs at least once, and no other loop stands between
    TileOp forget = {};       ///< the sums' registers, by the instruction's other loops
};

void find(const TileStmt& stmt, const Buffer& sums, Found loops, std::vector<Found>& found) {
    auto enter = [&loops](const Expr& variable, const Expr& extent) {
        loops.terms.push_back(variable);
        loops.certain = loops.certain && prove(simplify(extent >= 1)) == true;
    };
    if (const TileLoop* loop = stmt.as<TileLoop>()) {
        if (!loop->reduces) loops.certain = false;
        enter(loop->variable, loop->extent);
        return find(loop->body, sums, loops, found);
    }
    if (const TileAllocate* allocate = stmt.as<TileAllocate>()) return find(allocate->body, sums, loops, found);
    if (const TileBlock* block = stmt.as<TileBlock>()) {
        for (const TileStmt& kid : block->stmts) find(kid, sums, loops, found);
        return;
    }
    const TileOp& op = *stmt.as<TileOp>();
    if (!op.atom || op.call.arguments[0].place.buffer != sums || !is_constant(op.active, 1)) return;
    for (const OpLoop& loop : op.loops)
        if (loop.reduces) enter(loop.variable, loop.extent);
    loops.forget = op;
    loops.forget.atom = nullptr;
    loops.forget.call = {"forget", {}, {op.call.arguments[0]}};
    std::erase_if(loops.forget.loops, [](const OpLoop& loop) { return loop.reduces; });
    found.push_back(loops);
}

class Starter {
public:
    explicit Starter(const TileKernel& kernel)
        : writers_(count_writers(kernel.body)), waits_for_turn_(turns_of(kernel) > 1) {}

    TileStmt rewrite(const TileStmt& stmt) const {
        if (const TileLoop* loop = stmt.as<TileLoop>()) {
            TileLoop copy = *loop;
            copy.body = rewrite(loop->body);
            return make_tile(std::move(copy));
        }
        if (const TileAllocate* allocate = stmt.as<TileAllocate>())
            return make_tile(TileAllocate{allocate->buffer, rewrite(allocate->body), allocate->around});
        const TileBlock* block = stmt.as<TileBlock>();
        if (!block) return stmt;
        TileBlock result;
        for (const TileStmt& kid : block->stmts) result.stmts.push_back(rewrite(kid));
        for (size_t start = 0; start < result.stmts.size(); ++start)
            if (const TileOp* op = result.stmts[start].as<TileOp>(); op && starts_with_zeros(*op))
                change(result.stmts, start, op->stores[0].buffer);
        return make_tile(std::move(result));
    }

private:
    /// Instead of zeros the registers hold anything, if the only matrix instruction on these sums stands behind them
    /// and runs in any case. A group that waits for its turn has the time to set zeros, and needs no registers for what
    /// it has forgotten while it stores its last results.
    void change(std::vector<TileStmt>& stmts, size_t start, const Buffer& sums) const {
        if (writers_.at(sums.get()) != 2) return;
        std::vector<Found> found;
        for (size_t later = start + 1; later < stmts.size(); ++later) find(stmts[later], sums, {}, found);
        if (found.size() != 1 || !found[0].certain || found[0].terms.empty()) return;
        TileOp forget = found[0].forget;
        if (waits_for_turn_) {
            forget.call.primitive = "keep";
            stmts.insert(stmts.begin() + static_cast<std::ptrdiff_t>(start) + 1, make_tile(std::move(forget)));
            return;
        }
        Expr later_term = found[0].terms[0] > 0;
        for (size_t t = 1; t < found[0].terms.size(); ++t) later_term = later_term || found[0].terms[t] > 0;
        for (size_t later = start + 1; later < stmts.size(); ++later)
            stmts[later] = map_ops(stmts[later], [&](const TileOp& op) {
                TileOp result = op;
                if (op.atom && op.call.arguments[0].place.buffer == sums)
                    result.call.arguments[accumulate].value = later_term;
                return result;
            });
        stmts[start] = make_tile(std::move(forget));
    }

    std::map<const BufferNode*, int> writers_;
    bool waits_for_turn_;
};

}  // namespace

TileKernel start_sums(const TileKernel& kernel) {
    TileKernel result = kernel;
    result.body = Starter(kernel).rewrite(kernel.body);
    return result;
}

}  // namespace tw::codegen
