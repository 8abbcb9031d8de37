#include "schedules/product.h"

#include <algorithm>

#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::schedules {

Product declare_product(const ProductShape& shape) {
    auto matrix = [](const char* name, int64_t rows, int64_t columns, int64_t stride) {
        return stride ? input(name, f32, {rows, columns}, {stride, 1}) : input(name, f32, {rows, columns});
    };
    Product p;
    p.a = shape.transpose_a ? matrix("a", shape.k, shape.m, shape.a_stride)
                            : matrix("a", shape.m, shape.k, shape.a_stride);
    p.b = shape.transpose_b ? matrix("b", shape.n, shape.k, shape.b_stride)
                            : matrix("b", shape.k, shape.n, shape.b_stride);
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

namespace {

constexpr int64_t shortest_part = 512;  // of k, for which its traffic pays

int64_t blocks_of(const ProductTiles& tiles, int64_t m, int64_t n) {
    return ((m + tiles.block_m - 1) / tiles.block_m) * ((n + tiles.block_n - 1) / tiles.block_n);
}

/// Whether at most a fifth of the places stays empty while so many blocks run, `wave` at a time.
bool fills_waves(int64_t blocks, int64_t wave) {
    int64_t waves = std::max<int64_t>((blocks + wave - 1) / wave, 1);
    return blocks * 5 >= waves * wave * 4;
}

}  // namespace

ProductTiles product_tiles(int64_t m, int64_t n, int64_t k, const Target& target) {
    const int64_t multiprocessors = std::max(target.multiprocessors, 1);
    ProductTiles large{.block_m = 128, .block_n = 128, .thread_m = 8, .thread_n = 16, .unroll_k = true};
    ProductTiles middle{.block_m = 128, .block_n = 64, .unroll_k = true};
    ProductTiles small{.block_m = 64, .block_n = 64, .thread_m = 8, .thread_n = 4, .stages = 4, .unroll_k = true};
    ProductTiles thin{.block_m = 16, .block_n = 16, .thread_m = 1, .thread_n = 1};
    ProductTiles tiles = small;
    if (blocks_of(middle, m, n) * 10 >= multiprocessors * 9) tiles = middle;
    for (int64_t split : {4, 2, 1}) {  // two large tiles fit on a multiprocessor
        if (!fills_waves(blocks_of(large, m, n) * split, 2 * multiprocessors)) continue;
        if (split > 1 && k / split < shortest_part) continue;
        tiles = large;
        tiles.split_k = split;
    }
    if (m <= 16 || n <= 16) tiles = thin;
    while (tiles.block_k > 4 && tiles.block_k / 2 >= k) tiles.block_k /= 2;
    int64_t blocks = std::max<int64_t>(blocks_of(tiles, m, n), 1);
    if (tiles.block_m < 128)
        tiles.split_k = std::clamp<int64_t>(2 * multiprocessors / blocks, 1, std::max<int64_t>(k / 128, 1));
    else if (blocks < 300 && tiles.block_n < 128 && k >= 1536) {  // long sums in less than a wave
        tiles.stages = tiles.split_k = 3;
    }
    return tiles;
}

namespace {

/// One side of the tile: block, repetitions, threads, and chunks of up to 4 neighbouring elements.
struct Side {
    Loop block, repeat, thread, chunk;
};

Side tile_side(Schedule& s, Loop loop, const std::string& name, int64_t block, int64_t per_thread) {
    int64_t chunk = std::min<int64_t>(per_thread, 4), threads = block / per_thread;
    auto [outer, inside] = s.split(loop, block, Tail::Mask, {"block_" + name, "tile_" + name});
    auto [repeat, part] = s.split(inside, threads * chunk, {"repeat_" + name, "part_" + name});
    auto [thread_loop, chunk_loop] = s.split(part, chunk, {"thread_" + name, name + "_inner"});
    return {outer, repeat, thread_loop, chunk_loop};
}

/// The loop over the parts of k, in the grid, and the stage that computes them; the sum of the parts is spread over
/// threads of its own.
std::pair<Stage, Loop> split_reduction(Schedule& s, const Tensor& c, const ProductTiles& tiles) {
    int64_t k = require_constant(s.extent(s.reduce(c))), steps = (k + tiles.block_k - 1) / tiles.block_k;
    int64_t chunk = (steps + tiles.split_k - 1) / tiles.split_k * tiles.block_k;
    auto [part, rest] = s.split(s.reduce(c), chunk, Tail::Mask, {"split_k", "k_in_split"});
    Stage parts = s.rfactor(c, part);
    auto [i, j] = s.loops<2>(c);
    auto [block, inside] = s.split(s.fuse(i, j, "all"), 128, Tail::Mask, {"block", "t"});
    s.bind(block, grid.x);
    s.bind(inside, thread);
    return {parts, part};
}

}  // namespace

void schedule_product(Schedule& s, const Tensor& c, const Tensor& a, const Tensor& b, const ProductTiles& tiles,
                      std::source_location where) {
    CalledFrom caller(where);
    auto [i, j] = s.loops<2>(c);
    Stage product = s[c];
    std::vector<Loop> order;
    if (tiles.split_k > 1) {
        auto [parts, part] = split_reduction(s, c, tiles);
        product = parts;
        order.push_back(part);
    }
    Side m = tile_side(s, i, "m", tiles.block_m, tiles.thread_m);
    Side n = tile_side(s, j, "n", tiles.block_n, tiles.thread_n);
    auto [ko, ki] = s.split(s.reduce(product), tiles.block_k, Tail::Mask, {"k_outer", "k_inner"});
    for (Loop loop : {m.block, n.block, m.thread, n.thread, ko, ki, m.repeat, m.chunk, n.repeat, n.chunk})
        order.push_back(loop);
    s.order(order);
    if (tiles.split_k > 1) s.bind(order[0], grid.z);
    s.bind(m.block, grid.y);
    s.bind(n.block, grid.x);
    s.bind(m.thread, thread);
    s.bind(n.thread, thread);
    s.stage(product, a, Memory::Shared, ko);
    s.stage(product, b, Memory::Shared, ko);
    if (tiles.stages > 1) s.pipeline(ko, {.stages = tiles.stages});
    if (tiles.unroll_k) s.unroll(ki);
    for (Loop loop : {m.repeat, m.chunk, n.repeat, n.chunk}) s.unroll(loop);
}

Schedule product_schedule(const Product& product, const Target& target, std::source_location where) {
    CalledFrom caller(where);
    Schedule s({product.c}, target);
    auto extent = [](const Expr& e) { return as_constant(e).value_or(4096); };
    const auto& shape = product.c.shape();
    Expr k = s.extent(s.reduce(product.c));
    ProductTiles tiles = product_tiles(extent(shape[0]), extent(shape[1]), extent(k), s.target());
    if (!as_constant(k)) tiles.split_k = 1;  // parts are of constant size
    schedule_product(s, product.c, product.a, product.b, tiles);
    return s;
}

}  // namespace tw::schedules
