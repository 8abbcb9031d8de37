#include "codegen/to_threads/load_fragment.h"

#include <algorithm>

#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

constexpr int row_bytes = 16;  // of an 8 x 8 matrix of 16-bit units

/// ldmatrix gives lane 4 * r + c the elements of a row r from byte 4 * c on; lanes 8 * i to 8 * i + 7 say where the
/// rows of matrix i are. With .trans, it gives the lane what stands in column r, rows 2 * c and 2 * c + 1.
class FragmentLoad {
public:
    FragmentLoad(const TileOp& op, const Placement& placement) : op_(op), lanes_(*op.lanes) {
        const Load& load = *op.stores[0].value.as<Load>();
        from_ = placement.physical(load.buffer, load.indices);
        bytes_ = bytes_of(load.buffer->type);
        pair_ = op.loops.back();
    }

    ThreadStmt run() {
        if (from_.buffer->memory != Memory::Shared) return {};
        int64_t row = row_bytes / bytes_;
        Expr along = index_variable("along", 0, row - 1);
        bool by_lanes = bytes_ == 4;  // an element each
        const Expr &neighbour = by_lanes ? lanes_.column : pair_.variable,
                   &same = by_lanes ? pair_.variable : lanes_.column;
        bool plain = is_row({{neighbour, along}, {same, integer(0)}}, along, row);
        bool transposed = !plain && bytes_ == 2 && is_row({{lanes_.row, along}}, along, row);
        if (!plain && !transposed) return {};
        return load(transposed);
    }

private:
    /// Whether the elements lie side by side, aligned, while `along` runs.
    bool is_row(const Substitution& values, const Expr& along, int64_t row) const {
        Access access = from_;
        for (Expr& index : access.indices) index = simplify(substitute(index, values));
        return wide_elements(access, along, row, row_bytes) == row;
    }

    /// The innermost loops of two iterations are the matrices of one instruction, at most four.
    ThreadStmt load(bool transposed) {
        std::vector<OpLoop> loops(op_.loops.begin(), op_.loops.end() - 1);
        Expr lane = lanes_.thread % 32, in_matrix = lane % 8;
        Substitution values{{pair_.variable, transposed ? in_matrix : integer(0)},
                            {lanes_.column, integer(0)},
                            {lanes_.row, transposed ? integer(0) : in_matrix}};
        Substitution first{{pair_.variable, integer(0)}};
        int64_t matrices = 1;
        while (!loops.empty() && matrices < 4) {
            OpLoop& loop = loops.back();
            int64_t extent = require_constant(loop.extent);
            if (extent % 2 != 0) break;
            Expr digit = lane / (8 * matrices) % 2, start = integer(0);
            if (extent > 2) start = index_variable(loop.variable.as<Variable>()->name + "_2", 0, extent / 2 - 1);
            values.emplace_back(loop.variable, start * 2 + digit);
            first.emplace_back(loop.variable, start * 2);
            matrices *= 2;
            if (extent == 2) {
                loops.pop_back();
                continue;
            }
            loop.variable = start;
            loop.extent = integer(extent / 2);
            break;
        }
        Access to{op_.stores[0].buffer, op_.stores[0].indices}, from = from_;
        for (Expr& index : to.indices) index = simplify(substitute(index, first));
        for (Expr& index : from.indices) index = simplify(substitute(index, values));
        int width = row_bytes / bytes_;
        LdMatrix instruction{matrices, transposed, {to, static_cast<int>(matrices * width / 4)}, {from, width}};
        ThreadStmt body = make_thread(Instruction(std::move(instruction)), op_.step);
        for (auto loop = loops.rbegin(); loop != loops.rend(); ++loop)
            body = make_thread(ThreadLoop{loop->variable, loop->extent, true, body}, op_.step);
        return make_thread(
            ThreadBlock{{make_thread(ThreadComment{op_.name + ": load matrices", op_.name}, op_.step), body}});
    }

    const TileOp& op_;
    const FragmentLanes& lanes_;
    Access from_;
    int bytes_;
    OpLoop pair_;
};

}  // namespace

ThreadStmt load_fragment(const TileOp& op, const Placement& placement) {
    internal_check(op.lanes && op.stores.size() == 1 && op.stores[0].value.as<Load>(),
                   "{} is no fragment of an operand", op.name);
    return FragmentLoad(op, placement).run();
}

}  // namespace tw::codegen
