// Where buffers are.
#pragma once
#include <map>
#include <vector>

#include "codegen/tile_ir.h"

namespace tw::codegen {

/// Shared ones by their layouts, global ones by flat offsets, registers as they are.
class Placement {
public:
    explicit Placement(const TileKernel& kernel);
    Access physical(const Buffer& buffer, const std::vector<Expr>& indices) const;
    /// The expression over physical loads.
    Expr physical(const Expr& expr) const;
    /// The arrays of shared memory, in the kernel's order.
    const std::vector<Buffer>& shared() const { return shared_; }

private:
    /// The element at lowered indices.
    Access placed(const Buffer& buffer, std::vector<Expr> indices) const;

    struct Place {
        Buffer buffer;
        Layout layout;
    };
    std::map<const BufferNode*, Place> places_;
    std::vector<Buffer> shared_;
};

}  // namespace tw::codegen
