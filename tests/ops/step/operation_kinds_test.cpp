// What operations are, and their FLOPs, counted by hand.
#include "ops/step/operation_kinds.h"

#include <gtest/gtest.h>

#include "dsl/declare_scatter.h"
#include "schedules/views.h"

namespace tw {
namespace {

void expect(const Tensor& tensor, OperationKind kind, double flops, double of_f64 = 0) {
    EXPECT_EQ(name_of(kind_of(*tensor.operation())), name_of(kind)) << tensor.name();
    const DeclaredFlops found = declared_flops({tensor});
    EXPECT_EQ(found.all, flops) << tensor.name();
    EXPECT_EQ(found.f64, of_f64) << tensor.name();
}

const Tensor x = input("x", f32, {4, 16}), w = input("w", f32, {8, 16}), b = input("b", f32, {8}),
             ids = input("ids", i32, {10});

TEST(OperationKinds, OfSums) {
    const Axis k = reduce_axis("k", 16), i = reduce_axis("i", 4);
    expect(compute("z", {4, 8}, [&](Expr r, Expr c) { return sum(x(r, k) * w(c, k), k); }),
           OperationKind::SumOfProducts, 4 * 8 * 16 * 2);
    expect(compute("z", {4, 8}, [&](Expr r, Expr c) { return sum(tanh(x(r, k)) * w(c, k), k) + b(c); }),
           OperationKind::SumOfProducts, 4 * 8 * (16 * 3 + 1));
    const Tensor half = input("half", bf16, {4, 16}), other = input("other", bf16, {8, 16});
    expect(compute("z", {4, 8}, [&](Expr r, Expr c) { return sum(cast(f32, half(r, k)) * cast(f32, other(c, k)), k); }),
           OperationKind::SumOfProducts, 4 * 8 * 16 * 2);
    expect(compute("squares", {},
                   [&](const std::vector<Expr>&) {
                       return 0.5 * sum(x(i, k) * x(i, k), {i, k});
                   }),
           OperationKind::Reduction, 4 * 16 * 2 + 1);
    expect(compute("most", {4}, [&](Expr r) { return reduce_max(x(r, k), k); }), OperationKind::Reduction, 4 * 16);
    expect(compute("product", {4}, [&](Expr r) { return prod(x(r, k) * w(0, k), k); }), OperationKind::Reduction,
           4 * 16 * 2);
    const Axis uneven = reduce_axis("n", 3);
    expect(compute("window", {4, 14}, [&](Expr r, Expr c) { return sum(x(r, c + uneven), uneven); }),
           OperationKind::Reduction, 4 * 14 * 3);
}

TEST(OperationKinds, OfElements) {
    expect(compute("h", {4, 16}, [&](Expr r, Expr c) { return tanh(x(r, c)) * 2.0 + 1.0; }), OperationKind::Elements,
           4 * 16 * 3);
    expect(compute("shared", {4, 16},
                   [&](Expr r, Expr c) {
                       const Expr once = tanh(x(r, c));
                       return once * once + once;
                   }),
           OperationKind::Elements, 4 * 16 * 3);
    expect(
        compute("both", {4, 16}, [&](Expr r, Expr c) { return select(x(r, c) > 0.0, x(r, c) * 2.0, x(r, c) * 3.0); }),
        OperationKind::Elements, 4 * 16 * 2);
    expect(compute("of_places", {10}, [&](Expr n) { return cast(f32, ids(n) * 3 + 1); }), OperationKind::Elements, 0);
    expect(compute("wide", {4, 16}, [&](Expr r, Expr c) { return cast(f32, cast(f64, x(r, c)) * 2.0) + 1.0; }),
           OperationKind::Elements, 4 * 16 * 2, 4 * 16);
    const Tensor pair = compute_tuple("pair", {"sum", "difference"}, {4, 16}, [&](const std::vector<Expr>& at) {
        const Expr element = exp(x(at[0], at[1]));
        return std::vector{element + 1.0, element - 1.0};
    })[0];
    expect(pair, OperationKind::Elements, 4 * 16 * 3);
}

TEST(OperationKinds, OfPlaces) {
    expect(schedules::permute("turned", x, {1, 0}), OperationKind::View, 0);
    expect(compute("one", {3}, [](Expr) { return constant(f32, 1.0); }), OperationKind::Elements, 0);
    expect(compute("rows", {10, 16}, [&](Expr n, Expr c) { return x(cast(i64, ids(n)), c) + 1.0; }),
           OperationKind::Gather, 10 * 16);
    const Axis n = reduce_axis("n", 10), c = reduce_axis("c", 16), p = reduce_axis("p", 10);
    expect(compute("bag", {16}, [&](Expr d) { return sum(x(cast(i64, ids(n)), d), n); }), OperationKind::Reduction,
           16 * 10);
    const Tensor dy = input("dy", f32, {10, 16});
    expect(scatter("d", {7, 16}, sum, {ids(p), c}, 2.0 * dy(p, c), {p, c}), OperationKind::Scatter, 10 * 16 * 2);
    expect(scatter("counts", {7}, sum, {ids(p)}, constant(f32, 1.0), {p}), OperationKind::Scatter, 10);
}

TEST(OperationKinds, AddUpOverAllThatIsComputed) {
    const Axis k = reduce_axis("k", 16);
    const Tensor z = compute("z", {4, 8}, [&](Expr r, Expr c) { return sum(x(r, k) * w(c, k), k); });
    const Tensor h = compute("h", {4, 8}, [&](Expr r, Expr c) { return tanh(z(r, c)); });
    const Tensor g = compute("g", {4, 8}, [&](Expr r, Expr c) { return h(r, c) - z(r, c); });
    EXPECT_EQ(declared_flops({g, h}).all, 4 * 8 * (16 * 2 + 1 + 1));
}

}  // namespace
}  // namespace tw
