// Matrix products of warpgroups run on while threads do what does not need them.
#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include "codegen/async/async_passes.h"
#include "codegen/async/products_in_flight.h"

namespace tw::codegen {
namespace {

using Buffers = std::set<const BufferNode*>;

/// A committed group of instructions, and what awaits it: the wait, fences of its sums, and reads that are over then.
struct Group {
    Buffers sums;      ///< in registers, written until the wait
    Buffers operands;  ///< in registers or shared memory, read until the wait
    int commit = 0;    ///< its number among those of the list
    int matrices = 0;  ///< operands in shared memory, of all of its products
    std::vector<TileStmt> awaiting;
};

bool is_read(const TileStmt& stmt) {
    const TileOp* op = stmt.as<TileOp>();
    return op && op->is<AccessOp>();
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

/// What statements of the computing role read and write; what other roles do is ordered by barriers.
struct Uses {
    Buffers loads, stores;

    void add(const TileStmt& stmt) {
        visit_ops(stmt, [&](const TileOp& op) {
            if (op.role > 0) return;
            for (const Buffer& buffer : loads_of(op)) loads.insert(buffer.get());
            for (const StoreTo& store : op.stores) stores.insert(store.buffer.get());
            const Wgmma* product = lone_instruction<Wgmma>(op);
            visit_places(op, [&](const Buffer& buffer) {
                loads.insert(buffer.get());
                const bool only_reads = op.is<AccessOp>() && !op.as<AccessOp>()->writes;
                const bool operand = product && buffer != product->sums.place.buffer;
                if (!only_reads && !operand) stores.insert(buffer.get());
            });
        });
    }

    bool conflicts(const Uses& other) const {
        auto meet = [](const Buffers& some, const Buffers& others) {
            return std::ranges::any_of(some, [&](const BufferNode* buffer) { return others.count(buffer) > 0; });
        };
        return meet(stores, other.loads) || meet(loads, other.stores) || meet(stores, other.stores);
    }
};
Uses uses_of(const TileStmt& stmt) {
    Uses uses;
    uses.add(stmt);
    return uses;
}

bool is_product(const TileStmt& stmt) {
    const TileOp* op = stmt.as<TileOp>();
    return op && lone_instruction<Wgmma>(*op);
}
bool is_commit(const TileStmt& stmt) {
    const TileOp* op = stmt.as<TileOp>();
    return op && lone_instruction<WgmmaCommit>(*op);
}
bool is_wait(const TileStmt& stmt) {
    const TileOp* op = stmt.as<TileOp>();
    return op && lone_instruction<WgmmaWait>(*op);
}

class Deferrer {
public:
    explicit Deferrer(std::vector<TileStmt> list) : list_(std::move(list)) {}

    /// Nothing if all waits stay where they are.
    std::optional<std::vector<TileStmt>> run() {
        for (size_t n = 0; n < list_.size(); ++n) {
            if (is_wait(list_[n])) {
                const size_t behind = end_of_wait(n);
                last_.awaiting.assign(at(n), at(behind));
                pending_.push_back(std::exchange(last_, {}));
                n = behind - 1;
                continue;
            }
            if (size_t count = number_needed(list_[n])) {
                if (put_behind_next_product(n)) {
                    --n;  // what stands there now
                    continue;
                }
                await(count);
            }
            if (is_product(list_[n])) add_product(*lone_instruction<Wgmma>(*list_[n].as<TileOp>()));
            if (is_commit(list_[n])) last_.commit = ++commits_;
            moved_ = moved_ || !pending_.empty();
            result_.push_back(list_[n]);
        }
        await(pending_.size());
        return moved_ ? std::optional(result_) : std::nullopt;
    }

private:
    std::vector<TileStmt>::iterator at(size_t n) { return list_.begin() + static_cast<std::ptrdiff_t>(n); }

    /// Behind the wait: a fence of its group's sums, and a read of each matrix. What follows belongs to others.
    size_t end_of_wait(size_t n) const {
        size_t behind = n + 1;
        const TileOp* fence = behind < list_.size() ? list_[behind].as<TileOp>() : nullptr;
        if (fence && lone_instruction<WgmmaFenceOperand>(*fence)) ++behind;
        for (int read = 0; read < last_.matrices && behind < list_.size() && is_read(list_[behind]); ++read) ++behind;
        return behind;
    }

    void add_product(const Wgmma& product) {
        last_.matrices += static_cast<int>(product.matrices().size());
        last_.sums.insert(product.sums.place.buffer.get());
        if (const auto* rows = std::get_if<ReadOperand>(&product.a)) last_.operands.insert(rows->place.buffer.get());
        if (const auto* rows = std::get_if<MatrixOperand>(&product.a)) last_.operands.insert(rows->place.buffer.get());
        last_.operands.insert(product.b.place.buffer.get());
    }

    static bool needs(const TileStmt& stmt, const Group& group) {
        const Uses uses = uses_of(stmt);
        auto among = [](const Buffers& some, const Buffers& others) {
            return std::ranges::any_of(some, [&](const BufferNode* buffer) { return others.count(buffer) > 0; });
        };
        return among(group.sums, uses.loads) || among(group.sums, uses.stores) || among(group.operands, uses.stores);
    }

    /// How many of the pending groups must end in front of the statement.
    size_t number_needed(const TileStmt& stmt) const {
        const bool nested = !stmt.as<TileOp>() && has_products(stmt);
        size_t count = pending_.size();
        while (count > 0 && !nested && !needs(stmt, pending_[count - 1])) --count;
        return count;
    }

    /// Moves the n-th statement, and those that need it, behind the next product that does not; false if there is none.
    bool put_behind_next_product(size_t n) {
        Uses behind = uses_of(list_[n]);
        for (const Group& group : pending_) behind.stores.insert(group.sums.begin(), group.sums.end());
        std::vector<TileStmt> ahead, later{list_[n]};
        bool product = false;
        for (size_t m = n + 1; m < list_.size(); ++m) {
            const Uses uses = uses_of(list_[m]);
            const bool waits = is_wait(list_[m]) || (!list_[m].as<TileOp>() && has_products(list_[m]));
            if (waits) return false;
            if (!behind.conflicts(uses)) {
                product = product || is_product(list_[m]);
                ahead.push_back(list_[m]);
                if (!is_commit(list_[m]) || !product) continue;
                ahead.insert(ahead.end(), later.begin(), later.end());
                std::copy(ahead.begin(), ahead.end(), at(n));
                return true;
            }
            if (is_product(list_[m]) || is_commit(list_[m])) return false;
            behind.add(list_[m]);
            later.push_back(list_[m]);
        }
        return false;
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

    std::vector<TileStmt> list_, result_;
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
    auto result = Deferrer(list).run();
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
