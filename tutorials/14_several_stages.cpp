// Tutorial 14: kernels of several stages. What stands before a product, behind it, or beside it, in one kernel.
//
// An epilogue of tutorial 13 looks at one element. What needs more is a stage of its own, placed like any other: at()
// says how much of it is made, and when; set_memory() where it is kept meanwhile.
#include "tutorials/lesson.h"
#include "tutorials/roles_and_tiles.h"

using namespace tw;

namespace {

/// Rows of c = a b', each divided by the root of its mean square, times a weight.
struct Normalised {
    Tensor a, b, weight, c, squares, y;
};

Normalised normalised(int64_t m, int64_t n, int64_t k) {
    Normalised p{input("a", bf16, {m, k}), input("b", bf16, {n, k}), input("weight", f32, {n}), {}, {}, {}};
    Axis r = reduce_axis("k", k), t = reduce_axis("t", n);
    p.c = compute("c", {m, n}, [&](Expr i, Expr j) { return sum(cast(f32, p.a(i, r)) * cast(f32, p.b(j, r)), r); });
    p.squares = compute("squares", {m}, [&](Expr i) { return sum(p.c(i, t) * p.c(i, t), t); });
    p.y = compute("y", {m, n}, [&](Expr i, Expr j) {
        return cast(bf16, p.c(i, j) * rsqrt(p.squares(i) / static_cast<double>(n) + 1e-5) * p.weight(j));
    });
    return p;
}

/// One kernel: a block's rows of c stay in shared memory until each has been looked at twice, by one warp.
Schedule normalised_at_once(const Normalised& p, int blocks) {
    Schedule s({p.y}, target("sm_90a"));
    auto [i, j] = s.loops<2>(p.y);
    auto [bi, it] = s.split(i, 64, Tail::Mask, {"bi", "it"});
    auto [wi, row] = s.split(it, 16, {"wi", "row"});
    auto [jo, jl] = s.split(j, 32, {"jo", "jl"});
    s.order({bi, wi, row, jo, jl});
    s.persistent({bi}, {.blocks = blocks});
    s.bind(wi, warp);
    s.bind(jl, lane);
    s.at(p.squares, row);
    s.set_memory(p.squares, Memory::Registers);
    s.bind(s.split(s.reduce(p.squares), 32)[1], lane);  // summed by the lanes together
    s.at(p.c, bi);
    s.set_memory(p.c, Memory::Shared);
    auto [mi, nj] = s.loops<2>(p.c);
    auto [ko, ki] = s.split(s.reduce(p.c), 64, Tail::Mask, {"ko", "ki"});
    s.order({ko, mi, nj, ki});
    Stage as = s.stage(p.c, p.a, Memory::Shared, ko), bs = s.stage(p.c, p.b, Memory::Shared, ko);
    s.mma(p.c, wgmma, {.m = mi, .n = nj, .k = ki});
    s.pipeline(ko, {.stages = 3, .in_flight = 1});
    s.roles({{"load", warps(1), {}, {as, bs}}, {"math", warpgroups(1), {}, {p.y}}});
    return s;
}

/// A step back through a layer: the gradient of what went into a ReLU, that of the bias, and the largest magnitude,
/// which says how to scale the gradient to eight bits.
struct Backward {
    Product product;
    Tensor bias_gradient, largest;

    Backward(int64_t m, int64_t n, int64_t k) {
        Tensor hidden = input("hidden", bf16, {m, n});
        product = tw::product("gradient", m, n, k, [&](const Expr& sum, const Expr& i, const Expr& j) {
            return std::vector{cast(bf16, select(cast(f32, hidden(i, j)) > 0.0, sum, constant(f32, 0.0)))};
        });
        const Tensor& gradient = product.outputs[0];
        Axis r = reduce_axis("r", m), row = reduce_axis("row", m), column = reduce_axis("column", n);
        bias_gradient = compute("bias_gradient", {n}, [&](Expr j) { return sum(cast(f32, gradient(r, j)), r); });
        largest = compute("largest", {}, [&](const std::vector<Expr>&) {
            return reduce_max(abs(cast(f32, gradient(row, column))), {row, column});
        });
        product.outputs.insert(product.outputs.end(), {bias_gradient, largest});
    }
};

/// partial() makes parts of a reduction stages of their own. Those of a tile are placed behind it: at(parts, tile), and
/// read it where it is. All else is as before.
Schedule backward(const Backward& b, int blocks) {
    const Product& p = b.product;
    const Tensor& c = p.outputs[0];
    Schedule s(p.outputs, target("sm_90a"));
    Stage sums = s.rfactor(b.bias_gradient, s.split(s.reduce(b.bias_gradient), 128, Tail::Mask)[0]);
    Loop tile_rows = s.split(s.reduce(b.largest, 0), 128, Tail::Mask)[0];
    Loop tile_columns = s.split(s.reduce(b.largest, 1), 64, Tail::Mask)[0];
    Stage largest = s.rfactor(s.rfactor(b.largest, tile_rows), tile_columns);

    Tiles tiles = tiles_of(s, c, blocks);
    s.at(sums, tiles.tile);
    s.at(largest, tiles.tile);
    s.stage(c, Memory::Shared, tiles.tile);
    s.bind(s.split(s.reduce(sums), 32)[0], thread);  // 4 threads a column, neighbours of which read neighbours
    s.bind(s.loops<2>(sums)[1], thread);
    s.bind(s.split(s.reduce(largest, 0), 8)[1], warp);
    s.bind(s.split(s.reduce(largest, 1), 32)[1], lane);
    load_and_multiply(s, c, p.a, p.b, tiles.ko, tiles.unit, c);
    return s;
}

/// y = silu(gate) * up. Rows of b come in eights by turns, those of gates and of what they gate, so that both sums of
/// an element of y lie in registers of the same thread.
struct Gated {
    Tensor a, b, product, y;
};

Gated gated(int64_t m, int64_t columns, int64_t k) {
    Gated g{input("a", bf16, {m, k}), input("b", bf16, {2 * columns, k}), {}, {}};
    Axis r = reduce_axis("k", k);
    g.product = compute("product", {m, 2 * columns},
                        [&](Expr i, Expr j) { return sum(cast(f32, g.a(i, r)) * cast(f32, g.b(j, r)), r); });
    g.y = compute("y", {m, columns}, [&](Expr i, Expr j) {
        Expr gate = j / 8 * 16 + j % 8;
        return cast(bf16, silu(g.product(i, gate)) * g.product(i, gate + 8));
    });
    return g;
}

/// The product is a stage in registers: at() has it made for each tile of y, and the unit's loops are its own.
Schedule gated_in_registers(const Gated& g, int blocks) {
    Schedule s({g.y}, target("sm_90a"));
    auto [i, j] = s.loops<2>(g.y);
    auto [bi, it] = s.split(i, 128, Tail::Mask, {"bi", "it"});
    auto [bj, jt] = s.split(j, 64, Tail::Mask, {"bj", "jt"});
    auto [wi, mi] = s.split(it, 64, {"wi", "mi"});
    auto [eight, column] = s.split(jt, 8, {"eight", "column"});
    s.order({bi, bj, wi, mi, eight, column});
    s.persistent({bi, bj}, {.blocks = blocks});
    s.bind(wi, warpgroup);
    s.at(g.product, wi);
    s.set_memory(g.product, Memory::Registers);
    auto [pi, pj] = s.loops<2>(g.product);
    auto [ko, ki] = s.split(s.reduce(g.product), 64, Tail::Mask, {"ko", "ki"});
    s.order({ko, pi, pj, ki});
    load_and_multiply(s, g.product, g.a, g.b, ko, {.m = pi, .n = pj, .k = ki}, g.y);
    return s;
}

/// Blocks of 128 rows, each multiplied with one of several matrices: a layer of experts, its rows sorted by expert.
struct Experts {
    Tensor a, b, expert, y;
};

Experts experts(int64_t blocks, int64_t count, int64_t n, int64_t k) {
    Experts e{input("a", bf16, {blocks, 128, k}), input("b", bf16, {count, n, k}), input("expert", i32, {blocks}), {}};
    Axis r = reduce_axis("k", k);
    e.y = compute("y", {blocks, 128, n}, [&](Expr block, Expr i, Expr j) {
        return cast(bf16, sum(cast(f32, e.a(block, i, r)) * cast(f32, e.b(e.expert(block), j, r)), r));
    });
    return e;
}

/// The tile of b lies where an input tells, which stays the same below the loop over blocks: a box begins there.
Schedule by_expert(const Experts& e, int blocks) {
    Schedule s({e.y}, target("sm_90a"));
    auto [block, i, j] = s.loops<3>(e.y);
    auto [bj, nj] = s.split(j, 64, Tail::Mask, {"bj", "nj"});
    auto [wi, mi] = s.split(i, 64, {"wi", "mi"});
    auto [ko, ki] = s.split(s.reduce(e.y), 64, Tail::Mask, {"ko", "ki"});
    s.order({block, bj, wi, ko, mi, nj, ki});
    s.persistent({block, bj}, {.blocks = blocks});
    s.bind(wi, warpgroup);
    load_and_multiply(s, e.y, e.a, e.b, ko, {.m = mi, .n = nj, .k = ki}, e.y);
    return s;
}

/// z[b, i, j] = sum_k (x[b, i, k] * g[k]) * y[b, k, j], kept within 50 and below the diagonal.
struct Weighted {
    Tensor x, g, y, xg, z;
};

Weighted weighted(int64_t batches, int64_t rows, int64_t columns, int64_t terms) {
    Weighted w{input("x", bf16, {batches, rows, terms}),
               input("g", bf16, {terms}),
               input("y", bf16, {batches, terms, columns}),
               {},
               {}};
    // The unit multiplies two elements, so x * g is a tensor; it says where the rounding to bf16 happens.
    w.xg = compute("xg", {batches, rows, terms},
                   [&](Expr b, Expr i, Expr k) { return cast(bf16, cast(f32, w.x(b, i, k)) * cast(f32, w.g(k))); });
    Axis k = reduce_axis("k", terms);
    w.z = compute("z", {batches, rows, columns}, [&](Expr b, Expr i, Expr j) {
        Expr total = sum(cast(f32, w.xg(b, i, k)) * cast(f32, w.y(b, k, j)), k);
        return select(j <= i, min(max(total, -50.0), 50.0), constant(f32, 0.0));
    });
    return w;
}

/// One kernel: y arrives by TMA, tiles of x * g are made by those who multiply them.
Schedule fused(const Weighted& w, int blocks) {
    Schedule s({w.z}, target("sm_90a"));
    auto [b, i, j] = s.loops<3>(w.z);
    auto [bi, mi] = s.split(i, 64, Tail::Mask, {"bi", "mi"});
    auto [bj, nj] = s.split(j, 64, Tail::Mask, {"bj", "nj"});
    auto [wi, rows] = s.split(mi, 64, {"wi", "rows"});
    auto [ko, ki] = s.split(s.reduce(w.z), 64, Tail::Mask, {"ko", "ki"});
    s.order({b, bi, bj, wi, ko, rows, nj, ki});
    s.persistent({b, bi, bj}, {.blocks = blocks});
    s.bind(wi, warpgroup);
    s.at(w.xg, ko);
    s.set_memory(w.xg, Memory::Shared);
    Stage ys = s.stage(w.z, w.y, Memory::Shared, ko);
    s.mma(w.z, wgmma, {.m = rows, .n = nj, .k = ki});
    s.pipeline(ko, {.stages = 2});
    s.roles({{"load", warps(1), {}, {ys}}, {"math", warpgroups(1), {}, {w.z}}});
    return s;
}

}  // namespace

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "14. Kernels of several stages");
    const int64_t M = lesson.size(200, 4096), N = lesson.size(136, 4096), K = lesson.size(128, 4096);
    const int blocks = static_cast<int>(lesson.size(3, 0));  // 0: one for each multiprocessor
    const double flops = 2.0 * M * N * K;

    // What needs more of the result than an element is a stage, placed like any other. at(c, bi) has the product's tile
    // made for each block of rows; its loops are the instruction's, those of y the warps' and lanes', which need not
    // agree.
    lesson.say("An epilogue that looks at whole rows: root mean square normalisation, in the same kernel:");
    Normalised rows_of = normalised(M, 128, K);
    lesson.show(rows_of.y);
    Schedule at_once = normalised_at_once(rows_of, blocks);
    lesson.show(at_once);
    lesson.run(at_once, 2.0 * M * 128 * K, "normalised");

    // A tile need not be whole rows to be looked at: what is made of it is a part of a reduction.
    lesson.say("Column sums and the largest magnitude of the result, tile by tile, while each is there:");
    Backward step(M, N, K);
    lesson.show(step.bias_gradient);
    Schedule back = backward(step, blocks);
    lesson.show(back);
    lesson.run(back, flops, "gradient, its column sums, its largest magnitude");

    // Two sums for one result: the product is a stage of its own, which never leaves the registers.
    lesson.say("Gated pairs of columns (SwiGLU), y = silu(gate) * up:");
    const int64_t columns_of_y = lesson.size(72, 4096);
    Gated pairs = gated(M, columns_of_y, K);
    lesson.show(pairs.y);
    lesson.run(gated_in_registers(pairs, blocks), 4.0 * M * columns_of_y * K, "gated");

    lesson.say("A matrix for each block of rows, chosen by an input (a layer of experts):");
    Experts layer = experts(lesson.size(2, 64), 8, N, K);
    lesson.show(layer.y);
    Schedule chosen = by_expert(layer, blocks);
    lesson.run(chosen, 2.0 * 128 * lesson.size(2, 64) * N * K, "experts");
    lesson.show_lines(chosen, {"b_shared_map, ko"});

    // So far both factors were matrices as they lie in memory. One that is computed is a stage, and at() says how much
    // of it is made, and when: here the tile that one iteration multiplies. It never exists as a whole.
    lesson.say("A computation of one's own, in batches, with a factor that is computed on the way:");
    const int64_t rows = lesson.size(70, 4096), columns = lesson.size(88, 4096), terms = lesson.size(104, 4096);
    Weighted own = weighted(2, rows, columns, terms);
    lesson.show(own.z);
    Schedule one_kernel = fused(own, blocks);
    lesson.show(one_kernel);
    lesson.run(one_kernel, 2.0 * 2 * rows * columns * terms, "one kernel");
    lesson.say("Both factors are laid out for the instruction, whoever fills them:");
    lesson.show_notes(one_kernel, {"xg: ", "y_shared: "});
    lesson.say("Written as one formula, with x * g inside the sum, it is refused, and the message says what to do:");
    lesson.show_error([&] {
        Axis k = reduce_axis("k", 64);
        Tensor x = input("x", bf16, {64, 64}), g = input("g", bf16, {64}), y = input("y", bf16, {64, 64});
        Tensor z = compute("z", {64, 64}, [&](Expr i, Expr j) {
            return sum(cast(f32, x(i, k)) * cast(f32, g(k)) * cast(f32, y(k, j)), k);
        });
        Schedule s({z}, target("sm_90a"));
        auto [i, j] = s.loops<2>(z);
        auto [ko, ki] = s.split(s.reduce(z), 16, {"ko", "ki"});
        s.order({ko, i, j, ki});
        s.mma(z, wgmma, {.m = i, .n = j, .k = ki});
    });
    return lesson.finish();
}
