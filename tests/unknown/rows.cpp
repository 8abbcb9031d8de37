#include "dsl/declare_scan.h"
#include "tests/unknown/computations.h"

namespace tw::unknown {

std::vector<Tensor> mean_within(int64_t rows, int64_t columns) {
    Tensor x = input("u", f32, {rows, columns}), low = input("low", f32, {rows}), high = input("high", f32, {rows});
    Axis k = reduce_axis("k", columns);
    return {compute("y", {rows}, [&](Expr i) {
        Expr counts = low(i) <= x(i, k) && x(i, k) <= high(i);
        return sum(select(counts, x(i, k), 0), k) / max(sum(select(counts, constant(f32, 1.0), 0), k), 1);
    })};
}

std::vector<Tensor> mean_without_extremes(int64_t rows, int64_t columns) {
    Tensor x = input("u", f32, {rows, columns});
    Axis k = reduce_axis("k", columns);
    return {compute("y", {rows}, [&](Expr i) {
        return (sum(x(i, k), k) - reduce_min(x(i, k), k) - reduce_max(x(i, k), k)) / double(columns - 2);
    })};
}

std::vector<Tensor> cosines(int64_t rows, int64_t columns) {
    Tensor a = input("a", bf16, {rows, columns}), b = input("b", bf16, {rows, columns});
    Axis k = reduce_axis("k", columns);
    return {compute("y", {rows}, [&](Expr i) {
        Expr l = cast(f32, a(i, k)), r = cast(f32, b(i, k));
        return sum(l * r, k) / (sqrt(sum(l * l, k)) * sqrt(sum(r * r, k)));
    })};
}

std::vector<Tensor> best_expert(int64_t tokens, int64_t experts) {
    Tensor score = input("score", f32, {tokens, experts});
    Axis e = reduce_axis("e", experts);
    std::vector<Tensor> best = compute_tuple("best", {"highest", "expert"}, {tokens},
                                             [&](const std::vector<Expr>& i) { return argmax(score(i[0], e), e); });
    Tensor weight = compute("weight", {tokens}, [&](Expr i) { return 1.0 / sum(exp(score(i, e) - best[0](i)), e); });
    return {best[0], best[1], weight};
}

std::vector<Tensor> quantised_groups(int64_t rows, int64_t columns, int64_t group) {
    Tensor x = input("u", bf16, {rows, columns});
    Axis e = reduce_axis("e", group);
    Tensor scale = compute("scale", {rows, columns / group}, [&](Expr i, Expr g) {
        return max(reduce_max(abs(cast(f32, x(i, g * group + e))), e) / 127.0, 1e-12);
    });
    Tensor q = compute("q", {rows, columns},
                       [&](Expr i, Expr j) { return cast(i8, round(cast(f32, x(i, j)) / scale(i, j / group))); });
    return {q, scale};
}

std::vector<Tensor> cumulative_sums(int64_t rows, int64_t columns) {
    Tensor x = input("u", f32, {rows, columns});
    Axis j = reduce_axis("j", columns);
    return {compute("y", {rows, columns}, [&](Expr i, Expr t) { return scan(sum, x(i, j), j, t); })};
}

}  // namespace tw::unknown
