// What tutorials 10 to 12 multiply.
#pragma once
#include "include/tilewright/dsl.h"

namespace tw {

struct Operands {
    Tensor a, b, c;
};

/// c[i, j] = sum_k a[i, k] * b[j, k], in bf16.
inline Operands product(int64_t m, int64_t n, int64_t k) {
    Operands o{input("a", bf16, {m, k}), input("b", bf16, {n, k}), {}};
    Axis r = reduce_axis("k", k);
    o.c = compute("c", {m, n},
                  [&](Expr i, Expr j) { return cast(bf16, sum(cast(f32, o.a(i, r)) * cast(f32, o.b(j, r)), r)); });
    return o;
}

}  // namespace tw
