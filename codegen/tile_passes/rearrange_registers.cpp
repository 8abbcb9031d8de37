#include "codegen/tile_passes/rearrange_registers.h"

#include "dsl/simplify.h"

namespace tw::codegen {

RegisterOrder::RegisterOrder(const Buffer& buffer, std::array<size_t, 2> sides, int64_t columns, int64_t neighbours)
    : sides_(sides), columns_(columns), neighbours_(neighbours) {
    BufferNode node = *buffer;
    node.shape.clear();
    for (size_t d = 0; d < buffer->shape.size(); ++d)
        if (d != sides[0] && d != sides[1]) node.shape.push_back(buffer->shape[d]);
    node.shape.push_back(integer(require_constant(buffer->shape[sides[0]]) / 2));
    node.shape.push_back(integer(require_constant(buffer->shape[sides[1]]) / columns_));
    node.shape.push_back(integer(2 * columns_));
    buffer_ = std::make_shared<const BufferNode>(std::move(node));
}

std::vector<Expr> RegisterOrder::indices(const std::vector<Expr>& old) const {
    std::vector<Expr> result;
    for (size_t d = 0; d < old.size(); ++d)
        if (d != sides_[0] && d != sides_[1]) result.push_back(old[d]);
    const Expr &row = old[sides_[0]], &column = old[sides_[1]];
    Expr inside = column % columns_;
    result.push_back(simplify(row / 2));
    result.push_back(simplify(column / columns_));
    result.push_back(simplify(inside / neighbours_ * (2 * neighbours_) + row % 2 * neighbours_ + inside % neighbours_));
    return result;
}

namespace {

TileOp rearranged(const TileOp& op, const RegisterOrders& orders) {
    return map_places(op, [&](const Access& place) {
        auto found = orders.find(place.buffer.get());
        if (found == orders.end()) return place;
        return Access{found->second.buffer(), found->second.indices(place.indices)};
    });
}

}  // namespace

TileStmt rearrange_registers(const TileStmt& stmt, const RegisterOrders& orders) {
    if (const TileOp* op = stmt.as<TileOp>()) return make_tile(rearranged(*op, orders));
    TileStmt result = map_children(stmt, [&](const TileStmt& kid) { return rearrange_registers(kid, orders); });
    const TileAllocate* allocate = result.as<TileAllocate>();
    auto found = allocate ? orders.find(allocate->buffer.get()) : orders.end();
    if (found == orders.end()) return result;
    return make_tile(TileAllocate{found->second.buffer(), allocate->body, allocate->around});
}

}  // namespace tw::codegen
