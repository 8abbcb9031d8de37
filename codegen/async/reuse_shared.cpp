#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "codegen/async/async_passes.h"
#include "codegen/async/shared_lives.h"
#include "codegen/tile_ir/placement.h"

namespace tw::codegen {
namespace {

/// Arrays by their indices in TileKernel::shared: slots of alternatives of arrays.
using Slots = std::vector<std::vector<std::vector<size_t>>>;

/// Which arrays take turns: the largest first, each where it adds the fewest bytes.
class TurnChooser {
public:
    TurnChooser(const TileKernel& kernel, const SharedLives& lives, const SharedStruct& apart)
        : kernel_(kernel), lives_(lives), apart_(apart) {}

    std::vector<SharedUnion> run() {
        std::vector<size_t> arrays;
        for (size_t b = 0; b < kernel_.shared.size(); ++b)
            if (!buffer(b)->is_barrier && lives_.is_used(buffer(b))) arrays.push_back(b);
        std::ranges::stable_sort(arrays, std::greater(), [&](size_t b) { return apart_.places[b].bytes; });
        for (size_t array : arrays) add(array);
        return unions();
    }

private:
    const Buffer& buffer(size_t array) const { return kernel_.shared[array].buffer; }

    void add(size_t array) {
        int64_t least = apart_.places[array].bytes;
        Slots::value_type* best_slot = nullptr;
        size_t best_alternative = 0;
        for (auto& slot : slots_)
            for (size_t alternative = 0; alternative <= slot.size(); ++alternative) {
                if (!fits(array, slot, alternative)) continue;
                const int64_t together = bytes_in(slot, alternative) + apart_.places[array].bytes;
                const int64_t more = std::max<int64_t>(together - bytes_of_slot(slot), 0);
                if (more >= least) continue;
                least = more, best_slot = &slot, best_alternative = alternative;
            }
        if (!best_slot) return slots_.push_back({{array}});
        if (best_alternative == best_slot->size()) best_slot->emplace_back();
        (*best_slot)[best_alternative].push_back(array);
    }

    bool fits(size_t array, const Slots::value_type& slot, size_t alternative) const {
        for (size_t a = 0; a < slot.size(); ++a)
            for (size_t other : slot[a])
                if (a != alternative && !lives_.are_apart(buffer(array), buffer(other))) return false;
        return true;
    }

    int64_t bytes_in(const Slots::value_type& slot, size_t alternative) const {
        int64_t bytes = 0;
        if (alternative < slot.size())
            for (size_t array : slot[alternative]) bytes += apart_.places[array].bytes;
        return bytes;
    }
    int64_t bytes_of_slot(const Slots::value_type& slot) const {
        int64_t most = 0;
        for (size_t a = 0; a < slot.size(); ++a) most = std::max(most, bytes_in(slot, a));
        return most;
    }

    /// Alternatives in the order in which they begin.
    std::vector<SharedUnion> unions() {
        std::vector<SharedUnion> result;
        for (auto& slot : slots_) {
            if (slot.size() < 2) continue;
            std::ranges::sort(slot, {}, [&](const auto& alternative) { return first_of(alternative); });
            SharedUnion one;
            for (auto& alternative : slot) {
                std::ranges::sort(alternative);
                one.alternatives.emplace_back();
                for (size_t array : alternative) one.alternatives.back().push_back(buffer(array));
            }
            result.push_back(std::move(one));
        }
        return result;
    }
    int first_of(const std::vector<size_t>& alternative) const {
        int first = lives_.of(buffer(alternative[0])).first;
        for (size_t array : alternative) first = std::min(first, lives_.of(buffer(array)).first);
        return first;
    }

    const TileKernel& kernel_;
    const SharedLives& lives_;
    const SharedStruct& apart_;
    Slots slots_;
};

bool touches(const TileStmt& stmt, const Buffer& buffer) {
    bool found = false;
    visit_ops(stmt, [&](const TileOp& op) {
        auto see = [&](const Buffer& other) { found = found || other == buffer; };
        visit_places(op, see);
        std::ranges::for_each(loads_of(op), see);
    });
    return found;
}

Access first_element(const Buffer& buffer) { return {buffer, std::vector<Expr>(buffer->shape.size(), integer(0))}; }

/// Marks the places where arrays begin.
class LifeMarker {
public:
    LifeMarker(TileKernel& kernel, const SharedLives& lives) : kernel_(kernel), lives_(lives) {}

    void run() {
        for (const SharedUnion& shared : kernel_.unions)
            for (size_t a = 0; a < shared.alternatives.size(); ++a)
                for (const Buffer& buffer : shared.alternatives[a]) mark(buffer, others(shared, a));
    }

private:
    static std::vector<Buffer> others(const SharedUnion& shared, size_t alternative) {
        std::vector<Buffer> result;
        for (size_t a = 0; a < shared.alternatives.size(); ++a)
            if (a != alternative)
                result.insert(result.end(), shared.alternatives[a].begin(), shared.alternatives[a].end());
        return result;
    }

    void mark(const Buffer& buffer, const std::vector<Buffer>& others) {
        TileBlock marks;
        std::set<const ExprNode*> again;  // loops in whose iterations it takes turns with another
        bool follows = false;
        for (const Buffer& other : others) {
            if (!lives_.begins_behind(buffer, other)) continue;
            follows = true;
            for (const ExprNode* loop : lives_.of(other).renewed_in)
                if (lives_.of(buffer).renewed_in.count(loop)) again.insert(loop);
            // Behind the wait for products, which other accesses need not be.
            if (lives_.of(other).as_matrix) marks.stmts.push_back(make_tile(TileOp{AccessOp{first_element(other)}}));
        }
        if (!follows) return;
        marks.stmts.push_back(make_tile(call_op({BeginArray{{first_element(buffer)}, integer(bytes_of(buffer))}})));
        kernel_.body = marked(kernel_.body, buffer, marks, again);
    }

    int64_t bytes_of(const Buffer& buffer) const {
        auto found = std::ranges::find(kernel_.shared, buffer, &SharedBuffer::buffer);
        return found->layout.elements() * tw::bytes_of(buffer->type);
    }

    /// In front of the first access, inside of these loops and of no other that repeats.
    static TileStmt marked(const TileStmt& stmt, const Buffer& buffer, const TileBlock& marks,
                           const std::set<const ExprNode*>& loops) {
        const TileLoop* loop = stmt.as<TileLoop>();
        const bool begins_in = !loop || !repeats(*loop) || loops.count(loop->variable.id());
        if (stmt.as<TileOp>() || !begins_in) {
            TileBlock both = marks;
            both.stmts.push_back(stmt);
            return make_tile(std::move(both));
        }
        std::vector<TileStmt> kids = children(stmt);
        auto first = std::ranges::find_if(kids, [&](const TileStmt& kid) { return touches(kid, buffer); });
        *first = marked(*first, buffer, marks, loops);
        return with_children(stmt, std::move(kids));
    }

    TileKernel& kernel_;
    const SharedLives& lives_;
};

/// Of each block.
int64_t room(const TileKernel& kernel, const Target& target) {
    const int64_t share = target.shared_bytes_per_multiprocessor / std::max(kernel.occupancy.blocks, 1) - driver_bytes;
    return kernel.occupancy.blocks > 1 ? std::min<int64_t>(target.shared_bytes, share) : target.shared_bytes;
}

}  // namespace

TileKernel reuse_shared(const TileKernel& kernel, const Target& target) {
    const SharedStruct apart = shared_struct(Placement(kernel).shared(), {});
    if (apart.bytes <= room(kernel, target) || turns_of(kernel) > 1) return kernel;
    const SharedLives lives(kernel);
    TileKernel result = kernel;
    result.unions = TurnChooser(kernel, lives, apart).run();
    if (result.unions.empty()) return kernel;
    const Placement placement(result);
    const int64_t bytes = bytes_of_shared(placement.shared(), placement.unions());
    if (bytes >= apart.bytes) return kernel;
    LifeMarker(result, lives).run();
    for (const SharedUnion& shared : result.unions)
        result.notes.push_back(
            fmt::format("{}: {}: the same shared memory, {} bytes in all; side by side, {} would be more than the {} "
                        "that a block has",
                        kernel.name, to_string(shared), bytes, apart.bytes, room(kernel, target)));
    return result;
}

}  // namespace tw::codegen
