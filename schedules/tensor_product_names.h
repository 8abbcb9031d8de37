// Products on tensor cores by name: "gemm_bf16_4096x4096x4096_tb_bias_gelu".
#pragma once
#include <optional>
#include <string>

#include "schedules/tensor_product.h"

namespace tw::schedules {

struct NamedTensorProduct {
    TensorProductShape shape;
    std::optional<ProductTiling> tiling;  ///< if the name tells it
};

/// Reads "gemm_TYPE_MxNxK" or "gemm_TYPE_BATCHxMxNxK", then any of _ta, _tb (operands stored transposed), _bias,
/// an activation (_gelu, _gelu_tanh, _swiglu), _experts8 (so many matrices b; m is a multiple of 128), _masked or
/// _lower (RowTerms; k is a multiple of 128), _scaled (fp8 with scales of blocks; k is a multiple of 128), _f32 (the
/// result's type; else that of the operands, f32 for tf32, bf16 for e4m3, i32 for i8, which has no bias or activation
/// then), _pad (rows padded, even if they are even or few) and _tile with the text of a tiling, where best_tiling is
/// not to choose. Nothing if it is no such name.
std::optional<NamedTensorProduct> parse_tensor_product(const std::string& name);

/// "128x128x32w64x64s4" (block, warp, stages; "..w64x64b8x2s1" with 8 matrices of a batch a block, two of them a warp)
/// or "128x192x64g2s4" (two warpgroups); then "c2" for clusters of two blocks, one under another, "c2x4" of two rows of
/// four, "u2" for two groups in turn, "k512" for sums of 512 terms in the unit, "p2" for two parts of k, "h4" for at
/// most four rows of blocks that walk together, where that is not the default, "r" for results that leave through
/// shared memory, and, behind warpgroups, "t" for instructions whose rows run along n.
std::string tiling_text(const ProductTiling& tiling);
/// Reads it. Nothing if it is no such text.
std::optional<ProductTiling> parse_tiling(const std::string& text);

/// Each operand and result once.
double bytes_of_product(const TensorProductShape& shape);
/// Terms of all rows together; of masked rows as if all were there.
double terms_of_rows(const TensorProductShape& shape);

}  // namespace tw::schedules
