// Indices that data decide: whether they stay inside of their dimension is known when the kernel runs. The emulator
// looks at each of them where the element is used.
#pragma once
#include <set>
#include <vector>

#include "codegen/tile_ir.h"

namespace tw::codegen {

/// 0 <= index < extent must hold in a dimension of a tensor.
struct IndexCheck {
    Expr index, extent;
    int dimension;
};

/// How many of an access's indices say where the element lies: one of a global buffer, one a dimension of others. What
/// stands behind them is checks.
size_t rank_of(const BufferNode& buffer);
/// The access without its checks.
Access place_of(const Access& access);
std::vector<IndexCheck> checks_of(const Access& access);
Access with_checks(Access place, const std::vector<IndexCheck>& checks);

/// Which indices data decide: those that read memory, and those that mention a loop whose length reads memory.
class DataIndices {
public:
    explicit DataIndices(const TileKernel& kernel);
    /// What is to be checked at these indices of the buffer: what bounds do not show to be inside.
    std::vector<IndexCheck> checks(const BufferNode& buffer, const std::vector<Expr>& indices) const;

private:
    bool by_data(const Expr& expr) const;
    void add_loop(const Expr& variable, const Expr& extent);

    std::set<const ExprNode*> loops_;
};

/// The expression, which is evaluated only where all of the conditions hold, without checks that they imply.
Expr without_implied_checks(const Expr& expr, const std::vector<Expr>& conditions);
Access without_implied_checks(const Access& access, const std::vector<Expr>& conditions);

}  // namespace tw::codegen
