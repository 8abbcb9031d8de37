// Which indices of a kernel data decide.
#pragma once
#include <set>
#include <vector>

#include "codegen/access/access.h"
#include "codegen/tile_ir/tile_ir.h"

namespace tw::codegen {

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

}  // namespace tw::codegen
