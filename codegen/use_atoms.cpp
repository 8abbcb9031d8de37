#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "codegen/preload.h"
#include "codegen/tile_passes.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

Expr integer(int64_t value) { return constant(Type::I64, value); }

OpLoop unrolled(const std::string& name, int64_t extent) {
    return {index_variable(name, 0, extent - 1), integer(extent), Execution::Unroll};
}

/// What an index of an operand is, apart from the loops that the instruction takes over.
struct OperandIndex {
    Expr rest;
    int64_t along = 0, k = 0;  // elements a step
};

/// An update by SIMT arithmetic, as spread_fragments leaves it, in terms of the instruction.
class AtomUse {
public:
    AtomUse(const TileKernel& kernel, const TileOp& op, const CiteStep& cite)
        : kernel_(kernel), op_(op), cite_(cite), atom_(*op.atom), pack_(4 / bytes_of(atom_.operand)),
          quads_(atom_.k / (4 * pack_)) {}

    TileStmt run() {
        sort_loops();
        check_mask();
        find_operands();
        Buffer a = register_array(a_->buffer->name + "_fragment", atom_.operand, {m_.tiles, quads_, 2, pack_});
        Buffer b = register_array(b_->buffer->name + "_fragment", atom_.operand, {n_.tiles, quads_, pack_});
        OpLoop steps = unrolled(name_of(k_.variable) + "_step", require_constant(k_.extent) / atom_.k);
        TileStmt body = make_tile(TileBlock{{fill(a, *a_, m_, steps, true), fill(b, *b_, n_, steps, false), multiply(a, b)}});
        body = make_tile(TileAllocate{a, make_tile(TileAllocate{b, body})});
        body = make_tile(TileLoop{steps.variable, steps.extent, true, true, body});
        for (auto loop = outer_.rbegin(); loop != outer_.rend(); ++loop)
            body = make_tile(TileLoop{loop->variable, loop->extent, loop->execution != Execution::Serial, loop->reduces, body});
        return body;
    }

    /// The dimensions of the accumulators' rows and columns.
    std::array<size_t, 2> sides() const { return {dimension_of(m_), dimension_of(n_)}; }

private:
    /// Rows or columns: tiles of an instruction's size, and what is inside of one.
    struct Side {
        std::optional<OpLoop> tile;
        OpLoop part;
        int64_t tiles = 1;
    };

    static std::string name_of(const Expr& variable) { return variable.as<Variable>()->name; }

    void sort_loops() {
        for (const OpLoop& loop : op_.loops) {
            if (loop.role == AtomRole::K) k_ = loop;
            else if (loop.role == AtomRole::M) take(m_, loop);
            else if (loop.role == AtomRole::N) take(n_, loop);
            else outer_.push_back(loop);
        }
    }

    /// The tile's loop stands first.
    static void take(Side& side, const OpLoop& loop) {
        if (side.part.variable.defined()) {
            side.tile = side.part;
            side.tiles = require_constant(side.part.extent);
        }
        side.part = loop;
    }

    size_t dimension_of(const Side& side) const {
        const std::vector<Expr>& indices = op_.stores[0].indices;
        auto found = std::find_if(indices.begin(), indices.end(),
                                  [&](const Expr& index) { return contains(index, side.part.variable); });
        return static_cast<size_t>(found - indices.begin());
    }

    void check_mask() const {
        if (is_constant(op_.mask, 1)) return;
        throw_error(Error,
                    "{}{}: of the tiles that {} computes, some elements are masked by {}; stage both operands in shared "
                    "memory, where zeros take the place of what is missing, or let the splits divide",
                    cite_(op_.step), op_.name, atom_.name, to_string(op_.mask));
    }

    void find_operands() {
        const Expr& value = op_.stores[0].value;
        Expr x, y;
        if (const Fma* fma = value.as<Fma>()) {
            x = fma->a, y = fma->b;
        } else {
            const Binary* sum = value.as<Binary>();
            const Binary* product = sum->b.as<Binary>() ? sum->b.as<Binary>() : sum->a.as<Binary>();
            x = product->a, y = product->b;
        }
        a_ = load_of(x), b_ = load_of(y);
        if (contains(x, n_.part.variable)) std::swap(a_, b_);
    }

    const Load* load_of(const Expr& factor) const {
        const Cast* cast = factor.as<Cast>();
        const Load* load = (cast ? cast->a : factor).as<Load>();
        if (load && load->buffer->type == atom_.operand) return load;
        throw_error(Error, "{}{}: {} multiplies elements of {} as they are in memory, not {}; stage the operand, and round it "
                    "with round_to", cite_(op_.step), op_.name, atom_.name, tw::name_of(atom_.operand), to_string(factor));
    }

    /// Refuses what does not step evenly along the operand.
    OperandIndex taken_apart(const Load& load, const Expr& index, const Side& side, bool rows) const {
        Affine affine = affine_of(index);
        int64_t part_step = rows ? 8 : 1, digit_step = rows ? 1 : 2, tile_step = rows ? 16 : 8;
        const Expr& digit = rows ? kernel_.fragment_row : kernel_.fragment_column;
        auto part = coefficient(affine, side.part.variable), lane = coefficient(affine, digit),
             k = coefficient(affine, k_.variable);
        auto tile = side.tile ? coefficient(affine, side.tile->variable) : std::optional<int64_t>(0);
        bool even = part && lane && k && tile && *part % part_step == 0;
        int64_t along = even ? *part / part_step : 0;
        even = even && *lane == along * digit_step && (!side.tile || *tile == along * tile_step);
        if (!even)
            throw_error(Error, "{}{}: '{}' is read at {}, which does not step evenly with the tile that {} computes; stage it",
                        cite_(op_.step), op_.name, load.buffer->name, to_string(index), atom_.name);
        std::erase_if(affine.terms, [&](const auto& term) {
            return term.first.same(side.part.variable) || term.first.same(digit) || term.first.same(k_.variable) ||
                   (side.tile && term.first.same(side.tile->variable));
        });
        return {to_expr(affine), along, *k};
    }

    /// The lane's part of an operand, in the order of its registers.
    TileStmt fill(const Buffer& fragment, const Load& load, const Side& side, const OpLoop& steps, bool rows) const {
        TileOp op;
        op.kind = TileOp::Kind::Fragment;
        op.lanes = {kernel_.thread, kernel_.fragment_row, kernel_.fragment_column};
        op.name = fragment->name;
        op.stage = op_.stage;
        op.step = op_.step;
        op.mask = op.active = all_of({});
        OpLoop tile = unrolled(rows ? "row" : "column", side.tiles), quad = unrolled("quad", quads_),
               half = unrolled("half", 2), pair = unrolled("p", pack_);
        std::vector<Expr> to{tile.variable, quad.variable};
        Expr along = tile.variable * (rows ? 16 : 8) + kernel_.fragment_row;
        op.loops = {tile, quad};
        if (rows) {
            op.loops.push_back(half);
            to.push_back(half.variable);
            along = along + half.variable * 8;
        }
        op.loops.push_back(pair);
        to.push_back(pair.variable);
        Expr k = steps.variable * atom_.k + quad.variable * (4 * pack_) + kernel_.fragment_column * pack_ + pair.variable;
        std::vector<Expr> from;
        for (const Expr& index : load.indices) {
            OperandIndex part = taken_apart(load, index, side, rows);
            from.push_back(simplify(part.rest + along * part.along + k * part.k));
        }
        op.stores.push_back({fragment, to, make_expr(load.buffer->type, Load{load.buffer, from})});
        for (const ThreadDigit& digit : kernel_.thread_digits)
            if (mentions(op, digit.variable)) op.threads.push_back(digit);
        return make_tile(std::move(op));
    }

    /// An instruction for each pair of tiles.
    TileStmt multiply(const Buffer& a, const Buffer& b) const {
        TileOp op;
        op.kind = TileOp::Kind::Call;
        op.name = op_.name;
        op.stage = op_.stage;
        op.step = op_.step;
        op.mask = op.active = all_of({});
        OpLoop row = unrolled("row", m_.tiles), column = unrolled("column", n_.tiles);
        op.loops = {row, column};
        Expr zero = integer(0);
        auto at = [&](const Buffer& buffer, std::vector<Expr> indices, CallArgument::Effect effect, int elements) {
            return CallArgument{effect, {}, {buffer, std::move(indices)}, elements};
        };
        std::vector<Expr> sum;
        for (const Expr& index : op_.stores[0].indices) {
            Substitution first{{m_.part.variable, zero}, {n_.part.variable, zero}};
            if (m_.tile) first.emplace_back(m_.tile->variable, row.variable);
            if (n_.tile) first.emplace_back(n_.tile->variable, column.variable);
            sum.push_back(simplify(substitute(index, first)));
        }
        op.call = {atom_.name,
                   {},
                   {at(op_.stores[0].buffer, sum, CallArgument::Effect::Write, 4),
                    at(a, {row.variable, zero, zero, zero}, CallArgument::Effect::Read, static_cast<int>(2 * quads_ * pack_)),
                    at(b, {column.variable, zero, zero}, CallArgument::Effect::Read, static_cast<int>(quads_ * pack_))}};
        return make_tile(std::move(op));
    }

    const TileKernel& kernel_;
    const TileOp& op_;
    const CiteStep& cite_;
    const Atom& atom_;
    int64_t pack_, quads_;
    OpLoop k_;
    Side m_, n_;
    std::vector<OpLoop> outer_;
    const Load *a_ = nullptr, *b_ = nullptr;
};

/// Accumulators as instructions take them: those of one side by side.
class Rearranged {
public:
    Rearranged(const Buffer& buffer, std::array<size_t, 2> sides) : sides_(sides) {
        BufferNode node = *buffer;
        node.shape.clear();
        for (size_t d = 0; d < buffer->shape.size(); ++d)
            if (d != sides[0] && d != sides[1]) node.shape.push_back(buffer->shape[d]);
        for (size_t d : sides) node.shape.push_back(integer(require_constant(buffer->shape[d]) / 2));
        node.shape.insert(node.shape.end(), 2, integer(2));
        buffer_ = std::make_shared<const BufferNode>(std::move(node));
    }

    const Buffer& buffer() const { return buffer_; }
    std::vector<Expr> indices(const std::vector<Expr>& old) const {
        std::vector<Expr> result;
        for (size_t d = 0; d < old.size(); ++d)
            if (d != sides_[0] && d != sides_[1]) result.push_back(old[d]);
        for (size_t d : sides_) result.push_back(simplify(old[d] / 2));
        for (size_t d : sides_) result.push_back(simplify(old[d] % 2));
        return result;
    }

private:
    std::array<size_t, 2> sides_;
    Buffer buffer_;
};

using Rearrangements = std::map<const BufferNode*, Rearranged>;

TileOp rearrange(const TileOp& op, const Rearrangements& all) {
    TileOp result = map_exprs(op, [&](const Expr& root) {
        return transform(root, [&](const Expr& e) -> Expr {
            const Load* load = e.as<Load>();
            auto found = load ? all.find(load->buffer.get()) : all.end();
            if (found == all.end()) return {};
            return make_expr(e.type(), Load{found->second.buffer(), found->second.indices(load->indices)});
        });
    });
    auto rearrange = [&](Buffer& buffer, std::vector<Expr>& indices) {
        auto found = all.find(buffer.get());
        if (found == all.end()) return;
        indices = found->second.indices(indices);
        buffer = found->second.buffer();
    };
    for (StoreTo& store : result.stores) rearrange(store.buffer, store.indices);
    for (CallArgument& argument : result.call.arguments)
        if (argument.place.buffer) rearrange(argument.place.buffer, argument.place.indices);
    return result;
}

TileStmt rearrange(const TileStmt& stmt, const Rearrangements& all) {
    if (const TileOp* op = stmt.as<TileOp>()) return make_tile(rearrange(*op, all));
    if (const TileLoop* loop = stmt.as<TileLoop>()) {
        TileLoop copy = *loop;
        copy.body = rearrange(loop->body, all);
        return make_tile(std::move(copy));
    }
    if (const TileAllocate* allocate = stmt.as<TileAllocate>()) {
        auto found = all.find(allocate->buffer.get());
        const Buffer& buffer = found == all.end() ? allocate->buffer : found->second.buffer();
        return make_tile(TileAllocate{buffer, rearrange(allocate->body, all), allocate->around});
    }
    TileBlock block;
    for (const TileStmt& kid : stmt.as<TileBlock>()->stmts) block.stmts.push_back(rearrange(kid, all));
    return make_tile(std::move(block));
}

}  // namespace

TileKernel use_atoms(const TileKernel& kernel, const CiteStep& cite) {
    TileKernel result = kernel;
    Rearrangements rearrangements;
    result.body = replace_ops(kernel.body, [&](const TileOp& op) {
        if (!op.atom) return make_tile(TileOp(op));
        AtomUse use(result, op, cite);
        TileStmt used = use.run();
        rearrangements.try_emplace(op.stores[0].buffer.get(), op.stores[0].buffer, use.sides());
        return used;
    });
    result.body = rearrange(result.body, rearrangements);
    return result;
}

}  // namespace tw::codegen
