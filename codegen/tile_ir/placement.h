// Where buffers are.
#pragma once
#include <map>
#include <vector>

#include "codegen/access/access.h"
#include "codegen/tile_ir/data_indices.h"
#include "codegen/tile_ir/tile_ir.h"

namespace tw::codegen {

/// Shared ones by their layouts, global ones by flat offsets, registers as they are. Indices that data decide are
/// checked, see index_checks.h.
class Placement {
public:
    explicit Placement(const TileKernel& kernel);
    /// The element's place, without checks.
    Access physical(const Buffer& buffer, const std::vector<Expr>& indices) const;
    Access checked(const Buffer& buffer, const std::vector<Expr>& indices) const;
    /// The expression over physical loads.
    Expr physical(const Expr& expr) const;
    /// The arrays of shared memory, in the kernel's order.
    const std::vector<Buffer>& shared() const { return shared_; }
    /// The kernel's unions, of these arrays.
    const std::vector<SharedUnion>& unions() const { return unions_; }

private:
    /// The element at lowered indices.
    Access placed(const Buffer& buffer, const std::vector<Expr>& indices) const;
    std::vector<Expr> lowered(const std::vector<Expr>& indices) const;

    struct Place {
        Buffer buffer;
        Layout layout;
    };
    DataIndices data_;
    std::map<const BufferNode*, Place> places_;
    std::vector<Buffer> shared_;
    std::vector<SharedUnion> unions_;
};

}  // namespace tw::codegen
