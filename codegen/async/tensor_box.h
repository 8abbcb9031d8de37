// Boxes of tensors, which the tensor memory accelerator moves between global and shared memory.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "codegen/async/pixel_walk.h"
#include "codegen/tile_ir/tile_ir.h"

namespace tw::codegen {

/// The box of a tensor in global memory that an op copies into a tile of shared memory, or from one; or one such box
/// for each iteration of loops that move it.
class TensorBox {
public:
    static constexpr int64_t alignment = 16;  ///< bytes, of strides and of a box's rows
    static constexpr int64_t longest_side = 256;

    explicit TensorBox(const TileOp& op) : op_(op) { reason_ = examine(); }
    /// Why it is no box that the accelerator can move; empty if it is one.
    const std::string& reason() const { return reason_; }

    struct Side {
        Expr first;     ///< index where the loop is at 0
        Expr variable;  ///< undefined: one element
        int64_t extent = 1;
        size_t dimension = 0;  ///< of the tile's buffer
    };
    /// A side a dimension of the tensor, of a walk one for its pixels; the last is the contiguous one.
    const std::vector<Side>& sides() const { return sides_; }
    const Side& fast() const { return sides_.back(); }
    const Buffer& tensor() const { return tensor_; }
    const Buffer& tile() const { return tile_; }
    const std::vector<Expr>& place_in_tile() const { return *in_tile_; }
    /// Of the tensor map that describes it.
    std::string map_name() const { return (arrives_ ? tile_ : tensor_)->name + "_map"; }
    /// From the tensor to the tile.
    bool arrives() const { return arrives_; }
    /// To the elements of the tensor, instead of overwriting them.
    bool adds() const { return adds_; }
    /// Instead of a box, pixels that the first side's loop walks over; nullptr of a box.
    const PixelWalk* walk() const { return walk_ ? &*walk_ : nullptr; }
    /// Loops, with constant extents, in each iteration of which a box is copied, into a part of the tile of its own.
    const std::vector<OpLoop>& repeats() const { return repeats_; }
    /// The slowest side, if so many blocks can load a part of it each: whole groups of eight rows.
    const Side* side_in_parts(int blocks) const;
    bool mentions(const Expr& variable) const;

private:
    std::string examine();
    std::string find_ends();
    std::string add_sides();
    std::string add_side(const Expr& index);
    std::string add_sides_of_walk(const OpLoop& pixels);
    std::string repeat_all_but(const OpLoop& moved);
    bool is_repeated(const Expr& variable) const;
    bool in_order() const;
    std::vector<Expr> ends_of_images() const;
    std::vector<Expr> ends() const;
    std::string examine_memory() const;
    std::string examine_mask() const;

    const TileOp& op_;
    std::string reason_;
    bool arrives_ = true, adds_ = false;
    Buffer tensor_, tile_;
    const std::vector<Expr>* in_tensor_ = nullptr;
    const std::vector<Expr>* in_tile_ = nullptr;
    std::vector<Side> sides_;
    std::vector<OpLoop> repeats_;
    std::optional<PixelWalk> walk_;
};

}  // namespace tw::codegen
