#include "dsl/four_bits.h"
#include "tests/unknown/computations.h"

namespace tw::unknown {
namespace {

Expr product(const Expr& a, const Expr& b) { return cast(f32, a) * cast(f32, b); }

}  // namespace

std::vector<Tensor> squared_distances(int64_t m, int64_t n, int64_t k) {
    Tensor a = input("a", f32, {m, k}), b = input("b", f32, {n, k});
    Axis c = reduce_axis("c", k);
    return {compute("d", {m, n}, [&](Expr i, Expr j) {
        Expr difference = a(i, c) - b(j, c);
        return sum(difference * difference, c);
    })};
}

std::vector<Tensor> shortest_paths(int64_t m, int64_t n, int64_t k) {
    Tensor a = input("a", f32, {m, k}), b = input("b", f32, {k, n});
    Axis via = reduce_axis("via", k);
    return {compute("c", {m, n}, [&](Expr i, Expr j) { return reduce_min(a(i, via) + b(via, j), via); })};
}

std::vector<Tensor> complex_product(int64_t m, int64_t n, int64_t k) {
    Tensor ar = input("ar", bf16, {m, k}), ai = input("ai", bf16, {m, k});
    Tensor br = input("br", bf16, {k, n}), bi = input("bi", bf16, {k, n});
    Axis t = reduce_axis("t", k);
    Tensor real = compute("real", {m, n}, [&](Expr i, Expr j) {
        return sum(product(ar(i, t), br(t, j)) - product(ai(i, t), bi(t, j)), t);
    });
    Tensor imaginary = compute("imaginary", {m, n}, [&](Expr i, Expr j) {
        return sum(product(ar(i, t), bi(t, j)) + product(ai(i, t), br(t, j)), t);
    });
    return {real, imaginary};
}

std::vector<Tensor> similarity_matrix(int64_t m, int64_t n, int64_t k) {
    Tensor a = input("a", bf16, {m, k}), b = input("b", bf16, {n, k});
    Axis t = reduce_axis("t", k);
    auto inverse_length = [&](const char* name, const Tensor& rows) {
        return compute(name, {rows.shape()[0]}, [&](Expr i) { return rsqrt(sum(product(rows(i, t), rows(i, t)), t)); });
    };
    Tensor of_a = inverse_length("inverse_a", a), of_b = inverse_length("inverse_b", b);
    return {
        compute("c", {m, n}, [&](Expr i, Expr j) { return sum(product(a(i, t), b(j, t)), t) * of_a(i) * of_b(j); })};
}

std::vector<Tensor> chain_of_three(int64_t batch, int64_t i, int64_t k, int64_t j, int64_t l) {
    Tensor x = input("u", bf16, {batch, i, k}), v = input("v", bf16, {batch, k, j}),
           w = input("w", bf16, {batch, j, l});
    return {einsum("y", "bik,bkj,bjl->bil", {x, v, w})};
}

std::vector<Tensor> low_rank(int64_t batch, int64_t i, int64_t k, int64_t r, int64_t o) {
    Tensor x = input("u", bf16, {batch, i, k}), down = input("down", bf16, {r, k}), up = input("up", bf16, {o, r});
    return {einsum("y", "bik,rk,or->bio", {x, down, up})};
}

std::vector<Tensor> four_bit_product(int64_t m, int64_t n, int64_t k, int64_t group) {
    Tensor x = input("u", bf16, {m, k}), packed = input("packed", u8, {n, k / 2}),
           scale = input("scale", bf16, {n, k / group});
    Tensor w = compute("w", {n, k}, [&](Expr j, Expr t) {
        return cast(bf16, (cast(f32, u4(packed, {j, t})) - 8) * cast(f32, scale(j, t / group)));
    });
    Axis t = reduce_axis("t", k);
    return {compute("y", {m, n}, [&](Expr i, Expr j) { return cast(bf16, sum(product(x(i, t), w(j, t)), t)); })};
}

std::vector<Tensor> block_sparse_product(int64_t rows_of_blocks, int64_t stored, int64_t block, int64_t k, int64_t n) {
    Tensor values = input("values", bf16, {rows_of_blocks, stored, block, block}),
           places = input("places", i32, {rows_of_blocks, stored}), x = input("u", bf16, {k, n});
    Axis s = reduce_axis("s", stored), t = reduce_axis("t", block);
    return {compute("y", {rows_of_blocks * block, n}, [&](Expr i, Expr j) {
        Expr row = i / block;
        return cast(bf16,
                    sum(product(values(row, s, i % block, t), x(cast(i64, places(row, s)) * block + t, j)), {s, t}));
    })};
}

std::vector<Tensor> lstm_cell(int64_t batch, int64_t inputs, int64_t hidden) {
    Tensor x = input("u", bf16, {batch, inputs}), h = input("h", bf16, {batch, hidden}),
           c = input("c", f32, {batch, hidden});
    Tensor w = input("w", bf16, {4 * hidden, inputs}), r = input("r", bf16, {4 * hidden, hidden}),
           bias = input("bias", f32, {4 * hidden});
    Axis k = reduce_axis("k", inputs), l = reduce_axis("l", hidden);
    Tensor gates = compute("gates", {batch, 4 * hidden}, [&](Expr b, Expr g) {
        return sum(product(x(b, k), w(g, k)), k) + sum(product(h(b, l), r(g, l)), l) + bias(g);
    });
    Tensor cell = compute("cell", {batch, hidden}, [&](Expr b, Expr j) {
        Expr in = sigmoid(gates(b, j)), forget = sigmoid(gates(b, j + hidden)), fresh = tanh(gates(b, j + 2 * hidden));
        return forget * c(b, j) + in * fresh;
    });
    Tensor next = compute("next", {batch, hidden}, [&](Expr b, Expr j) {
        return cast(bf16, sigmoid(gates(b, j + 3 * hidden)) * tanh(cell(b, j)));
    });
    return {next, cell};
}

}  // namespace tw::unknown
