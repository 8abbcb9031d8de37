#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "codegen/tile_passes/factors_of_product.h"
#include "codegen/tile_passes/rearrange_registers.h"
#include "codegen/tile_passes/refuse_products.h"
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
        products_ = factors_of_products(op_, atom_, n_.part.variable);
        if (k_tile_ && products_.size() > 1) refuse_rows_in_registers(op_, atom_, products_, cite_);
        refuse_mask(op_, atom_, products_, cite_);
        return within_outer(atom_.unit == MatrixUnit::Wgmma ? by_warpgroup() : by_warp());
    }

    /// The dimensions of the accumulators' rows and columns.
    std::array<size_t, 2> sides() const {
        const std::vector<Expr>& indices = op_.stores[0].indices;
        return {dimension_of(m_.part.variable, indices), dimension_of(n_.part.variable, indices)};
    }

    /// The operand whose rows are in registers, if it is there: a buffer, and the dimensions of its rows and columns.
    const Load* rows_in_registers() const { return k_tile_ ? products_[0].rows : nullptr; }
    std::array<size_t, 2> sides_of_rows() const {
        const std::vector<Expr>& indices = rows_in_registers()->indices;
        return {dimension_of(m_.part.variable, indices), dimension_of(k_.variable, indices)};
    }

private:
    /// Rows or columns: tiles of an instruction's size, and what is inside of one.
    struct Side {
        std::optional<OpLoop> tile;
        OpLoop part;
        int64_t tiles = 1;
    };

    TileStmt by_warp() {
        const OpLoop steps = steps_of_k();
        TileBlock all;
        for (const ProductOfLoads& product : products_) all.stmts.push_back(by_warp(product, steps));
        const TileStmt body = all.stmts.size() == 1 ? all.stmts[0] : make_tile(std::move(all));
        return make_tile(TileLoop{steps.variable, steps.extent, true, true, body});
    }
    TileStmt by_warp(const ProductOfLoads& product, const OpLoop& steps) {
        const Buffer &rows = product.rows->buffer, &columns = product.columns->buffer;
        Buffer b = register_array(columns->name + "_fragment", columns->type, {n_.tiles, quads_, pack_});
        TileBlock block;
        Buffer a = register_array(rows->name + "_fragment", rows->type, {m_.tiles, quads_, 2, pack_});
        if (!k_tile_) block.stmts.push_back(fill(a, *product.rows, m_, steps, true));
        block.stmts.push_back(fill(b, *product.columns, n_, steps, false));
        block.stmts.push_back(multiply(k_tile_ ? rows_of(steps) : fragment_rows(a), b, product.negative));
        TileStmt body = make_tile(TileAllocate{b, make_tile(std::move(block))});
        return k_tile_ ? body : make_tile(TileAllocate{a, body});
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
        return [this, steps, rows = rows_in_registers()](const Expr& row) {
            Substitution first{{m_.part.variable, integer(0)},
                               {k_.variable, integer(0)},
                               {k_tile_->variable, steps.variable * quads_}};
            if (m_.tile) first.emplace_back(m_.tile->variable, row);
            std::vector<Expr> indices;
            for (const Expr& index : rows->indices) indices.push_back(simplify(substitute(index, first)));
            return ReadOperand{{rows->buffer, indices}, static_cast<int>(2 * quads_ * pack_)};
        };
    }
    /// A lane's terms lie in its registers as the loop runs through them: other orders have been refused.
    void check_order_of_rows() const {
        const Load& rows = *rows_in_registers();
        const Affine affine = affine_of(simplify(rows.indices[sides_of_rows()[1]]));
        internal_check(coefficient(affine, k_.variable) == 1 && coefficient(affine, k_tile_->variable) == pack_,
                       "{}: {} takes the rows '{}' from registers in the order in which lanes have them, but the terms "
                       "are read at {}",
                       op_.name, atom_.name, rows.buffer->name, to_string(to_expr(affine)));
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
        bool rows = false;
        bool transposed = false;
        int stride_bytes = 0, leading_bytes = 0;
        int step_bytes = 0;  ///< from the k of one instruction to that of the next; 0: not always the same
    };

    TileStmt by_warpgroup() {
        OpLoop steps = steps_of_k(), row = unrolled(tile_name(m_), m_.tiles),
               column = unrolled(tile_name(n_), n_.tiles * 8 / atom_.n);
        steps.reduces = true;
        std::vector<TileStmt> reads, products;
        for (const ProductOfLoads& each : products_) {
            const std::optional<Matrix> a = k_tile_ ? std::nullopt : std::optional(matrix_of(*each.rows, m_, true));
            const Matrix b = matrix_of(*each.columns, n_, false);
            const MatrixOperand columns = operand(b, column.variable * atom_.n, steps);
            Wgmma product{&atom_, sums(row.variable, column.variable), {}, columns, all_of({})};
            product.negative = each.negative;
            if (!a) return with_packed_rows(product, b, steps, row, column);
            product.a = operand(*a, row.variable * 64, steps);
            if (bytes_of(atom_.operand) == 2 && (a->transposed || b.transposed))
                product.transposed = {a->transposed, b.transposed};
            reads.insert(reads.end(), {read(*a), read(b)});
            products.push_back(call(product, {steps, row, column}));
        }
        return group(reads, {}, products, row, column);
    }

    /// The only product has its rows in registers.
    TileStmt with_packed_rows(Wgmma product, const Matrix& b, const OpLoop& steps, const OpLoop& row,
                              const OpLoop& column) const {
        const std::string name = rows_in_registers()->buffer->name + "_words";
        Buffer words = register_array(name, u32, {m_.tiles, num_terms() / atom_.k, 4});
        WriteOperand packed{{words, {row.variable, steps.variable, integer(0)}}, 4};
        product.a = ReadOperand{packed.place, 4};
        if (bytes_of(atom_.operand) == 2 && b.transposed) product.transposed = {false, true};
        // What packs registers between the fence and the product makes ptxas wait for the product before.
        const TileStmt pack = call(PackRegisters{packed, rows_of(steps)(row.variable)}, {row, steps});
        const std::vector<TileStmt> products{call(product, {steps, row, column})};
        return make_tile(TileAllocate{words, group({read(b)}, {pack}, products, row, column)});
    }

    /// Products of the same sums, one after another, and the wait for all of them.
    TileStmt group(const std::vector<TileStmt>& reads, const std::vector<TileStmt>& before,
                   const std::vector<TileStmt>& products, const OpLoop& row, const OpLoop& column) const {
        const TileStmt kept = call(WgmmaFenceOperand{sums(row.variable, column.variable)}, {row, column});
        TileBlock block{reads};
        auto add = [&](const std::vector<TileStmt>& stmts) {
            block.stmts.insert(block.stmts.end(), stmts.begin(), stmts.end());
        };
        add(before), add({kept, call(WgmmaFence{})}), add(products);
        add({call(WgmmaCommit{}), call(WgmmaWait{}), kept}), add(reads);
        return make_tile(std::move(block));
    }

    Matrix matrix_of(const Load& load, const Side& side, bool rows) {
        const Buffer& buffer = load.buffer;
        if (buffer->memory != Memory::Shared)
            throw_error(Error, "{}{}: {} reads its operands from shared memory, but '{}' is in {}; {}", cite_(op_.step),
                        op_.name, atom_.name, buffer->name, to_string(buffer->memory),
                        buffer->memory == Memory::Global ? "stage it"
                                                         : fmt::format("set_memory({}, Memory::Shared)", buffer->name));
        Matrix matrix{.buffer = buffer, .indices = {}, .rows = rows};
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
        int64_t width = 16 / bytes_of(matrix.buffer->type), k_extent = num_terms(),
                along_extent = matrix.rows ? m_.tiles * 64 : n_.tiles * 8;
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
        erase_terms(affine, [&](const auto& term) {
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
    TileStmt multiply(const RowsAt& rows, const Buffer& b, bool negative) const {
        OpLoop row = unrolled(tile_name(m_), m_.tiles), column = unrolled(tile_name(n_), n_.tiles);
        Expr zero = integer(0);
        ReadOperand columns{{b, {column.variable, zero, zero}}, static_cast<int>(quads_ * pack_)};
        return call(Mma{&atom_, sums(row.variable, column.variable), rows(row.variable), columns, negative},
                    {row, column});
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
    std::vector<ProductOfLoads> products_;
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
