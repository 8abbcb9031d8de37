#include "schedules/product.h"

#include <numeric>

#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "schedules/choose.h"
#include "schedules/require_sizes.h"
#include "schedules/sum_of_parts.h"
#include "schedules/take_steps.h"
#include "schedules/unit_product.h"
#include "support/error.h"

namespace tw::schedules {

Product declare_product(const ProductShape& shape) {
    auto matrix = [](const char* name, int64_t rows, int64_t columns, int64_t stride) {
        return stride ? input(name, f32, {rows, columns}, {stride, 1}) : input(name, f32, {rows, columns});
    };
    Product p;
    p.shape = shape;
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

/// Whether zeros in the place of both elements leave what is reduced as it is: a product's, which is added.
bool is_spared_by_zeros(const Tensor& c) {
    const Reduce* reduction = only_reduction(c.operation()->outputs[0].body);
    if (!reduction || atomic_operation(*reduction->reducer) != BinaryOp::Add) return false;
    const Binary* times = reduction->values[0].as<Binary>();
    return times && times->op == BinaryOp::Mul;
}

/// One side of the tile: block, repetitions, threads, and chunks of neighbouring elements.
struct Side {
    Loop block, repeat, thread, chunk;
};

Side tile_side(Schedule& s, Loop loop, const std::string& name, int64_t block, int64_t per_thread, int64_t most) {
    const int64_t chunk = std::gcd(per_thread, most), threads = block / per_thread;
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
    schedule_sum_of_parts(s, c, (k + chunk - 1) / chunk);
    return {parts, part};
}

}  // namespace

void schedule_product(Schedule& s, const Tensor& c, const Tensor& a, const Tensor& b, const ProductTiles& tiles,
                      std::source_location where) {
    CalledFrom caller(where);
    require_sizes("product tiles",
                  {{"block_m", tiles.block_m},
                   {"block_n", tiles.block_n},
                   {"block_k", tiles.block_k},
                   {"thread_m", tiles.thread_m},
                   {"thread_n", tiles.thread_n},
                   {"stages", tiles.stages},
                   {"split_k", tiles.split_k},
                   {"blocks", tiles.blocks},
                   {"chunk_n", tiles.chunk_n}},
                  where);
    std::vector<Loop> outer = s.data_loops(c);
    const Loop i = outer[outer.size() - 2], j = outer.back();
    outer.resize(outer.size() - 2);
    Stage product = s[c];
    if (tiles.split_k > 1) {
        auto [parts, part] = split_reduction(s, c, tiles);
        product = parts;
        outer.insert(outer.begin(), part);
    }
    Side m = tile_side(s, i, "m", tiles.block_m, tiles.thread_m, 4);
    Side n = tile_side(s, j, "n", tiles.block_n, tiles.thread_n, tiles.chunk_n);
    const Loop k = s.reduce(product);
    const int64_t left_over = as_constant(s.extent(k)).value_or(0) % tiles.block_k;
    auto [ko, ki] = s.split(k, tiles.block_k, Tail::Mask, {"k_outer", "k_inner"});
    std::vector<Loop> order = outer;
    for (Loop loop : {m.block, n.block, m.thread, n.thread, ko, ki, m.repeat, m.chunk, n.repeat, n.chunk})
        order.push_back(loop);
    s.order(order);
    if (!outer.empty()) s.bind(outer.size() > 1 ? s.fuse(outer, "matrix") : outer[0], grid.z);
    s.bind(m.block, grid.y);
    s.bind(n.block, grid.x);
    s.bind(m.thread, thread);
    s.bind(n.thread, thread);
    s.stage(product, a, Memory::Shared, ko);
    s.stage(product, b, Memory::Shared, ko);
    if (tiles.stages > 1) s.pipeline(ko, {.stages = tiles.stages});
    if (tiles.blocks > 1) s.occupancy(product, tiles.blocks);
    if (tiles.unroll_k) s.unroll(ki);
    for (Loop loop : {m.repeat, m.chunk, n.repeat, n.chunk}) s.unroll(loop);
    // Otherwise each term of each step asks whether it is one.
    const bool has_whole_steps = as_constant(s.extent(ko)).value_or(0) > 1;
    if (tiles.split_k == 1 && left_over > 0 && has_whole_steps && !is_spared_by_zeros(c))
        take_steps(s, product, [&](Schedule& trial) { trial.cut(ko, where_partial(product)); });
}

Schedule product_schedule(const Product& product, const Target& target, const std::optional<ProductTiles>& tiles,
                          std::source_location where) {
    CalledFrom caller(where);
    if (!tiles) return choose_schedule({product.c}, target);
    Schedule s({product.c}, target);
    schedule_product(s, product.c, product.a, product.b, *tiles);
    return s;
}

}  // namespace tw::schedules
