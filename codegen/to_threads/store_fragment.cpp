#include "codegen/to_threads/store_fragment.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "codegen/access/conditions.h"
#include "codegen/to_threads/fragment_tile.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

constexpr int64_t side = matrix_side, most_matrices = 4;

/// A condition over rows and columns that all lanes, and all matrices of an instruction, decide alike.
class Guard {
public:
    struct Side {
        Expr variable;
        int64_t width;
    };

    Guard(Expr condition, const Side& rows, const Side& columns)
        : condition_(std::move(condition)), sides_{rows, columns} {}

    /// Undefined if it is not so.
    Expr uniform() const {
        Expr result = condition_;
        for (const Side& s : sides_)
            if (result.defined()) result = uniform_over(result, s.variable, s.width);
        return result;
    }

    /// With matrices that differ by `digit`: twice as many rows or columns side by side.
    std::optional<Guard> widened(const Substitution& split, const Expr& digit) const {
        Guard result = *this;
        result.condition_ = replaced(condition_, split);
        if (!contains(result.condition_, digit)) return result;
        for (size_t s = 0; s < sides_.size(); ++s) {
            Guard wide = result;
            Side& along = wide.sides_[s];
            Expr variable = index_variable("along", 0, 2 * along.width - 1);
            wide.condition_ = replaced(wide.condition_, {{along.variable, variable - digit * along.width}});
            along = {variable, 2 * along.width};
            if (!contains(wide.condition_, digit) && wide.uniform().defined()) return wide;
        }
        return {};
    }

private:
    Expr condition_;
    std::array<Side, 2> sides_;
};

class MatrixTaker {
public:
    MatrixTaker(OpTile& tile, const TileOp& op, std::vector<std::string>& notes) : t_(tile), op_(op), notes_(notes) {}

    std::optional<MatrixStore> run() {
        if (!stores_pairs_of_lanes() || !find_pair() || !find_guards()) return {};
        std::erase_if(t_.tile, [&](const OpLoop& loop) { return loop.variable.same(result_.pair.variable); });
        for (size_t l = t_.tile.size(); l-- > 0 && result_.matrices() < most_matrices;) take(l);
        t_.tile.insert(t_.tile.end(), result_.digits.begin(), result_.digits.end());
        t_.tile.push_back(result_.pair);
        t_.conditions.clear();
        for (const Guard& guard : guards_) t_.conditions.push_back(guard.uniform());
        result_.row = row();
        return result_;
    }

private:
    const Access& to() const { return t_.stores[0].to; }

    bool stores_pairs_of_lanes() const {
        if (!t_.single() || t_.stores[0].atomic || !runs_in_whole_warps(op_)) return false;
        if (to().buffer->memory != Memory::Shared || bytes_of(to().buffer->type) != 2) return false;
        return !loads(t_.stores[0].value, to().buffer) && is_place_of_fragment(op_, to());
    }

    /// lane_column * 2 + pair as one variable.
    Substitution to_column() const { return {{result_.pair.variable, column_ - op_.lanes->column * 2}}; }

    bool find_pair() {
        for (auto loop = t_.tile.rbegin(); loop != t_.tile.rend(); ++loop) {
            if (!is_constant(loop->extent, 2)) continue;
            result_.pair = *loop;
            matrix_ = replaced(to(), to_column());
            if (mentions(matrix_, op_.lanes->column) || !mentions(matrix_, column_)) continue;
            if (!mentions(matrix_, op_.lanes->row)) continue;
            bool plain = is_row(column_);
            if (!plain && !is_row(op_.lanes->row)) continue;
            result_.transposed = !plain;
            return true;
        }
        return false;
    }

    bool is_row(const Expr& variable) const {
        Expr along = index_variable("along", 0, side - 1);
        return wide_elements(replaced(matrix_, {{variable, along}}), along, side) == side;
    }

    bool find_guards() {
        for (const Expr& condition : t_.conditions) {
            if (add_guard(condition)) continue;
            notes_.push_back(fmt::format("{}: each lane stores its own elements: {} may cut matrices of {} x {}",
                                         op_.name, to_string(condition), side, side));
            return false;
        }
        return true;
    }

    bool add_guard(const Expr& condition) {
        if (loads(condition, Memory::Registers) || !same_in_warp(op_, condition)) return false;
        // Simplified, it may tell lanes apart but not their two elements.
        bool by_lanes = !contains(condition, result_.pair.variable);
        Guard::Side rows{op_.lanes->row, side}, columns{column_, side}, pairs{op_.lanes->column, side / 2};
        guards_.emplace_back(by_lanes ? condition : replaced(condition, to_column()), rows, by_lanes ? pairs : columns);
        Expr uniform = guards_.back().uniform();
        return uniform.defined() && !contains(uniform, op_.lanes->column);
    }

    /// Two iterations of the loop are matrices of one instruction, if nothing speaks against it.
    void take(size_t l) {
        OpLoop loop = t_.tile[l];
        auto extent = as_constant(loop.extent);
        if (!extent || *extent % 2 != 0 || !mentions(to(), loop.variable)) return;
        const std::string& name = loop.variable.as<Variable>()->name;
        Expr digit = index_variable(name, 0, 1), start = index_variable(name + "_2", 0, *extent / 2 - 1);
        Substitution split{{loop.variable, *extent == 2 ? digit : start * 2 + digit}};
        std::vector<Guard> widened;
        for (const Guard& guard : guards_) {
            auto wide = guard.widened(split, digit);
            if (!wide) return;
            widened.push_back(*wide);
        }
        guards_ = std::move(widened);
        t_.replace(split[0].first, split[0].second);
        OpLoop inner = loop;
        inner.variable = digit;
        inner.extent = integer(2);
        result_.digits.insert(result_.digits.begin(), inner);
        if (*extent == 2) {
            t_.tile.erase(t_.tile.begin() + static_cast<ptrdiff_t>(l));
            return;
        }
        t_.tile[l].variable = start;
        t_.tile[l].extent = integer(*extent / 2);
    }

    /// Lane 8 * i + r gives the address of row r of matrix i.
    Access row() const {
        Expr lane = op_.lanes->thread % lanes_of_warp, in_matrix = lane % side;
        Substitution values{{column_, result_.transposed ? in_matrix : integer(0)},
                            {op_.lanes->row, result_.transposed ? integer(0) : in_matrix}};
        int64_t lanes = side;
        for (auto digit = result_.digits.rbegin(); digit != result_.digits.rend(); ++digit, lanes *= 2)
            values.emplace_back(digit->variable, lane / lanes % 2);
        return replaced(replaced(to(), to_column()), values);
    }

    OpTile& t_;
    const TileOp& op_;
    std::vector<std::string>& notes_;
    Expr column_ = index_variable("column", 0, side - 1);
    Access matrix_;
    std::vector<Guard> guards_;
    MatrixStore result_;
};

}  // namespace

std::optional<MatrixStore> take_matrices(OpTile& tile, const TileOp& op, std::vector<std::string>& notes) {
    return MatrixTaker(tile, op, notes).run();
}

ThreadStmt store_fragment(const OpTile& tile, int step) {
    const MatrixStore& matrices = *tile.matrices;
    const ThreadStore& store = tile.stores[0];
    int64_t elements = 2 * matrices.matrices();
    Buffer out = register_array(store.to.buffer->name + "_out", store.to.buffer->type, {elements});
    std::vector<OpLoop> loops = matrices.digits;
    loops.push_back(matrices.pair);
    Instruction instruction = StMatrix{matrices.matrices(),
                                       matrices.transposed,
                                       {matrices.row, static_cast<int>(side)},
                                       {{out, {integer(0)}}, static_cast<int>(elements)}};
    return make_thread(ThreadBlock{{make_thread(ThreadDeclare{out}, step), computed(loops, out, store.value, step),
                                    make_thread(std::move(instruction), step)}});
}

}  // namespace tw::codegen
