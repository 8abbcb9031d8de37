// Matrix products of warpgroups run on while threads do what does not need them.
#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include "codegen/async/async_passes.h"

namespace tw::codegen {
namespace {

using Buffers = std::set<const BufferNode*>;

/// A committed group of instructions, and what awaits it: the wait, fences of its sums, and reads that are over then.
struct Group {
    Buffers sums;      ///< in registers, written until the wait
    Buffers operands;  ///< in registers or shared memory, read until the wait
    int commit = 0;    ///< its number among those of the list
    std::vector<TileStmt> awaiting;
};

bool has_products(const TileStmt& stmt) {
    bool found = false;
    visit_ops(stmt, [&](const TileOp& op) { found = found || lone_instruction<Wgmma>(op); });
    return found;
}

bool is_behind_wait(const TileStmt& stmt) {
    const TileOp* op = stmt.as<TileOp>();
    return op && (op->is<AccessOp>() || lone_instruction<WgmmaFenceOperand>(*op));
}

/// The statements of one list, in blocks or not; the registers of products live around all of it.
void flatten(const TileStmt& stmt, std::vector<TileStmt>& list, std::vector<TileAllocate>& registers) {
    if (const TileBlock* block = stmt.as<TileBlock>()) {
        for (const TileStmt& kid : block->stmts) flatten(kid, list, registers);
        return;
    }
    const TileAllocate* allocate = stmt.as<TileAllocate>();
    if (!allocate || !has_products(allocate->body)) return list.push_back(stmt);
    registers.push_back(*allocate);
    flatten(allocate->body, list, registers);
}

class Deferrer {
public:
    /// Nothing if all waits stay where they are.
    std::optional<std::vector<TileStmt>> run(const std::vector<TileStmt>& list) {
        for (size_t n = 0; n < list.size(); ++n) {
            const TileOp* op = list[n].as<TileOp>();
            if (op && lone_instruction<WgmmaWait>(*op)) {
                size_t behind = n + 1;
                while (behind < list.size() && is_behind_wait(list[behind])) ++behind;
                last_.awaiting.assign(list.begin() + static_cast<std::ptrdiff_t>(n),
                                      list.begin() + static_cast<std::ptrdiff_t>(behind));
                pending_.push_back(std::exchange(last_, {}));
                n = behind - 1;
                continue;
            }
            await_for(list[n]);
            if (op && lone_instruction<Wgmma>(*op)) add_product(*lone_instruction<Wgmma>(*op));
            if (op && lone_instruction<WgmmaCommit>(*op)) last_.commit = ++commits_;
            moved_ = moved_ || !pending_.empty();
            result_.push_back(list[n]);
        }
        await(pending_.size());
        return moved_ ? std::optional(result_) : std::nullopt;
    }

private:
    void add_product(const Wgmma& product) {
        last_.sums.insert(product.sums.place.buffer.get());
        if (const auto* rows = std::get_if<ReadOperand>(&product.a)) last_.operands.insert(rows->place.buffer.get());
        if (const auto* rows = std::get_if<MatrixOperand>(&product.a)) last_.operands.insert(rows->place.buffer.get());
        last_.operands.insert(product.b.place.buffer.get());
    }

    /// What other roles do is ordered by barriers.
    static bool needs(const TileStmt& stmt, const Group& group) {
        bool found = false;
        visit_ops(stmt, [&](const TileOp& op) {
            if (op.role > 0) return;
            for (const Buffer& buffer : loads_of(op)) found = found || group.sums.count(buffer.get());
            for (const StoreTo& store : op.stores) found = found || group.operands.count(store.buffer.get());
            visit_places(op, [&](const Buffer& buffer) {
                const bool packs = lone_instruction<PackRegisters>(op) && group.operands.count(buffer.get());
                found = found || packs || group.sums.count(buffer.get());
            });
        });
        return found;
    }

    void await_for(const TileStmt& stmt) {
        const bool nested = !stmt.as<TileOp>() && has_products(stmt);
        for (size_t g = pending_.size(); g-- > 0;)
            if (nested || needs(stmt, pending_[g])) return await(g + 1);
    }

    /// The first so many, which end in order.
    void await(size_t count) {
        for (size_t g = 0; g < count; ++g) {
            TileOp wait = *pending_[g].awaiting[0].as<TileOp>();
            wait.action = CallOp{{WgmmaWait{commits_ - pending_[g].commit}}};
            result_.push_back(make_tile(std::move(wait)));
            result_.insert(result_.end(), pending_[g].awaiting.begin() + 1, pending_[g].awaiting.end());
        }
        pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(count));
    }

    std::vector<TileStmt> result_;
    std::vector<Group> pending_;
    Group last_;
    int commits_ = 0;
    bool moved_ = false;
};

/// The body of a loop, or all.
TileStmt deferred(const TileStmt& stmt);

TileStmt deferred_in_loops(const TileStmt& stmt) {
    if (const TileLoop* loop = stmt.as<TileLoop>()) {
        TileLoop result = *loop;
        result.body = deferred(loop->body);
        return make_tile(std::move(result));
    }
    return map_children(stmt, deferred_in_loops);
}

TileStmt deferred(const TileStmt& stmt) {
    TileStmt inside = deferred_in_loops(stmt);
    std::vector<TileStmt> list;
    std::vector<TileAllocate> registers;
    flatten(inside, list, registers);
    auto result = Deferrer().run(list);
    if (!result) return inside;
    TileStmt body = make_tile(TileBlock{*result});
    for (auto allocate = registers.rbegin(); allocate != registers.rend(); ++allocate)
        body = make_tile(TileAllocate{allocate->buffer, body, allocate->around});
    return body;
}

}  // namespace

TileKernel defer_waits(const TileKernel& kernel) {
    TileKernel result = kernel;
    result.body = deferred(kernel.body);
    return result;
}

}  // namespace tw::codegen
