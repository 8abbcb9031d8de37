// Schedules that tests take steps of.
#pragma once
#include "dsl/schedule.h"

namespace tw {

struct MatrixProduct {
    Tensor a = input("a", f32, {12, 10}), b = input("b", f32, {10, 8});
    Axis k = reduce_axis("k", 10);
    Tensor c = compute("c", {12, 8}, [&](Expr i, Expr j) { return sum(a(i, k) * b(k, j), k); });
    Schedule s{{c}, target("sm_90a")};
};

struct Chain {
    Tensor x = input("x", f32, {6, 9});
    Tensor y = compute("y", {6, 9}, [&](Expr i, Expr j) { return x(i, j) + 1.0; });
    Tensor z = compute("z", {6, 9}, [&](Expr i, Expr j) { return y(i, j) * 2.0; });
    Schedule s{{z}, target("sm_90a")};
};

/// Weighted sums of exponentials, as in an attention: p is what a tensor core would take.
struct Weighted {
    Tensor x = input("x", f32, {7, 20}), v = input("v", f32, {20, 5});
    Axis k = reduce_axis("k", 20);
    Tensor p = compute("p", {7, 20}, [&](Expr i, Expr j) { return exp(x(i, j)); });
    Tensor y = compute("y", {7, 5}, [&](Expr i, Expr e) { return sum(p(i, k) * v(k, e), k); });
    Schedule s{{y}, target("sm_90a")};
};

}  // namespace tw
