#include "codegen/tile_ir/data_indices.h"
#include "codegen/access/access.h"

#include "dsl/simplify.h"

namespace tw::codegen {

DataIndices::DataIndices(const TileKernel& kernel) {
    visit(kernel.body, [&](const TileStmt& stmt) {  // outer loops before those inside
        if (const TileOp* op = stmt.as<TileOp>())
            for (const OpLoop& loop : op->loops) add_loop(loop.variable, loop.extent);
        if (const TileLoop* loop = stmt.as<TileLoop>()) add_loop(loop->variable, loop->extent);
    });
}

void DataIndices::add_loop(const Expr& variable, const Expr& extent) {
    if (by_data(extent)) loops_.insert(variable.id());
}

bool DataIndices::by_data(const Expr& expr) const {
    bool found = false;
    visit(expr, [&](const Expr& node) { found = found || node.as<Load>() || loops_.count(node.id()); });
    return found;
}

std::vector<IndexCheck> DataIndices::checks(const BufferNode& buffer, const std::vector<Expr>& indices) const {
    std::vector<IndexCheck> checks;
    for (size_t d = 0; d < indices.size(); ++d) {
        if (!by_data(indices[d])) continue;
        IndexCheck check{simplify(indices[d]), cast_unchecked(Type::I64, buffer.shape[d]), static_cast<int>(d)};
        bool is_inside = prove(check.index >= 0) == true && prove(check.index < check.extent) == true;
        if (!is_inside) checks.push_back(check);
    }
    return checks;
}

}  // namespace tw::codegen
