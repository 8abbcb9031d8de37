// Matrix products on SIMT cores: block tiles in shared memory, register tiles in threads.
#pragma once
#include <optional>

#include "dsl/schedule.h"

namespace tw::schedules {

/// c[m, n] = alpha * sum_k a[m, k] * b[k, n] + beta * c_in[m, n], all f32; a and b may be stored transposed.
struct ProductShape {
    int64_t m, n, k;
    bool transpose_a = false;  ///< a is stored [k, m]
    bool transpose_b = false;  ///< b is stored [n, k]
    bool add_c = false;        ///< reads c_in and beta; alpha is a parameter too
    int64_t a_stride = 0;      ///< elements between stored rows, 0 for dense
    int64_t b_stride = 0;
    int64_t a_row = 0;  ///< elements of a stored row, of which the first are multiplied; 0 for all
    int64_t b_row = 0;
    int64_t batch = 1;  ///< so many pairs of matrices, each with a result of its own
    bool has_parts = true;  ///< blocks may share k: not where a named size decides how long it is

    bool operator==(const ProductShape&) const = default;
};
/// How many elements a stored row has.
int64_t row_of_a(const ProductShape& shape);
int64_t row_of_b(const ProductShape& shape);
struct Product {
    ProductShape shape;
    Tensor a, b, c_in, c;  ///< c_in is undefined without add_c
    Expr alpha, beta;
};
Product declare_product(const ProductShape& shape);

/// Sizes of the tiles; block_m / thread_m * block_n / thread_n threads a block.
struct ProductTiles {
    int64_t block_m = 128, block_n = 128, block_k = 16;
    int64_t thread_m = 8, thread_n = 8;
    int stages = 2;         ///< of the pipeline over k
    bool unroll_k = false;  ///< all block_k steps of a tile
    int64_t split_k = 1;    ///< parts of k, each by blocks of its own; a second kernel adds them in order
    int blocks = 1;         ///< side by side on a multiprocessor: a thread has its share of the registers
    int64_t chunk_n = 4;    ///< columns of a thread that lie side by side, if they divide its columns
};
/// Those of product_space (schedules/product_space.h) that take least by a model of the time (seconds_of in
/// schedules/product_tiles.h), of a thread at most so many sums.
ProductTiles product_tiles(const ProductShape& shape, const Target& target, int64_t most_sums = 128);

/// Schedules any reduction with one reduce axis whose terms are made of an element of `a` and one of `b`: `c` over
/// (m, n), or over (others.., m, n), where blocks take a pair of matrices each.
/// Extents need not divide; thread_m divides block_m and thread_n block_n. Each thread computes thread_m x thread_n
/// elements as chunks of 4, so that shared reads are 16 bytes wide and free of bank conflicts (the layout that CUTLASS
/// calls SIMT warp tiles, without its warp level). Of columns that are not aligned to 16 bytes, smaller chunks leave
/// together with those of a thread's neighbours.
void schedule_product(Schedule& s, const Tensor& c, const Tensor& a, const Tensor& b, const ProductTiles& tiles,
                      TW_HERE);

/// The product, scheduled with these tiles, or as choose_schedule() does: outputs() may read copies of operands then.
Schedule product_schedule(const Product& product, const Target& target, const std::optional<ProductTiles>& tiles = {},
                          TW_HERE);

}  // namespace tw::schedules
