// What tilings of f32 products on SIMT cores there are, and what their blocks need.
#pragma once
#include <vector>

#include "schedules/product.h"

namespace tw::schedules {

/// How an operand comes into shared memory.
struct OperandWay {
    bool wide;        ///< 16 bytes at once
    bool transposed;  ///< stored with its neighbours in different rows

    bool asynchronous() const { return wide && !transposed; }
};
struct OperandWays {
    OperandWay a, b;
};
OperandWays ways_of(const ProductTiles& tiles, const ProductShape& shape);

/// Of a block.
int64_t threads_of(const ProductTiles& tiles);
/// An estimate of a thread's registers: sums, operands of two steps, what is on its way, and addresses.
int64_t registers_wanted(const ProductTiles& tiles, const ProductShape& shape);
/// What a thread has of them beside so many blocks.
int64_t registers_given(const ProductTiles& tiles, const Target& target);
/// Blocks for which a multiprocessor has threads and shared memory; 0 where one needs too much.
int64_t most_blocks(const ProductTiles& tiles, const Target& target);

/// Tilings that the rule takes one of, and that are worth to be measured: each with the most blocks side by side that
/// its registers allow, as values that leave these cost up to half of the time. Never empty.
std::vector<ProductTiles> product_space(const ProductShape& shape, const Target& target);

}  // namespace tw::schedules
