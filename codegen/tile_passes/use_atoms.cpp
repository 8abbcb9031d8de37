#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "codegen/tile_passes/factors_of_product.h"
#include "codegen/tile_passes/rearrange_registers.h"
#include "codegen/tile_passes/tile_passes.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

OpLoop unrolled(const std::string& name, int64_t extent) {
    return {index_variable(name, 0, extent - 1), integer(extent), Execution::Unroll};
}

/// What an index of an operand is, apart from the loops that the instruction takes over.
struct OperandIndex {
    Expr rest;
    int64_t along = 0, k = 0;  // elements a step
};

/// An update by SIMT arithmetic, as apply_fragment_layouts leaves it, in terms of the instruction.
class AtomUse {
public:
    AtomUse(TileKernel& kernel, const TileOp& op, const CiteStep& cite)
        : kernel_(kernel),
          op_(op),
          cite_(cite),
          atom_(*op.as<UpdateOp>()->atom),
          pack_(4 / bytes_of(atom_.operand)),
          quads_(atom_.k / (4 * pack_)) {}

    TileStmt run() {
        sort_loops();
        const auto [rows, columns] = factors_of_product(op_, atom_, n_.part.variable);
        a_ = rows, b_ = columns;
        check_mask();
        return within_outer(atom_.unit == MatrixUnit::Wgmma ? by_warpgroup() : by_warp());
    }

    /// The dimensions of the accumulators' rows and columns.
    std::array<size_t, 2> sides() const {
        const std::vector<Expr>& indices = op_.stores[0].indices;
        return {dimension_of(m_.part.variable, indices), dimension_of(n_.part.variable, indices)};
    }

    /// The operand whose rows are in registers, if it is there: a buffer, and the dimensions of its rows and columns.
    const Load* rows_in_registers() const { return k_tile_ ? a_ : nullptr; }
    std::array<size_t, 2> sides_of_rows() const {
        return {dimension_of(m_.part.variable, a_->indices), dimension_of(k_.variable, a_->indices)};
    }

private:
    /// Rows or columns: tiles of an instruction's size, and what is inside of one.
    struct Side {
        std::optional<OpLoop> tile;
        OpLoop part;
        int64_t tiles = 1;
    };

    TileStmt by_warp() {
        Buffer b = register_array(b_->buffer->name + "_fragment", b_->buffer->type, {n_.tiles, quads_, pack_});
        OpLoop steps = steps_of_k();
        TileBlock block;
        Buffer a = register_array(a_->buffer->name + "_fragment", a_->buffer->type, {m_.tiles, quads_, 2, pack_});
        if (!k_tile_) block.stmts.push_back(fill(a, *a_, m_, steps, true));
        block.stmts.push_back(fill(b, *b_, n_, steps, false));
        block.stmts.push_back(multiply(k_tile_ ? rows_of(steps) : fragment_rows(a), b));
        TileStmt body = make_tile(TileAllocate{b, make_tile(std::move(block))});
        if (!k_tile_) body = make_tile(TileAllocate{a, body});
        return make_tile(TileLoop{steps.variable, steps.extent, true, true, body});
    }

    /// Over the instructions that a sum of all terms takes.
    OpLoop steps_of_k() const {
        std::string name = name_of(k_.variable);
        if (k_tile_) name = name.substr(0, name.rfind('_'));
        return unrolled(name + "_step", num_terms() / atom_.k);
    }
    int64_t num_terms() const {
        return require_constant(k_.extent) * (k_tile_ ? require_constant(k_tile_->extent) * 4 : 1);
    }

    /// What one instruction takes of rows in registers: those of a tile, by its variable, at a step.
    using RowsAt = std::function<ReadOperand(const Expr& row)>;
    RowsAt rows_of(const OpLoop& steps) const {
        check_order_of_rows();
        return [this, steps](const Expr& row) {
            Substitution first{{m_.part.variable, integer(0)},
                               {k_.variable, integer(0)},
                               {k_tile_->variable, steps.variable * quads_}};
            if (m_.tile) first.emplace_back(m_.tile->variable, row);
            std::vector<Expr> indices;
            for (const Expr& index : a_->indices) indices.push_back(simplify(substitute(index, first)));
            return ReadOperand{{a_->buffer, indices}, static_cast<int>(2 * quads_ * pack_)};
        };
    }
    /// A lane's terms lie in its registers as the loop runs through them: other orders have been refused.
    void check_order_of_rows() const {
        const Affine affine = affine_of(simplify(a_->indices[sides_of_rows()[1]]));
        internal_check(coefficient(affine, k_.variable) == 1 && coefficient(affine, k_tile_->variable) == pack_,
                       "{}: {} takes the rows '{}' from registers in the order in which lanes have them, but the terms "
                       "are read at {}",
                       op_.name, atom_.name, a_->buffer->name, to_string(to_expr(affine)));
    }
    RowsAt fragment_rows(const Buffer& fragment) const {
        return [this, fragment](const Expr& row) {
            return ReadOperand{{fragment, {row, integer(0), integer(0), integer(0)}},
                               static_cast<int>(2 * quads_ * pack_)};
        };
    }

    TileStmt within_outer(TileStmt body) const {
        for (auto loop = outer_.rbegin(); loop != outer_.rend(); ++loop)
            body = make_tile(
                TileLoop{loop->variable, loop->extent, loop->execution != Execution::Serial, loop->reduces, body});
        return body;
    }

    // A warpgroup's instructions read shared memory themselves, while the threads go on.

    /// Where an operand is: by its first row and k, in the layout that this gives its buffer.
    struct Matrix {
        Buffer buffer;
        std::vector<OperandIndex> indices;
        bool transposed = false;
        int stride_bytes = 0, leading_bytes = 0;
        int64_t along_extent = 0;
        int step_bytes = 0;  ///< from the k of one instruction to that of the next; 0: not always the same
    };

    TileStmt by_warpgroup() {
        std::optional<Matrix> a;
        if (!k_tile_) a = matrix_of(*a_, m_, true);
        Matrix b = matrix_of(*b_, n_, false);
        OpLoop steps = steps_of_k(), row = unrolled(tile_name(m_), m_.tiles),
               column = unrolled(tile_name(n_), n_.tiles * 8 / atom_.n);
        steps.reduces = true;
        Buffer words = register_array(a_->buffer->name + "_words", u32, {m_.tiles, num_terms() / atom_.k, 4});
        WriteOperand packed{{words, {row.variable, steps.variable, integer(0)}}, 4};
        Wgmma product{&atom_, sums(row.variable, column.variable), ReadOperand{packed.place, 4},
                      operand(b, column.variable * atom_.n, steps), all_of({})};
        if (a) product.a = operand(*a, row.variable * 64, steps);
        const bool transposes_a = a && a->transposed;
        if (bytes_of(atom_.operand) == 2 && (transposes_a || b.transposed))
            product.transposed = {transposes_a, b.transposed};
        TileStmt kept = call(WgmmaFenceOperand{product.sums}, {row, column});
        std::vector<TileStmt> reads{read(b)};
        if (a) reads.insert(reads.begin(), read(*a));
        TileBlock block{reads};
        // What packs registers between the fence and the product makes ptxas wait for the product before.
        if (!a) block.stmts.push_back(call(PackRegisters{packed, rows_of(steps)(row.variable)}, {row, steps}));
        block.stmts.insert(block.stmts.end(), {kept, call(WgmmaFence{}), call(product, {steps, row, column}),
                                               call(WgmmaCommit{}), call(WgmmaWait{}), kept});
        block.stmts.insert(block.stmts.end(), reads.begin(), reads.end());
        TileStmt all = make_tile(std::move(block));
        return a ? all : make_tile(TileAllocate{words, all});
    }

    Matrix matrix_of(const Load& load, const Side& side, bool rows) {
        const Buffer& buffer = load.buffer;
        if (buffer->memory != Memory::Shared)
            throw_error(Error, "{}{}: {} reads its operands from shared memory, but '{}' is in {}; stage it",
                        cite_(op_.step), op_.name, atom_.name, buffer->name, to_string(buffer->memory));
        Matrix matrix{buffer, {}};
        size_t along = load.indices.size(), k = along;
        for (size_t d = 0; d < load.indices.size(); ++d) {
            matrix.indices.push_back(taken_apart(load, load.indices[d], side, rows));
            const OperandIndex& index = matrix.indices.back();
            if (index.along == 1 && index.k == 0) along = d;
            if (index.k == 1 && index.along == 0) k = d;
        }
        size_t last = load.indices.size() - 1;
        if (along > last || k > last || (along != last && k != last))
            throw_error(Error, "{}{}: {} needs '{}' with neighbours along rows, columns or k; stage it so",
                        cite_(op_.step), op_.name, atom_.name, buffer->name);
        matrix.transposed = along == last;
        if (matrix.transposed && bytes_of(atom_.operand) != 2)
            throw_error(Error, "{}{}: {} needs '{}' with neighbours along k; transpose it in memory", cite_(op_.step),
                        op_.name, atom_.name, buffer->name);
        lay_out(matrix, along, k, rows ? 64 : atom_.n, rows ? m_.tiles > 1 : n_.tiles * 8 > atom_.n);
        return matrix;
    }

    /// The canonical layouts of wgmma: lines along the contiguous dimension, all rows of a line before the next one's.
    void lay_out(Matrix& matrix, size_t along, size_t k, int64_t side, bool several) {
        const Buffer& buffer = matrix.buffer;
        int bytes = bytes_of(buffer->type);
        size_t fast = matrix.transposed ? along : k, slow = matrix.transposed ? k : along;
        std::vector<int64_t> shape = constant_shape(buffer);
        int64_t width = shape[fast], rows = shape[slow];
        shape[slow] = (rows + 7) / 8 * 8;  // what is behind the last row, nobody reads
        Layout layout = in_lines(shape, static_cast<int>(fast), {static_cast<int>(slow)}, bytes);
        if (!layout.swizzle)
            throw_error(Error,
                        "{}{}: {} reads lines of 32, 64 or 128 bytes in groups of eight; the tile of '{}' is {} x {}",
                        cite_(op_.step), op_.name, atom_.name, buffer->name, rows, width);
        const int64_t line = layout.pitch, step = matrix.transposed && several ? side * matrix.indices[fast].along : 0;
        check_begin(matrix, fast, line, matrix.transposed ? side : atom_.k, step);
        matrix.stride_bytes = static_cast<int>(8 * line * bytes);
        matrix.leading_bytes = matrix.transposed ? static_cast<int>(shape[slow] * line * bytes) : 16;
        if (matrix.transposed) matrix.step_bytes = static_cast<int>(atom_.k * line * bytes);
        if (!matrix.transposed && width == line) matrix.step_bytes = atom_.k * bytes;
        for (SharedBuffer& shared : kernel_.shared) {
            if (shared.buffer != buffer) continue;
            if (shared.fixed && !(shared.layout == layout))
                throw_error(Error, "{}{}: two instructions need '{}' in two layouts; stage a copy for each",
                            cite_(op_.step), op_.name, buffer->name);
            shared.layout = layout;
            shared.fixed = true;
            kernel_.notes.push_back(
                fmt::format("{}: laid out for {} as {}", buffer->name, atom_.name, layout.to_string()));
        }
    }

    /// An instruction goes from line to line only if it begins with one, and so do all, `step` one from the other.
    void check_begin(const Matrix& matrix, size_t fast, int64_t line, int64_t read, int64_t step) const {
        const int64_t begin = std::gcd(divisor_of(matrix.indices[fast].rest), step);
        if (begin % line != 0 && (line % read != 0 || begin % read != 0))
            throw_error(Error,
                        "{}{}: '{}' is read beyond the end of lines of {}, from {} on; let tiles be multiples of that",
                        cite_(op_.step), op_.name, matrix.buffer->name, line, begin);
    }

    std::vector<Expr> place_in(const Matrix& matrix, const Expr& along, const Expr& k) const {
        std::vector<Expr> indices;
        for (const OperandIndex& index : matrix.indices)
            indices.push_back(simplify(index.rest + along * index.along + k * index.k));
        return indices;
    }

    MatrixOperand operand(const Matrix& matrix, const Expr& along, const OpLoop& steps) const {
        Expr k = matrix.step_bytes ? integer(0) : simplify(steps.variable * atom_.k);
        MatrixOperand result{{matrix.buffer, place_in(matrix, along, k)}, matrix.stride_bytes, matrix.leading_bytes};
        if (matrix.step_bytes) result.further = steps.variable * matrix.step_bytes;
        return result;
    }

    WriteOperand sums(const Expr& row, const Expr& column) const {
        Substitution first{{m_.part.variable, integer(0)}, {n_.part.variable, integer(0)}};
        if (m_.tile) first.emplace_back(m_.tile->variable, row);
        if (n_.tile) first.emplace_back(n_.tile->variable, column * (atom_.n / 8));
        std::vector<Expr> indices;
        for (const Expr& index : op_.stores[0].indices) indices.push_back(simplify(substitute(index, first)));
        return {{op_.stores[0].buffer, indices}, atom_.n / 2};
    }

    /// All of the operand's tile, by each thread.
    TileStmt read(const Matrix& matrix) const {
        bool rows = matrix.buffer == a_->buffer;
        int64_t width = 16 / bytes_of(matrix.buffer->type), k_extent = num_terms(),
                along_extent = rows ? m_.tiles * 64 : n_.tiles * 8;
        bool wide_k = !matrix.transposed;
        OpLoop along = unrolled("along", wide_k ? along_extent : along_extent / width),
               k = unrolled("k", wide_k ? k_extent / width : k_extent);
        Access place{matrix.buffer,
                     place_in(matrix, along.variable * (wide_k ? 1 : width), k.variable * (wide_k ? width : 1))};
        std::vector<OpLoop> loops{along, k};
        for (OpLoop& loop : loops) loop.execution = Execution::Serial;
        return make_tile(of_stage(AccessOp{place, static_cast<int>(width)}, std::move(loops)));
    }

    TileStmt call(Instruction instruction, std::vector<OpLoop> loops = {}) const {
        return make_tile(of_stage(CallOp{{std::move(instruction)}}, std::move(loops)));
    }

    template <class Action>
    TileOp of_stage(Action action, std::vector<OpLoop> loops) const {
        TileOp op{std::move(action), op_.name, op_.stage, op_.step};
        op.loops = std::move(loops);
        return op;
    }

    /// "i_tile", of the loop's parts that apply_fragment_layouts has named "i_half" or "i_pair".
    static std::string tile_name(const Side& side) {
        const std::string name = name_of(side.part.variable);
        return name.substr(0, name.rfind('_')) + "_tile";
    }

    void sort_loops() {
        for (const OpLoop& loop : op_.loops) {
            if (loop.role == AtomRole::K) {
                if (k_.variable.defined()) k_tile_ = k_;  // lanes share the terms: it stands first
                k_ = loop;
            } else if (loop.role == AtomRole::M)
                take(m_, loop);
            else if (loop.role == AtomRole::N)
                take(n_, loop);
            else
                outer_.push_back(loop);
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

    static size_t dimension_of(const Expr& variable, const std::vector<Expr>& indices) {
        auto found =
            std::find_if(indices.begin(), indices.end(), [&](const Expr& index) { return contains(index, variable); });
        return static_cast<size_t>(found - indices.begin());
    }

    void check_mask() const {
        if (is_constant(op_.mask, 1)) return;
        throw_error(Error, "{}{}: of the tiles that {} computes, some elements are masked by {}; {}", cite_(op_.step),
                    op_.name, atom_.name, to_string(op_.mask), remedy_of_mask());
    }

    std::string remedy_of_mask() const {
        std::string outside;
        for (const Load* load : {a_, b_})
            if (load->buffer->memory != Memory::Shared)
                outside += fmt::format("{}'{}'", outside.empty() ? "" : " and ", load->buffer->name);
        if (!outside.empty())
            return fmt::format(
                "stage {} in shared memory, where zeros take the place of what is missing, or let the "
                "splits divide",
                outside);
        return fmt::format(
            "'{}' and '{}' are in shared memory, but not both are copies that zeros can fill up to whole "
            "tiles: what is computed there keeps its edges, and so does what data or other loops end. "
            "Let the splits divide, cut the loop whose last tile is partial off there (s.cut(loop, "
            "where_partial(tensor))), or have a kernel before store what is computed and stage a copy of it",
            a_->buffer->name, b_->buffer->name);
    }

    /// Refuses what does not step evenly along the operand.
    OperandIndex taken_apart(const Load& load, const Expr& index, const Side& side, bool rows) const {
        Affine affine = affine_of(index);
        bool group = atom_.unit == MatrixUnit::Wgmma && rows;
        int64_t part_step = rows ? 8 : 1, digit_step = rows ? 1 : 2, tile_step = !rows ? 8 : group ? 64 : 16;
        const Expr& digit = rows ? kernel_.fragment_row : kernel_.fragment_column;
        auto part = coefficient(affine, side.part.variable), lane = coefficient(affine, digit),
             k = coefficient(affine, k_.variable);
        auto tile = side.tile ? coefficient(affine, side.tile->variable) : std::optional<int64_t>(0);
        bool even = part && lane && k && tile && *part % part_step == 0;
        int64_t along = even ? *part / part_step : 0, lane_k = 0;
        if (k_tile_ && even) {
            even = coefficient(affine, k_tile_->variable) == *k * 4 * pack_;
            lane_k = *k * pack_;
        }
        if (group) even = even && coefficient(affine, kernel_.fragment_warp) == along * 16;
        even = even && *lane == along * digit_step + lane_k && (!side.tile || *tile == along * tile_step);
        if (!even)
            throw_error(Error,
                        "{}{}: '{}' is read at {}, which does not step evenly with the tile that {} computes; {}",
                        cite_(op_.step), op_.name, load.buffer->name, to_string(index), atom_.name,
                        k && *k >= 0 && !k_tile_ ? "stage it"
                                                 : "its terms are not in the loop's order; stage it As::Matrix, or "
                                                   "have it declared so");
        std::erase_if(affine.terms, [&](const auto& term) {
            return term.first.same(side.part.variable) || term.first.same(digit) ||
                   (group && term.first.same(kernel_.fragment_warp)) || term.first.same(k_.variable) ||
                   (k_tile_ && term.first.same(k_tile_->variable)) ||
                   (side.tile && term.first.same(side.tile->variable));
        });
        return {to_expr(affine), along, *k};
    }

    /// The lane's part of an operand, in the order of its registers.
    TileStmt fill(const Buffer& fragment, const Load& load, const Side& side, const OpLoop& steps, bool rows) const {
        TileOp op{FragmentOp{}, fragment->name, op_.stage, op_.step};
        op.lanes = {kernel_.thread, kernel_.fragment_row, kernel_.fragment_column};
        OpLoop tile = unrolled(tile_name(side), side.tiles), quad = unrolled("quad", quads_),
               half = unrolled("half", 2), pair = unrolled("pair", pack_);
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
        Expr k =
            steps.variable * atom_.k + quad.variable * (4 * pack_) + kernel_.fragment_column * pack_ + pair.variable;
        std::vector<Expr> from;
        for (const Expr& index : load.indices) {
            OperandIndex part = taken_apart(load, index, side, rows);
            from.push_back(simplify(part.rest + along * part.along + k * part.k));
        }
        op.stores.push_back({fragment, to, make_expr(load.buffer->type, Load{load.buffer, from})});
        for (const ThreadCoordinate& digit : kernel_.thread_coordinates)
            if (mentions(op, digit.variable)) op.threads.push_back(digit);
        return make_tile(std::move(op));
    }

    /// An instruction for each pair of tiles.
    TileStmt multiply(const RowsAt& rows, const Buffer& b) const {
        OpLoop row = unrolled(tile_name(m_), m_.tiles), column = unrolled(tile_name(n_), n_.tiles);
        Expr zero = integer(0);
        ReadOperand columns{{b, {column.variable, zero, zero}}, static_cast<int>(quads_ * pack_)};
        return call(Mma{&atom_, sums(row.variable, column.variable), rows(row.variable), columns}, {row, column});
    }

    TileKernel& kernel_;
    const TileOp& op_;
    const CiteStep& cite_;
    const Atom& atom_;
    int64_t pack_, quads_;
    OpLoop k_;
    std::optional<OpLoop> k_tile_;  ///< of four times as many terms as a register has, those of k_
    Side m_, n_;
    std::vector<OpLoop> outer_;
    const Load *a_ = nullptr, *b_ = nullptr;
};

}  // namespace

TileKernel use_atoms(const TileKernel& kernel, const CiteStep& cite) {
    TileKernel result = kernel;
    RegisterOrders orders;
    result.body = replace_ops(kernel.body, [&](const TileOp& op) {
        const UpdateOp* update = op.as<UpdateOp>();
        if (!update || !update->atom) return make_tile(TileOp(op));
        AtomUse use(result, op, cite);
        TileStmt used = use.run();
        orders.try_emplace(op.stores[0].buffer.get(), op.stores[0].buffer, use.sides(), update->atom->n / 4, 2);
        if (const Load* rows = use.rows_in_registers())
            orders.try_emplace(rows->buffer.get(), rows->buffer, use.sides_of_rows(), update->atom->k / 4,
                               4 / bytes_of(update->atom->operand));
        return used;
    });
    result.body = rearrange_registers(result.body, orders);
    return result;
}

}  // namespace tw::codegen
