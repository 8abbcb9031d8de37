// How one op is executed by a thread: which of its loops are unrolled together, and along which one it moves vectors.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "codegen/tile_ir/placement.h"
#include "codegen/tile_ir/tile_ir.h"
#include "codegen/to_threads/preload.h"
#include "dsl/target.h"

namespace tw::codegen {

/// A store of pairs that lanes hold as matrices of 8 x 8 elements, by one instruction for several of them.
struct MatrixStore {
    std::vector<OpLoop> digits;  ///< whose iterations are the matrices, the fastest last
    OpLoop pair;
    Access row;  ///< whose address a lane gives: row lane % 8 of matrix lane / 8
    bool transposed = false;

    int64_t matrices() const { return int64_t{1} << digits.size(); }
};

/// A store of pairs that lanes hold as matrices of 8 x 8 elements, of which `lanes` neighbours exchange theirs: each
/// stores two elements of each of them, that lie side by side, of one matrix.
struct LineStore {
    int64_t lanes = 1;
    OpLoop digit;  ///< whose iterations are the matrices
    OpLoop pair;
    Access line;                   ///< where a lane's elements begin
    std::vector<Expr> conditions;  ///< under which it stores them
};

/// The op over physical accesses. All loops together visit the op's iterations, each element's in the op's own order.
struct OpTile {
    std::vector<OpLoop> outer;  ///< outermost first
    std::vector<OpLoop> tile;   ///< inside of those, unrolled together
    std::vector<ThreadStore> stores;
    std::vector<Expr> conditions;   ///< all must hold for the stores to be made
    std::vector<Expr> ragged = {};  ///< so must these, which end inside of vectors along the tile's only loop,
    std::vector<Expr> whole = {};   ///< where these say that they do not
    bool reads_ahead = false;       ///< see TileOp
    int64_t store_width = 1;        ///< elements along `wide_variable` that one store writes
    Expr wide_variable;
    std::optional<MatrixStore> matrices;  ///< of the innermost loops, in place of stores of that width
    std::optional<LineStore> lines;       ///< likewise

    /// Loops inside of all others that one instruction takes over.
    size_t taken_over() const { return matrices ? matrices->digits.size() + 1 : lines ? 2 : 0; }
    bool single() const { return stores.size() == 1; }
    std::vector<PreloadOperand> operands() const { return preload_operands(stores, reads_ahead); }
    /// Conditions on the tile's own loops.
    bool has_inner_conditions() const;
    void replace(const Expr& variable, const Expr& value);
};

}  // namespace tw::codegen
