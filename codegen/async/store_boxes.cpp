#include <set>

#include "codegen/async/async_passes.h"
#include "codegen/async/tma_copy.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

const BufferNode* tile_of(const TileOp& op) {
    bool leaves = op.kind == TileOp::Kind::TmaCopy && stores_to(op, Memory::Global);
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
            return make_tile(TileBlock{{make_tile(mark(op)), make_tile(asking(op))}});
        });
        result_.body = make_tile(TileBlock{{result_.body, make_tile(wait(copies_[0]))}});
        return std::move(result_);
    }

private:
    /// One thread's, the same one's each time.
    TileOp asking(const TileOp& copy) const {
        TileOp op = call(copy, "");
        op.then = tma_departure(result_, copy).calls;
        op.then.push_back({"commit_stores", {}, {}});
        op.call = op.then[0];
        op.then.erase(op.then.begin());
        return op;
    }
    TileOp wait(const TileOp& copy) const {
        TileOp op = call(copy, "wait_stores_read");
        op.call.parameters = {0};
        return op;
    }
    TileOp mark(const TileOp& copy) const {
        TileOp op = tma_departure(result_, copy).mark;
        op.active = one_thread();
        return op;
    }
    TileOp call(const TileOp& copy, const std::string& primitive) const {
        TileOp op;
        op.kind = TileOp::Kind::Call;
        op.name = copy.name;
        op.step = copy.step;
        op.mask = all_of({});
        op.active = one_thread();
        op.call.primitive = primitive;
        return op;
    }
    Expr one_thread() const { return simplify(result_.thread == 0); }

    /// Where a loop fills the tile again, it waits until the boxes before have left.
    TileStmt guarded(const TileStmt& stmt, const TileOp& copy, bool again) const {
        if (!has_copy_of(stmt, tile_of(copy)) || stmt.as<TileOp>()) return stmt;
        if (const TileLoop* loop = stmt.as<TileLoop>()) {
            TileLoop around = *loop;
            around.body = guarded(loop->body, copy, true);
            return make_tile(std::move(around));
        }
        if (const TileAllocate* allocate = stmt.as<TileAllocate>())
            return make_tile(TileAllocate{allocate->buffer, guarded(allocate->body, copy, again), allocate->around});
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
        if (const TileAllocate* allocate = stmt.as<TileAllocate>())
            return make_tile(TileAllocate{allocate->buffer, before_fill(allocate->body, copy), allocate->around});
        TileBlock result;
        const TileBlock* block = stmt.as<TileBlock>();
        bool waited = false;
        for (const TileStmt& kid : block ? block->stmts : std::vector<TileStmt>{stmt}) {
            bool fills = !waited && writes(kid, tile_of(copy));
            bool deeper = fills && (kid.as<TileAllocate>() || kid.as<TileBlock>());
            if (fills && !deeper)
                result.stmts.insert(result.stmts.end(), {make_tile(wait(copy)), make_tile(mark(copy))});
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
