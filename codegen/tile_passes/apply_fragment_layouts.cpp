#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "codegen/tile_passes/tile_passes.h"
#include "dsl/simplify.h"
#include "dsl/tensor.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

/// How the lanes of a warp share the iterations of a loop: as rows or as columns of an accumulator.
struct Share {
    AtomRole role = AtomRole::None;
    int64_t extent = 0;
    const BufferNode* of = nullptr;  ///< whose rows or columns decide so; null: the loop's own role
    int64_t neighbours = 2;          ///< columns side by side that a lane has, of each four times as many

    /// How many rows or columns the lanes of a warp, or of a warpgroup, share at once.
    int64_t tile(bool warpgroup) const { return role == AtomRole::N ? 4 * neighbours : warpgroup ? 64 : 16; }
    bool is_like(const Share& other) const { return role == other.role && neighbours == other.neighbours; }
};

/// A dimension of a buffer in registers.
using Dimension = std::pair<const BufferNode*, size_t>;

class Spreader {
public:
    Spreader(const TileKernel& kernel, const CiteStep& cite) : kernel_(kernel), cite_(cite) {}

    TileKernel run() {
        if (!kernel_.fragment_row.defined()) return kernel_;
        for (changed_ = true; changed_;) {
            changed_ = false;
            visit_ops(kernel_.body, [&](const TileOp& op) { learn(op); });
        }
        TileKernel result = kernel_;
        result.body = map_ops(kernel_.body, [&](const TileOp& op) { return spread(op); });
        return result;
    }

private:
    template <class See>
    static void visit_registers(const TileOp& op, const See& see) {
        auto each = [&](const Buffer& buffer, const std::vector<Expr>& indices) {
            for (size_t d = 0; d < indices.size(); ++d)
                if (buffer->memory == Memory::Registers) see(Dimension(buffer.get(), d), indices[d]);
        };
        for (const StoreTo& store : op.stores) each(store.buffer, store.indices);
        visit_exprs(op, [&](const Expr& root) {
            visit(root, [&](const Expr& e) {
                if (const Load* load = e.as<Load>()) each(load->buffer, load->indices);
            });
        });
    }

    static bool runs_along(const OpLoop& loop, const Expr& index) {
        return coefficient(affine_of(index), loop.variable) == 1;
    }

    int64_t tile_of(const Share& share) const { return share.tile(kernel_.fragment_warp.defined()); }

    /// Whether lanes that share the dimension share the loop: it runs through tiles of theirs, from the start of one.
    bool meets_tiles(const OpLoop& loop, int64_t extent, const Share& dimension, const Expr& index) const {
        if (!runs_along(loop, index)) return false;
        if (extent == dimension.extent) return true;
        const int64_t tile = tile_of(dimension);
        Expr start = simplify(substitute(index, {{loop.variable, integer(0)}}));
        return extent % tile == 0 && divisor_of(start) % tile == 0;
    }

    /// By its own role, or by that of what it reads and writes in registers.
    Share share_of(const TileOp& op, const OpLoop& loop) const {
        auto extent = as_constant(loop.extent);
        if (!extent) return {};
        if (loop.role == AtomRole::M || loop.role == AtomRole::N) return {loop.role, *extent};
        Share found = takes_bytes_from_registers(op, loop) ? share_of_rows(op, loop) : Share{};
        visit_registers(op, [&](const Dimension& dimension, const Expr& index) {
            auto known = shares_.find(dimension);
            if (known == shares_.end() || !meets_tiles(loop, *extent, known->second, index)) return;
            if (found.extent && !found.is_like(known->second)) refuse_both(op, loop, found, known->second);
            found = {known->second.role, *extent, dimension.first, known->second.neighbours};
        });
        return found;
    }

    [[noreturn]] void refuse_both(const TileOp& op, const OpLoop& loop, const Share& one, const Share& other) const {
        if (one.role != other.role)
            throw_error(Error,
                        "{}{}: the loop '{}' meets registers that lanes share as rows and such that they share as "
                        "columns; keep one of them in shared memory: set_memory(..., Memory::Shared)",
                        cite_(op.step), op.name, to_string(loop.variable));
        throw_error(Error,
                    "{}{}: along the loop '{}', lanes have pairs of columns, as sums leave them, but of rows of 1 byte "
                    "a product takes four terms side by side from a lane. Sum the terms in another order: have both "
                    "factors read at interleaved_pairs(k), or split, order and fuse the product's loop so; or stage "
                    "the rows in shared memory",
                    cite_(op.step), op.name, to_string(loop.variable));
    }

    /// Whether the loop runs over terms that an instruction takes from registers, of 1 byte each: whatever order they
    /// are read in, a lane has four side by side.
    static bool takes_bytes_from_registers(const TileOp& op, const OpLoop& loop) {
        const UpdateOp* update = op.as<UpdateOp>();
        if (!update || !update->atom || loop.role != AtomRole::K || bytes_of(update->atom->operand) != 1) return false;
        bool found = false;
        visit_registers(op,
                        [&](const Dimension&, const Expr& index) { found = found || contains(index, loop.variable); });
        return found;
    }

    /// Lanes that have terms of their own combine what they make of them, see combine_lanes; an instruction takes its
    /// rows' columns as many side by side as one register holds.
    void share_terms(TileOp& op, const OpLoop& loop, const Share& share) const {
        UpdateOp* update = std::get_if<UpdateOp>(&op.action);
        const bool is_operand = update && update->atom && loop.role == AtomRole::K;
        if (is_operand && share.role == AtomRole::N && share.neighbours == in_register(*update->atom)) return;
        if (!update || update->atom || !update->reducer->commutative || !stores_to(op, Memory::Registers))
            refuse_terms(op, loop, share);
        for (const ThreadCoordinate& coordinate : kernel_.thread_coordinates) {
            auto is = [&](const Expr& own) { return own.defined() && coordinate.variable.same(own); };
            bool shares = share.role == AtomRole::N ? is(kernel_.fragment_column)
                                                    : is(kernel_.fragment_row) || is(kernel_.fragment_warp);
            bool known = std::ranges::any_of(update->sharing, [&](const ThreadCoordinate& other) {
                return other.variable.same(coordinate.variable);
            });
            if (shares && !known) update->sharing.push_back(coordinate);
        }
    }

    /// Each lane goes through its own terms, and nobody through all of them.
    [[noreturn]] void refuse_terms(const TileOp& op, const OpLoop& loop, const Share& share) const {
        const char* along = share.role == AtomRole::M ? "rows" : "columns";
        std::string made = share.of->name;
        visit_ops(kernel_.body, [&](const TileOp& other) {
            for (const StoreTo& store : other.stores)
                if (store.buffer.get() == share.of && !other.name.empty()) made = other.name;
        });
        throw_error(Error,
                    "{}'{}' reduces over the {} of '{}' by the loop '{}', but lanes share these accumulators in "
                    "registers, {}; keep '{}' in shared memory and reduce there: "
                    "set_memory({}, Memory::Shared), or stage a copy",
                    cite_(std::max(op.step, share.of->step)), op.name, along, made, to_string(loop.variable),
                    why_not_combined(op), made, made);
    }

    static std::string why_not_combined(const TileOp& op) {
        const UpdateOp* update = op.as<UpdateOp>();
        if (update && update->atom)
            return fmt::format("from where {} takes rows of elements of 1 or 2 bytes alone", update->atom->name);
        if (update && !update->reducer->commutative)
            return fmt::format("in no order, and the reducer '{}' is not commutative", update->reducer->name);
        return "and each would reduce its own part alone";
    }

    /// How many terms of rows an instruction takes from one register.
    static int64_t in_register(const Atom& atom) { return 4 / bytes_of(atom.operand); }

    /// Lanes share the terms of rows that an instruction takes from registers, pairs of 2 bytes as columns of
    /// accumulators lie, fours of 1 byte: whoever makes the rows shares them so.
    Share share_of_rows(const TileOp& op, const OpLoop& loop) const {
        const UpdateOp* update = op.as<UpdateOp>();
        auto extent = as_constant(loop.extent);
        if (!update || !update->atom || loop.role != AtomRole::K || !extent) return {};
        const int64_t neighbours = in_register(*update->atom);
        if (neighbours < 2 || *extent % update->atom->k != 0) return {};
        return {AtomRole::N, *extent, nullptr, neighbours};
    }

    void learn(const TileOp& op) {
        for (const OpLoop& loop : op.loops) {
            Share share = share_of(op, loop);
            if (!share.extent) share = share_of_rows(op, loop);
            if (!share.extent) continue;
            visit_registers(op, [&](const Dimension& dimension, const Expr& index) {
                if (runs_along(loop, index)) changed_ = shares_.try_emplace(dimension, share).second || changed_;
            });
        }
    }

    TileOp spread(const TileOp& op) const {
        TileOp result = op;
        result.loops.clear();
        result.notes.clear();  // about threads of which more work now
        std::vector<OpLoop> tiles, inside;
        Substitution to_lanes;
        for (const OpLoop& loop : op.loops) {
            Share share = share_of(op, loop);
            if (!share.extent) {
                result.loops.push_back(loop);
                continue;
            }
            if (loop.reduces) share_terms(result, loop, share);
            bool rows = share.role == AtomRole::M;
            const int64_t size = tile_of(share), parts = rows ? 2 : share.neighbours;
            const std::string& name = loop.variable.as<Variable>()->name;
            Expr part = index_variable(name + (rows ? "_half" : parts == 2 ? "_pair" : "_four"), 0, parts - 1), value;
            value = rows ? part * 8 + kernel_.fragment_row : kernel_.fragment_column * parts + part;
            if (size == 64) value = kernel_.fragment_warp * 16 + value;
            if (share.extent > size) {
                Expr tile = index_variable(name + "_tile", 0, share.extent / size - 1);
                tiles.push_back({tile, integer(share.extent / size), Execution::Unroll, false, loop.role});
                value = tile * size + value;
            }
            inside.push_back({part, integer(parts), Execution::Unroll, false, loop.role});
            to_lanes.emplace_back(loop.variable, value);
        }
        if (to_lanes.empty()) return op;
        result.loops.insert(result.loops.end(), tiles.begin(), tiles.end());
        result.loops.insert(result.loops.end(), inside.begin(), inside.end());
        TileOp spread = map_exprs(result, [&](const Expr& e) { return simplify(substitute(e, to_lanes)); });
        spread.lanes = {kernel_.thread, kernel_.fragment_row, kernel_.fragment_column};
        for (const ThreadCoordinate& digit : kernel_.thread_coordinates) {
            bool known = std::any_of(op.threads.begin(), op.threads.end(),
                                     [&](const ThreadCoordinate& own) { return own.variable.same(digit.variable); });
            if (!known && mentions(spread, digit.variable)) spread.threads.push_back(digit);
        }
        if (!stores_to(op, Memory::Registers))
            spread.active = one_thread_each(spread.threads, kernel_.thread, kernel_.threads);
        return spread;
    }

    const TileKernel& kernel_;
    const CiteStep& cite_;
    std::map<Dimension, Share> shares_;
    bool changed_ = false;
};

}  // namespace

TileKernel apply_fragment_layouts(const TileKernel& kernel, const CiteStep& cite) {
    return Spreader(kernel, cite).run();
}

}  // namespace tw::codegen
