// Products of matrices, for tests of what schedules make of one.
#pragma once
#include "dsl/tensor.h"

namespace tw {

struct PlainProduct {
    Tensor a, b, c;
};

/// c[i, j] = sum_k a[i, k] * b[k, j]
inline PlainProduct plain_product(int64_t m, int64_t n, int64_t k) {
    PlainProduct p{input("a", f32, {m, k}), input("b", f32, {k, n}), {}};
    Axis r = reduce_axis("k", k);
    p.c = compute("c", {m, n}, [&](Expr i, Expr j) { return sum(p.a(i, r) * p.b(r, j), r); });
    return p;
}

/// c[i, j] = sum_k a[i, k] * b[j, k], of bf16 factors whose products are added as f32: what tensor cores compute.
inline PlainProduct bf16_product(int64_t m, int64_t n, int64_t k) {
    PlainProduct p{input("a", bf16, {m, k}), input("b", bf16, {n, k}), {}};
    Axis r = reduce_axis("k", k);
    p.c = compute("c", {m, n}, [&](Expr i, Expr j) { return sum(cast(f32, p.a(i, r)) * cast(f32, p.b(j, r)), r); });
    return p;
}

}  // namespace tw
