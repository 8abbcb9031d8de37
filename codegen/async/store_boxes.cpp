#include <set>

#include "codegen/async/async_passes.h"
#include "codegen/async/choose_tma.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

const BufferNode* tile_of(const TileOp& op) {
    bool leaves = op.is<TmaCopyOp>() && stores_to(op, Memory::Global);
    return leaves ? loads_of(op)[0].get() : nullptr;
}

bool has_copy_of(const TileStmt& stmt, const BufferNode* tile) {
    bool found = false;
    visit_ops(stmt, [&](const TileOp& op) { found = found || tile_of(op) == tile; });
    return found;
}

bool writes(const TileStmt& stmt, const BufferNode* tile) {
    bool found = false;
    visit_ops(stmt, [&](const TileOp& op) {
        for (const StoreTo& store : op.stores) found = found || store.buffer.get() == tile;
    });
    return found;
}

class BoxStorer {
public:
    explicit BoxStorer(const TileKernel& kernel) : result_(kernel) {
        visit_ops(kernel.body, [&](const TileOp& op) {
            if (tile_of(op)) copies_.push_back(op);
        });
    }

    TileKernel run() {
        if (copies_.empty()) return std::move(result_);
        for (const TileOp& copy : copies_) result_.body = guarded(result_.body, copy, false);
        result_.body = replace_ops(result_.body, [&](const TileOp& op) {
            if (!tile_of(op)) return make_tile(TileOp(op));
            return make_tile(TileBlock{{make_tile(read(op)), make_tile(asking(op))}});
        });
        result_.body = make_tile(TileBlock{{result_.body, make_tile(wait(copies_[0]))}});
        return std::move(result_);
    }

private:
    /// By one thread, the same each time.
    TileOp asking(const TileOp& copy) const {
        std::vector<Instruction> stores = tma_departure(result_, copy).instructions;
        stores.emplace_back(TmaStoreCommit{});
        return call(copy, std::move(stores));
    }
    TileOp wait(const TileOp& copy) const { return call(copy, {TmaStoreWaitRead{}}); }
    TileOp read(const TileOp& copy) const {
        TileOp op = tma_departure(result_, copy).access;
        op.active = one_thread();
        return op;
    }
    TileOp call(const TileOp& copy, std::vector<Instruction> instructions) const {
        TileOp op = call_op(std::move(instructions), one_thread());
        op.name = copy.name;
        op.step = copy.step;
        return op;
    }
    Expr one_thread() const { return simplify(result_.thread == 0); }

    /// Where a loop fills the tile again, it waits until the boxes before have left.
    TileStmt guarded(const TileStmt& stmt, const TileOp& copy, bool again) const {
        if (!has_copy_of(stmt, tile_of(copy)) || stmt.as<TileOp>()) return stmt;
        if (stmt.as<TileLoop>() || stmt.as<TileAllocate>())
            return map_children(stmt,
                                [&](const TileStmt& kid) { return guarded(kid, copy, again || stmt.as<TileLoop>()); });
        TileBlock block;
        bool waited = !again;
        for (const TileStmt& kid : stmt.as<TileBlock>()->stmts) {
            bool copied = has_copy_of(kid, tile_of(copy));
            if (writes(kid, tile_of(copy)) && !copied && !waited) {
                block.stmts.push_back(before_fill(kid, copy));
                waited = true;
                continue;
            }
            block.stmts.push_back(guarded(kid, copy, again && !waited));
            waited = waited || copied;
        }
        return make_tile(std::move(block));
    }

    /// As late as possible: behind what only computes.
    TileStmt before_fill(const TileStmt& stmt, const TileOp& copy) const {
        if (stmt.as<TileAllocate>())
            return map_children(stmt, [&](const TileStmt& kid) { return before_fill(kid, copy); });
        TileBlock result;
        const TileBlock* block = stmt.as<TileBlock>();
        bool waited = false;
        for (const TileStmt& kid : block ? block->stmts : std::vector<TileStmt>{stmt}) {
            bool fills = !waited && writes(kid, tile_of(copy));
            bool deeper = fills && (kid.as<TileAllocate>() || kid.as<TileBlock>());
            if (fills && !deeper)
                result.stmts.insert(result.stmts.end(), {make_tile(wait(copy)), make_tile(read(copy))});
            result.stmts.push_back(deeper ? before_fill(kid, copy) : kid);
            waited = waited || fills;
        }
        return make_tile(std::move(result));
    }

    TileKernel result_;
    std::vector<TileOp> copies_;
};

}  // namespace

TileKernel store_boxes(const TileKernel& kernel) { return BoxStorer(kernel).run(); }

}  // namespace tw::codegen
