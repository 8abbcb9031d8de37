// Tiles of f32 products on SIMT cores: by name, and by a model of the time.
#pragma once
#include <optional>
#include <string>

#include "schedules/product.h"

namespace tw::schedules {

/// "128x128x16t8x16c1s2b2p4": block_m, block_n and block_k, thread_m and thread_n, chunk_n unless it is 4, stages, and,
/// unless they are one, the blocks side by side and the parts of k.
std::string tiling_text(const ProductTiles& tiles);
/// Reads it. Nothing if it is no such text.
std::optional<ProductTiles> parse_product_tiles(const std::string& text);

/// Seconds that the product takes by a model of the time: rounds of blocks over all multiprocessors x (cycles of
/// multiply-adds, of reads of shared memory and of copies into it), at least what the bytes take; and the second kernel
/// that sums the parts of k. INFINITY where no block fits. Its constants are fitted to times of an H200
/// (tests/schedules/measured_threads.txt, measured_copies.txt, measured_large.txt, measured_alone.txt; docs/performance.md).
double seconds_of(const ProductTiles& tiles, const ProductShape& shape, const Target& target);

}  // namespace tw::schedules
