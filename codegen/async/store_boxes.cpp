#include <map>
#include <set>

#include <fmt/format.h>

#include "codegen/async/async_passes.h"
#include "codegen/async/choose_tma.h"
#include "codegen/async/shared_lives.h"
#include "codegen/async/staged_buffers.h"
#include "dsl/simplify.h"
#include "support/error.h"

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
    BoxStorer(const TileKernel& kernel, const CiteStep& cite) : result_(kernel), cite_(cite) {
        result_.body = in_turn(result_.body);
        visit_ops(result_.body, [&](const TileOp& op) {
            if (tile_of(op)) copies_.push_back(op);
        });
    }

    TileKernel run() {
        if (copies_.empty()) return std::move(result_);
        std::set<const BufferNode*> tiles;
        for (const TileOp& copy : copies_)
            if (tiles.insert(tile_of(copy)).second) result_.body = guarded(result_.body, copy, false);
        result_.body = replace_ops(result_.body, [&](const TileOp& op) {
            if (!tile_of(op)) return make_tile(TileOp(op));
            return make_tile(TileBlock{{make_tile(read(op)), make_tile(asking(op))}});
        });
        result_.body = make_tile(TileBlock{{result_.body, make_tile(wait(copies_[0], 0))}});
        return std::move(result_);
    }

private:
    /// A tile that a pipelined loop fills has a buffer for each stage: while one fills, the boxes of others leave.
    TileStmt in_turn(const TileStmt& stmt) {
        const TileLoop* loop = stmt.as<TileLoop>();
        if (!loop || loop->stages == 1) return map_children(stmt, [&](const TileStmt& kid) { return in_turn(kid); });
        StagedBuffers staged;
        visit_ops(loop->body, [&](const TileOp& op) {
            const BufferNode* tile = tile_of(op);
            if (!tile || staged.contains(tile)) return;
            check_rounds(*loop, tile->name);
            staged[tile] = repeated(result_, loads_of(op)[0], loop->stages);
            in_flight_[staged[tile].get()] = loop->stages - 1;
            result_.notes.push_back(
                fmt::format("{}: {} stages, boxes of one leave while the next fills", tile->name, loop->stages));
        });
        TileLoop result = *loop;
        result.stages = 1;
        const Expr stage = simplify(loop->variable % integer(loop->stages));
        result.body =
            map_ops(in_turn(loop->body), [&](const TileOp& op) { return in_stage(op, staged, always(stage)); });
        return make_tile(std::move(result));
    }

    /// Else its last iterations and its first ones, when it runs again, would take the same buffers.
    void check_rounds(const TileLoop& loop, const std::string& tile) const {
        const std::optional<int64_t> iterations = as_constant(loop.extent);
        if (iterations && *iterations % loop.stages == 0) return;
        throw_error(Error,
                    "{}{}: pipeline({}, {{.stages = {}}}): '{}' leaves as boxes, each iteration from the next of {} "
                    "buffers, so the loop needs a multiple of {} iterations; choose other stages, or split it so",
                    cite_(loop.pipeline_step), result_.name, loop.variable.as<Variable>()->name, loop.stages, tile,
                    loop.stages, loop.stages);
    }

    /// By one thread, the same each time.
    TileOp asking(const TileOp& copy) const {
        std::vector<Instruction> stores = tma_departure(result_, copy).instructions;
        stores.emplace_back(TmaStoreCommit{});
        return call(copy, std::move(stores));
    }
    TileOp wait(const TileOp& copy, int64_t in_flight) const { return call(copy, {TmaStoreWaitRead{in_flight}}); }
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
    /// Boxes that leave other buffers than the next one.
    int64_t in_flight(const TileOp& copy) const {
        auto found = in_flight_.find(tile_of(copy));
        return found == in_flight_.end() ? 0 : found->second;
    }
    Expr one_thread() const { return simplify(result_.thread == 0); }

    /// What fills the tile where boxes of it may be `leaving`, since a copy stands before, or in a loop around, waits
    /// until they have left.
    TileStmt guarded(const TileStmt& stmt, const TileOp& copy, bool leaving) const {
        if (!has_copy_of(stmt, tile_of(copy)) || stmt.as<TileOp>()) return stmt;
        if (const TileLoop* loop = stmt.as<TileLoop>(); loop || stmt.as<TileAllocate>()) {
            const bool inside = leaving || (loop && repeats(*loop));
            return map_children(stmt, [&](const TileStmt& kid) { return guarded(kid, copy, inside); });
        }
        TileBlock block;
        for (const TileStmt& kid : stmt.as<TileBlock>()->stmts) {
            const bool copied = has_copy_of(kid, tile_of(copy));
            const bool waits = leaving && !copied && writes(kid, tile_of(copy));
            block.stmts.push_back(waits ? before_fill(kid, copy) : guarded(kid, copy, leaving));
            leaving = (leaving && !waits) || copied;
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
                result.stmts.insert(result.stmts.end(),
                                    {make_tile(wait(copy, in_flight(copy))), make_tile(read(copy))});
            result.stmts.push_back(deeper ? before_fill(kid, copy) : kid);
            waited = waited || fills;
        }
        return make_tile(std::move(result));
    }

    TileKernel result_;
    const CiteStep& cite_;
    std::map<const BufferNode*, int64_t> in_flight_;
    std::vector<TileOp> copies_;
};

}  // namespace

TileKernel store_boxes(const TileKernel& kernel, const CiteStep& cite) { return BoxStorer(kernel, cite).run(); }

}  // namespace tw::codegen
