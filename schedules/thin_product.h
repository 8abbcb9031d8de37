// Products of a matrix and few vectors: threads read the matrix once, and no tensor core is asked.
#pragma once
#include <optional>
#include <vector>

#include "schedules/product.h"
#include "schedules/tensor_product.h"

namespace tw::schedules {

constexpr int64_t most_vectors = 16;  ///< rows of a, or columns of b, beside a matrix that is read once

/// Whether one side of the product is so short that reading the other operand is all there is to do, and threads can
/// sum its terms: not where a tile's sums are operands of the result, nor where rows decide what they read.
bool is_thin(const TensorProductShape& shape);

/// Tiles that may suit the extents and the layout of the long operand, one at least.
std::vector<ThinTiles> thin_choices(const TensorProductShape& shape, const Target& target);
/// Those of them that the model expects to be the fastest.
ThinTiles thin_tiles(const TensorProductShape& shape, const Target& target);
/// The same of f32; nothing if it is not thin, or tiles of threads (product_tiles.h) take less by the models.
std::optional<ThinTiles> thin_tiles(const ProductShape& shape, const Target& target);
/// The model's clock cycles of the whole product.
double predicted_cycles(const ThinTiles& tiles, const TensorProductShape& shape, const Target& target);

}  // namespace tw::schedules
