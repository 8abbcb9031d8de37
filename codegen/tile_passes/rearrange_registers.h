// Registers in the order in which matrix instructions take them.
#pragma once
#include <array>
#include <map>

#include "codegen/tile_ir/tile_ir.h"

namespace tw::codegen {

/// Of a lane's part of a matrix in registers: those of one instruction side by side, neighbouring columns of the two
/// halves of its rows in turn.
class RegisterOrder {
public:
    /// `sides`: the dimensions of its rows and columns; `columns`: those of one instruction that a thread has, so many
    /// neighbours at a time.
    RegisterOrder(const Buffer& buffer, std::array<size_t, 2> sides, int64_t columns, int64_t neighbours);

    const Buffer& buffer() const { return buffer_; }
    std::vector<Expr> indices(const std::vector<Expr>& old) const;

private:
    std::array<size_t, 2> sides_;
    int64_t columns_, neighbours_;
    Buffer buffer_;
};
using RegisterOrders = std::map<const BufferNode*, RegisterOrder>;

/// The statement with those buffers and their places so.
TileStmt rearrange_registers(const TileStmt& stmt, const RegisterOrders& orders);

}  // namespace tw::codegen
