#include "schedules/product.h"

#include <algorithm>

#include "dsl/simplify.h"

namespace tw::schedules {

Product declare_product(const ProductShape& shape) {
    auto matrix = [](const char* name, int64_t rows, int64_t columns, int64_t stride) {
        return stride ? input(name, f32, {rows, columns}, {stride, 1}) : input(name, f32, {rows, columns});
    };
    Product p;
    p.a = shape.transpose_a ? matrix("a", shape.k, shape.m, shape.a_stride) : matrix("a", shape.m, shape.k, shape.a_stride);
    p.b = shape.transpose_b ? matrix("b", shape.n, shape.k, shape.b_stride) : matrix("b", shape.k, shape.n, shape.b_stride);
    Axis k = reduce_axis("k", shape.k);
    auto product = [&](const Expr& i, const Expr& j) {
        Expr left = shape.transpose_a ? p.a(k.variable, i) : p.a(i, k.variable);
        Expr right = shape.transpose_b ? p.b(j, k.variable) : p.b(k.variable, j);
        return sum(left * right, k);
    };
    if (!shape.add_c) {
        p.c = compute("c", {shape.m, shape.n}, [&](Expr i, Expr j) { return product(i, j); });
        return p;
    }
    p.alpha = scalar("alpha", f32);
    p.beta = scalar("beta", f32);
    p.c_in = input("c_in", f32, {shape.m, shape.n});
    p.c = compute("c", {shape.m, shape.n},
                  [&](Expr i, Expr j) { return p.alpha * product(i, j) + p.beta * p.c_in(i, j); });
    return p;
}

ProductTiles product_tiles(int64_t m, int64_t n, int64_t k) {
    ProductTiles tiles;
    int64_t large_tiles = ((m + 127) / 128) * ((n + 127) / 128);
    if (large_tiles < 100) tiles = {.block_m = 64, .block_n = 64, .block_k = 16, .thread_m = 4, .thread_n = 4};
    if (m <= 16 || n <= 16) tiles = {.block_m = 16, .block_n = 16, .block_k = 16, .thread_m = 1, .thread_n = 1};
    while (tiles.block_k > 4 && tiles.block_k / 2 >= k) tiles.block_k /= 2;
    return tiles;
}

namespace {

/// One side of the tile: block, repetitions, threads, and chunks of up to 4 neighbouring elements.
struct Side {
    Loop block, repeat, thread, chunk;
};

Side tile_side(Schedule& s, Loop loop, int64_t block, int64_t per_thread) {
    int64_t chunk = std::min<int64_t>(per_thread, 4), threads = block / per_thread;
    auto [outer, inside] = s.split(loop, block, Tail::Mask);
    auto [repeat, part] = s.split(inside, threads * chunk);
    auto [thread_loop, chunk_loop] = s.split(part, chunk);
    return {outer, repeat, thread_loop, chunk_loop};
}

}  // namespace

void schedule_product(Schedule& s, const Tensor& c, const Tensor& a, const Tensor& b, const ProductTiles& tiles) {
    auto [i, j] = s.loops<2>(c);
    Side m = tile_side(s, i, tiles.block_m, tiles.thread_m);
    Side n = tile_side(s, j, tiles.block_n, tiles.thread_n);
    auto [ko, ki] = s.split(s.reduce(c), tiles.block_k, Tail::Mask);
    s.order({m.block, n.block, m.thread, n.thread, ko, ki, m.repeat, m.chunk, n.repeat, n.chunk});
    s.bind(m.block, grid.y);
    s.bind(n.block, grid.x);
    s.bind(m.thread, thread);
    s.bind(n.thread, thread);
    s.stage(c, a, Memory::Shared, ko);
    s.stage(c, b, Memory::Shared, ko);
    for (Loop loop : {m.repeat, m.chunk, n.repeat, n.chunk}) s.unroll(loop);
}

Schedule product_schedule(const Product& product, const Target& target) {
    Schedule s({product.c}, target);
    auto extent = [](const Expr& e) { return as_constant(e).value_or(4096); };
    const auto& shape = product.c.shape();
    int64_t k = extent(product.a.shape()[0]) == extent(shape[0]) ? extent(product.a.shape()[1]) : extent(product.a.shape()[0]);
    schedule_product(s, product.c, product.a, product.b, product_tiles(extent(shape[0]), extent(shape[1]), k));
    return s;
}

}  // namespace tw::schedules
