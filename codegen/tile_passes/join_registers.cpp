// Sums that are kept for several uses are a copy of the accumulators, element by element, when these are not needed any
// more. Compilers give both the same registers; so does this pass, for readers.
#include <algorithm>
#include <map>
#include <optional>

#include "codegen/tile_passes/tile_passes.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

/// The last thing that happens where `from` lives: all of it goes to `to`.
struct RegisterCopy {
    Buffer to, from;
};

bool same_shape(const Buffer& a, const Buffer& b) {
    return a->type == b->type && std::ranges::equal(a->shape, b->shape, [](const Expr& x, const Expr& y) {
               return as_constant(x) && as_constant(x) == as_constant(y);
           });
}

std::optional<RegisterCopy> copy_of(const TileOp& op) {
    if (!op.is<MapOp>() || op.stores.size() != 1 || !is_constant(op.mask, 1)) return {};
    if (!is_constant(op.active, 1) || op.otherwise.defined()) return {};
    const StoreTo& store = op.stores[0];
    const Load* load = store.value.as<Load>();
    if (!load || store.atomic || store.buffer->memory != Memory::Registers) return {};
    if (load->buffer->memory != Memory::Registers || store.buffer == load->buffer) return {};
    bool alike = same_shape(store.buffer, load->buffer) &&
                 std::ranges::equal(store.indices, load->indices,
                                    [](const Expr& x, const Expr& y) { return equal(simplify(x), simplify(y)); });
    return alike ? std::optional(RegisterCopy{store.buffer, load->buffer}) : std::nullopt;
}

int count_stores(const TileStmt& body, const Buffer& buffer) {
    int stores = 0;
    visit_ops(body,
              [&](const TileOp& op) { visit_places(op, [&](const Buffer& place) { stores += place == buffer; }); });
    return stores;
}

int count_lives(const TileStmt& stmt, const Buffer& buffer) {
    const TileAllocate* allocate = stmt.as<TileAllocate>();
    int lives = allocate && allocate->buffer == buffer;
    for (const TileStmt& kid : children(stmt)) lives += count_lives(kid, buffer);
    return lives;
}

/// The copy that ends the life of registers, and the statements before it.
std::optional<RegisterCopy> last_copy(const TileStmt& body, const Buffer& from, TileStmt& rest) {
    if (const TileAllocate* allocate = body.as<TileAllocate>()) {
        auto found = last_copy(allocate->body, from, rest);
        if (found) rest = make_tile(TileAllocate{allocate->buffer, rest, allocate->around});
        return found;
    }
    const TileBlock* block = body.as<TileBlock>();
    if (!block || block->stmts.empty()) return {};
    TileBlock others{{block->stmts.begin(), block->stmts.end() - 1}};
    const TileOp* op = block->stmts.back().as<TileOp>();
    std::optional<RegisterCopy> found = op ? copy_of(*op) : last_copy(block->stmts.back(), from, rest);
    if (!found || found->from != from) return {};
    if (!op) others.stmts.push_back(rest);
    rest = make_tile(std::move(others));
    return found;
}

/// Registers that have the place of others.
using Joined = std::map<const BufferNode*, Buffer>;

Buffer meant(Buffer buffer, const Joined& joined) {
    for (auto found = joined.find(buffer.get()); found != joined.end(); found = joined.find(buffer.get()))
        buffer = found->second;
    return buffer;
}

class Joiner {
public:
    explicit Joiner(const TileStmt& whole) : whole_(whole) {}

    TileStmt rewrite(const TileStmt& stmt) {
        if (const TileAllocate* allocate = stmt.as<TileAllocate>()) return rewrite(*allocate);
        std::vector<Buffer> outside;
        const bool is_loop = stmt.as<TileLoop>() != nullptr;
        if (is_loop) std::swap(outside, alive_);  // what lives on from one iteration to the next
        TileStmt result = map_children(stmt, [&](const TileStmt& kid) { return rewrite(kid); });
        if (is_loop) std::swap(outside, alive_);
        return result;
    }

    const Joined& joined() const { return joined_; }

private:
    TileStmt rewrite(const TileAllocate& allocate) {
        TileStmt rest;
        auto copy = last_copy(allocate.body, allocate.buffer, rest);
        bool joins = copy && std::ranges::find(alive_, meant(copy->to, joined_)) != alive_.end() &&
                     count_stores(whole_, copy->to) == 1 && count_lives(whole_, copy->to) == 1 &&
                     count_lives(whole_, copy->from) == 1;
        if (joins) {
            joined_[allocate.buffer.get()] = copy->to;
            return rewrite(rest);
        }
        alive_.push_back(allocate.buffer);
        TileStmt body = rewrite(allocate.body);
        alive_.pop_back();
        return make_tile(TileAllocate{allocate.buffer, body, allocate.around});
    }

    TileStmt whole_;
    std::vector<Buffer> alive_;  // since the innermost loop's iteration began
    Joined joined_;
};

TileOp renamed(const TileOp& op, const Joined& joined) {
    return map_places(op, [&](const Access& place) { return Access{meant(place.buffer, joined), place.indices}; });
}

}  // namespace

TileKernel join_registers(const TileKernel& kernel) {
    TileKernel result = kernel;
    Joiner joiner(kernel.body);
    result.body = joiner.rewrite(kernel.body);
    if (joiner.joined().empty()) return kernel;
    result.body = map_ops(result.body, [&](const TileOp& op) { return renamed(op, joiner.joined()); });
    return result;
}

}  // namespace tw::codegen
