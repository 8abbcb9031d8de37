#include "dsl/declare_scan.h"
#include "tests/unknown/computations.h"

namespace tw::unknown {
namespace {

Expr wide(const Expr& e) { return cast(f32, e); }

}  // namespace

std::vector<Tensor> odd_product(int64_t m, int64_t n, int64_t k) {
    Tensor a = input("a", bf16, {m, k}), b = input("b", bf16, {n, k}), bias = input("bias", bf16, {n});
    Axis t = reduce_axis("t", k);
    return {compute("c", {m, n}, [&](Expr i, Expr j) {
        return cast(bf16, max(sum(wide(a(i, t)) * wide(b(j, t)), t) + wide(bias(j)), 0.0));
    })};
}

std::vector<Tensor> gram_matrix(int64_t rows, int64_t columns) {
    Tensor a = input("a", bf16, {rows, columns});
    Axis k = reduce_axis("k", columns);
    return {compute("g", {rows, rows}, [&](Expr i, Expr j) { return sum(wide(a(i, k)) * wide(a(j, k)), k); })};
}

std::vector<Tensor> gram_of_channels(int64_t images, int64_t channels, int64_t height, int64_t width) {
    Tensor u = input("u", bf16, {images, channels, height, width});
    Axis p = reduce_axis("p", height), q = reduce_axis("q", width);
    return {compute("g", {images, channels, channels}, [&](Expr n, Expr c, Expr d) {
        return sum(wide(u(n, c, p, q)) * wide(u(n, d, p, q)), {p, q}) / double(height * width);
    })};
}

std::vector<Tensor> covariance(int64_t samples, int64_t variables) {
    Tensor u = input("u", f32, {samples, variables});
    Axis s = reduce_axis("s", samples), t = reduce_axis("t", samples);
    Tensor mean = compute("mean", {variables}, [&](Expr i) { return sum(u(s, i), s) / double(samples); });
    return {compute("c", {variables, variables}, [&](Expr i, Expr j) {
        return sum((u(t, i) - mean(i)) * (u(t, j) - mean(j)), t) / double(samples - 1);
    })};
}

std::vector<Tensor> eight_bit_product(int64_t m, int64_t n, int64_t k) {
    Tensor u = input("u", bf16, {m, k}), w = input("w", i8, {n, k}), scale = input("scale", f32, {n});
    Axis t = reduce_axis("t", k);
    return {compute("y", {m, n},
                    [&](Expr i, Expr j) { return cast(bf16, sum(wide(u(i, t)) * wide(w(j, t)), t) * scale(j)); })};
}

std::vector<Tensor> gathered_product(int64_t tokens, int64_t words, int64_t k, int64_t n) {
    Tensor table = input("table", bf16, {words, k}), ids = input("ids", i32, {tokens}), w = input("w", bf16, {n, k});
    Axis t = reduce_axis("t", k);
    return {compute("y", {tokens, n},
                    [&](Expr i, Expr j) { return cast(bf16, sum(wide(table(ids(i), t)) * wide(w(j, t)), t)); })};
}

std::vector<Tensor> gathered_experts(int64_t blocks, int64_t experts, int64_t k, int64_t n) {
    const int64_t tokens = blocks * 128;
    Tensor u = input("u", bf16, {tokens, k}), ids = input("ids", i32, {tokens}),
           expert = input("expert", i32, {blocks}), w = input("w", bf16, {experts, k, n});
    Axis t = reduce_axis("t", k);
    return {compute("y", {tokens, n}, [&](Expr i, Expr j) {
        return cast(bf16, sum(wide(u(ids(i), t)) * wide(w(expert(i / 128), t, j)), t));
    })};
}

std::vector<Tensor> few_rows_each(int64_t batch, int64_t rows, int64_t k, int64_t n) {
    Tensor u = input("u", bf16, {batch, rows, k}), w = input("w", bf16, {n, k}), bias = input("bias", f32, {n});
    Axis t = reduce_axis("t", k);
    return {compute("y", {batch, rows, n}, [&](Expr b, Expr i, Expr j) {
        return cast(bf16, sum(wide(u(b, i, t)) * wide(w(j, t)), t) + bias(j));
    })};
}

std::vector<Tensor> mixed_channels(int64_t images, int64_t channels, int64_t height, int64_t width, int64_t made) {
    Tensor u = input("u", bf16, {images, channels, height, width}), w = input("w", bf16, {made, channels});
    Axis c = reduce_axis("c", channels);
    return {compute("y", {images, made, height, width}, [&](Expr n, Expr o, Expr p, Expr q) {
        return cast(bf16, sum(wide(w(o, c)) * wide(u(n, c, p, q)), c));
    })};
}

std::vector<Tensor> three_matrices(int64_t i, int64_t k, int64_t l, int64_t j) {
    Tensor u = input("u", f32, {i, k}), v = input("v", f32, {k, l}), w = input("w", f32, {l, j});
    Axis p = reduce_axis("p", k), q = reduce_axis("q", l);
    return {compute("y", {i, j}, [&](Expr a, Expr b) { return sum(u(a, p) * v(p, q) * w(q, b), {p, q}); })};
}

std::vector<Tensor> softmax_between(int64_t groups, int64_t rows, int64_t columns) {
    Tensor u = input("u", bf16, {groups, rows, columns});
    Axis k = reduce_axis("k", rows);
    Tensor most = compute("most", {groups, columns}, [&](Expr g, Expr j) { return reduce_max(wide(u(g, k, j)), k); });
    Tensor total =
        compute("total", {groups, columns}, [&](Expr g, Expr j) { return sum(exp(wide(u(g, k, j)) - most(g, j)), k); });
    return {compute("y", {groups, rows, columns}, [&](Expr g, Expr i, Expr j) {
        return cast(bf16, exp(wide(u(g, i, j)) - most(g, j)) / total(g, j));
    })};
}

std::vector<Tensor> norm_of_channels(int64_t images, int64_t channels, int64_t height, int64_t width) {
    Tensor x = input("x", bf16, {images, channels, height, width}), gain = input("gain", f32, {channels}),
           bias = input("bias", f32, {channels});
    Axis k = reduce_axis("k", channels), l = reduce_axis("l", channels);
    Tensor mean = compute("mean", {images, height, width}, [&](Expr n, Expr h, Expr w) {
        return sum(wide(x(n, k, h, w)), k) / double(channels);
    });
    Tensor variance = compute("variance", {images, height, width}, [&](Expr n, Expr h, Expr w) {
        Expr off = wide(x(n, l, h, w)) - mean(n, h, w);
        return sum(off * off, l) / double(channels);
    });
    Tensor y = compute("y", {images, channels, height, width}, [&](Expr n, Expr c, Expr h, Expr w) {
        Expr off = wide(x(n, c, h, w)) - mean(n, h, w);
        return cast(bf16, off * rsqrt(variance(n, h, w) + 1e-5) * gain(c) + bias(c));
    });
    return {y, mean};
}

std::vector<Tensor> means_between(int64_t groups, int64_t rows, int64_t columns) {
    Tensor u = input("u", bf16, {groups, rows, columns});
    Axis k = reduce_axis("k", rows);
    return {compute("y", {groups, columns}, [&](Expr g, Expr j) { return sum(wide(u(g, k, j)), k) / double(rows); })};
}

std::vector<Tensor> sums_along_time(int64_t series, int64_t times, int64_t channels) {
    Tensor u = input("u", f32, {series, times, channels});
    Axis t = reduce_axis("t", times);
    return {compute("y", {series, times, channels},
                    [&](Expr b, Expr now, Expr c) { return scan(sum, u(b, t, c), t, now); })};
}

std::vector<Tensor> symmetric_part(int64_t n) {
    Tensor u = input("u", f32, {n, n});
    return {compute("y", {n, n}, [&](Expr i, Expr j) { return 0.5 * (u(i, j) + u(j, i)); })};
}

std::vector<Tensor> gaussian_sums(int64_t queries, int64_t points) {
    Tensor q = input("q", f32, {queries}), p = input("p", f32, {points}), w = input("w", f32, {points});
    Axis j = reduce_axis("j", points);
    return {compute("y", {queries}, [&](Expr i) {
        Expr apart = q(i) - p(j);
        return sum(w(j) * exp(-(apart * apart)), j);
    })};
}

std::vector<Tensor> histogram(int64_t numbers, int64_t bins) {
    Tensor u = input("u", i32, {numbers});
    Axis k = reduce_axis("k", numbers);
    return {compute("y", {bins}, [&](Expr b) { return sum(cast(i32, u(k) == b), k); })};
}

std::vector<Tensor> largest_of_segments(int64_t rows, int64_t segments, int64_t columns) {
    Tensor u = input("u", f32, {rows, columns}), ids = input("ids", i32, {rows});
    Axis r = reduce_axis("r", rows);
    return {compute("y", {segments, columns},
                    [&](Expr s, Expr j) { return reduce_max(select(ids(r) == cast(i32, s), u(r, j), -infinity), r); })};
}

}  // namespace tw::unknown
