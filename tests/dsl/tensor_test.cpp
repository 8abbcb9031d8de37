// Declarations: what they build, and every mistake that they explain.
#include "dsl/tensor.h"

#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "dsl/schedule.h"
#include "dsl/target.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

TEST(Tensor, PrintsItsFormula) {
    Tensor a = input("a", f32, {4, 8}), b = input("b", f32, {8, 3});
    Axis k = reduce_axis("k", 8);
    Tensor c = compute("c", {4, 3}, [&](Expr i, Expr j) { return sum(a(i, k) * b(k, j), k); });
    std::string text = to_string(*c.operation());
    EXPECT_NE(text.find("c[i, j] = "), std::string::npos) << text;
    EXPECT_NE(text.find("a[i, k] * b[k, j]"), std::string::npos) << text;
}

TEST(Tensor, BracesAreAListOfAxes) {
    Tensor a = input("a", f32, {4, 8});
    Axis i = reduce_axis("i", 4), j = reduce_axis("j", 8);
    Tensor both = compute("both", {}, [&] { return sum(a(i, j), {i, j}); });
    Tensor one = compute("one", {8}, [&](Expr column) { return reduce_max(a(i, column), {i}); });
    EXPECT_EQ(to_string(*both.operation()), "both[] = sum_{i, j} a[i, j]");
    EXPECT_NE(to_string(*one.operation()).find(" = max_i a["), std::string::npos);
}

TEST(Tensor, ListsOperationsProducersFirst) {
    Tensor x = input("x", f32, {5});
    Tensor y = compute("y", {5}, [&](Expr i) { return x(i) + 1.0; });
    Tensor z = compute("z", {5}, [&](Expr i) { return x(i) * y(i); });
    auto operations = operations_of({z});
    ASSERT_EQ(operations.size(), 3u);
    EXPECT_EQ(operations[0]->name, "x");
    EXPECT_EQ(operations[2]->name, "z");
    const auto rest = operations_of({z}, [&](const auto& one) { return one == y.operation(); });
    ASSERT_EQ(rest.size(), 2u);  // x, which z reads, too
    EXPECT_EQ(rest[0]->name, "x");
    EXPECT_TRUE(operations_of({z}, [&](const auto& one) { return one == z.operation(); }).empty());
}

TEST(TensorErrors, Reads) {
    Tensor x = input("x", f32, {5, 6});
    EXPECT_ERROR(Tensor()(0), "an undefined tensor is read");
    EXPECT_ERROR(x(1), "'x' has 2 dimensions [5, 6], but 1 indices are given");
    EXPECT_ERROR(x(1, cast(f32, constant(i32, int64_t{2}))), "indices are integers: cast(i64, x)");
    EXPECT_ERROR(compute("y", {5}, [&](Expr i) { return x(i, i + 2); }), "index 1 runs from 2 to 6, but 'x' is [5, 6]");
    EXPECT_ERROR(compute("y", {5}, [&](Expr i) { return x(i - 1, 0); }), "padded(x, value) allows reads outside");
    EXPECT_ERROR(padded(x, cast(i32, x(0, 0))), "the padding is i32, the tensor f32; cast it");
    EXPECT_NO_THROW(compute("y", {5}, [&](Expr i) { return padded(x, 0)(i - 1, i + 2); }));
    Tensor bytes = input("bytes", u8, {5});
    EXPECT_NO_THROW(padded(bytes, 255));
    EXPECT_ERROR(padded(bytes, 300), "padded(bytes, ...): u8 does not hold the literal 300");
    EXPECT_ERROR(padded(bytes, 0.5), "the padding is f32, the tensor u8; write a whole number");
}

TEST(TensorErrors, NameTheUsersLine) {
    Tensor x = input("x", f32, {5});
    EXPECT_ERROR(x(1, 2), "tensor_test.cpp:");
    EXPECT_ERROR(compute("y", {5}, [&](Expr i) { return x(i + 1); }), "tensor_test.cpp:");
}

TEST(TensorErrors, Declarations) {
    Tensor x = input("x", f32, {5});
    EXPECT_ERROR(input("bad", f32, {Extent(x(0))}), "extent 0 must be an integer or a size");
    EXPECT_ERROR(input("bad", f32, {-1}), "extent 0 of [-1] may be negative");
    EXPECT_ERROR(input("bad", f32, {4, 4}, {4}), "1 strides for 2 dimensions [4, 4]");
    EXPECT_ERROR(compute("y", {5, 5}, [&](Expr i) { return x(i); }),
                 "the shape has 2 dimensions, the body takes 1 indices");
    EXPECT_ERROR(compute("y", {5}, [&](Expr) { return Expr(); }), "returns an undefined expression");
    EXPECT_ERROR(compute_tuple("y", {5}, [&](const std::vector<Expr>&) { return std::vector<Expr>{}; }),
                 "the body returns nothing");
}

TEST(TensorErrors, Reductions) {
    Tensor x = input("x", bf16, {5}), y = input("y", f32, {5});
    Axis k = reduce_axis("k", 5);
    EXPECT_ERROR(sum(x(k), k), "cannot accumulate in bf16; cast the value first");
    auto first = [](const std::vector<Expr>& a, const std::vector<Expr>&) { return a; };
    Expr zero = constant(f32, 0.0);
    EXPECT_ERROR(make_reducer("r", {}, first), "needs at least one component");
    EXPECT_ERROR(make_reducer("r", {y(0)}, first), "identity 0 must be a constant");
    EXPECT_ERROR(make_reducer("r", {zero},
                              [](auto& a, auto& b) {
                                  return std::vector<Expr>{a[0], b[0]};
                              }),
                 "combine returns 2 components, the identity has 1");
    EXPECT_ERROR(make_reducer("r", {zero}, [](auto& a, auto&) { return std::vector<Expr>{cast(i32, a[0])}; }),
                 "combine's component 0 is i32, its identity f32");
    Reducer keep = make_reducer("keep", {zero}, first);
    EXPECT_ERROR(reduce(keep, {y(k), y(k)}, {k}), "2 values for 1 components");
    EXPECT_ERROR(reduce(keep, {y(k)}, {}), "needs at least one reduce_axis");
    EXPECT_ERROR(reduce(keep, {cast(i32, y(k))}, {k}), "value 0 is i32, the component f32");
}

TEST(TensorErrors, Einsum) {
    Tensor x = input("x", f32, {5, 6}), y = input("y", f32, {7, 3});
    EXPECT_ERROR(einsum("z", "ik,kj", {x, y}), "needs an arrow");
    EXPECT_ERROR(einsum("z", "ik->ik", {x, y}), "1 operands in the formula, 2 given");
    EXPECT_ERROR(einsum("z", "i,kj->ij", {x, y}), "'i' names 1 dimensions, but 'x' is [5, 6]");
    EXPECT_ERROR(einsum("z", "ik,kj->ij", {x, y}), "'k' is 6 elsewhere, but 7 in 'y' [7, 3]");
    EXPECT_ERROR(einsum("z", "ik,lj->iq", {x, y}), "no operand has the letter 'q'");
    EXPECT_ERROR(einsum("z", "ik,lj->ii", {x, y}), "the result has the letter 'i' more than once");
}

TEST(TensorErrors, WhatLeaves64Bits) {
    const int64_t large = int64_t{1} << 33, half = int64_t{1} << 62, most = std::numeric_limits<int64_t>::max();
    Tensor x = input("x", f32, {4});
    EXPECT_ERROR(compute("y", {4}, [&](Expr i) { return x(i * half * 4); }),
                 "tensor_test.cpp:" + std::to_string(__LINE__ - 1) +
                     ": compute 'y': the index i * 4611686018427387904 * 4 becomes as large as");
    EXPECT_ERROR(compute("y", {4}, [&](Expr i) { return cast(f32, (i + half + half) % 7); }),
                 "beyond the 64 bits of an index");
    Tensor data = input("data", i64, {4});  // what wraps, unless it is never chosen, or cancels
    EXPECT_NO_THROW(compute("y", {4}, [&](Expr i) { return select(i < 3, i, data(i)) * half / 1024; }));
    EXPECT_NO_THROW(compute("y", {4}, [&](Expr i) { return select(i < 4, i, data(i)) * 1024 / 1024; }));
    EXPECT_ERROR(compute("y", {4}, [&](Expr i) { return select(i < 4, i, data(i)) * half / 1024; }),
                 "beyond the 64 bits of an index");
    EXPECT_ERROR(compute("y", {4}, [&](Expr i) { return (i + data(i) - data(i)) * half / 1024; }),
                 "beyond the 64 bits of an index");
    EXPECT_ERROR(input("big", f32, {large, large}),
                 "input 'big': [8589934592, 8589934592] elements of f32 take 2.95e+20");
    EXPECT_ERROR(input("big", f32, {4}, {int64_t{1} << 61}), "with strides [2305843009213693952]");
    EXPECT_ERROR(compute("big", {large, large}, [&](Expr, Expr) { return x(0); }), "give smaller extents");
    EXPECT_ERROR(input("big", i8, {most}), "extent 0 is 9223372036854775807; the largest is 2^62");
    EXPECT_ERROR(reduce_axis("k", most), "reduce_axis 'k': the extent is 9223372036854775807");
    EXPECT_NO_THROW(input("large", u8, {large, int64_t{1} << 29}));
    Expr n = size("n", {.min = 1, .max = int64_t{1} << 40});
    Tensor a = input("a", f32, {n, n, n});  // small enough for some sizes
    EXPECT_NO_THROW(
        compute("y", {n, n, n}, [&](Expr i, Expr j, Expr p) { return a(i, j, p) + cast(f32, (i * n + j) * n + p); }));
}

// One name, one variable: in formulas, loops and kernels.
TEST(TensorNames, AreDistinct) {
    auto text = [](const Tensor& tensor) { return to_string(*tensor.operation()); };
    Tensor a = input("a", f32, {2, 8, 9}), b = input("b", f32, {2, 9, 7});
    EXPECT_EQ(text(einsum("y", "bij,bjk->bik", {a, b})), "y[i, q, p] = sum_j a[i, q, j] * b[i, j, p]");
    Tensor c = input("c", f32, {8, 8});
    EXPECT_EQ(text(einsum("y", "ik,kj->ij", {c, c})), "y[i, j] = sum_k c[i, k] * c[k, j]");
    Axis k = reduce_axis("k", 8), other = reduce_axis("k", 8), i = reduce_axis("i", 8);
    EXPECT_EQ(text(compute("y", {8},
                           [&](Expr e) {
                               return sum(c(e, k) * c(k, other), {k, other});
                           })),
              "y[i] = sum_{k, k2} c[i, k] * c[k, k2]");
    EXPECT_EQ(text(compute("y", {8}, [&](Expr e) { return sum(c(e, k) * sum(c(k, other), other), k); })),
              "y[i] = sum_k c[i, k] * (sum_k2 c[k, k2])");
    EXPECT_EQ(text(compute("y", {8}, [&](Expr e) { return sum(c(e, k), k) + sum(c(other, e), other); })),
              "y[i] = sum_k c[i, k] + sum_k c[k, i]");
    Axis up_to = reduce_axis("i", 8);
    EXPECT_EQ(text(compute("y", {8, 8},
                           [&](Expr e, Expr f) {
                               return sum(c(e, up_to) * c(f, i), {i, up_to});
                           })),
              "y[p, j] = sum_{i, i2} c[p, i2] * c[j, i]");
    Expr j = size("j", {.min = 1, .max = 64});
    Tensor d = input("d", f32, {8, j});
    EXPECT_EQ(text(compute("y", {8, j}, [&](Expr e, Expr f) { return d(e, j - 1 - f); })), "y[i, p] = d[i, j - 1 - p]");
    EXPECT_EQ(text(compute("y", {8},
                           [&](Expr e) {
                               Axis triangle = reduce_axis("i", e + 1);
                               return sum(c(e, triangle), triangle);
                           })),
              "y[j] = sum_{i < j + 1} c[j, i]");
    // Components of one reduction stay components of one.
    std::vector<Tensor> both = compute_tuple("y", {8, 8}, [&](const std::vector<Expr>& e) {
        Axis j = reduce_axis("j", 8);
        return argmax(c(e[0], j) + c(e[1], j), j);
    });
    EXPECT_EQ(text(both[0]),
              "y.0[i, p] = argmax_j(c[i, j] + c[p, j], j).0\ny.1[i, p] = argmax_j(c[i, j] + c[p, j], j).1");
    Schedule s(both, target("sm_90a"));
    EXPECT_EQ(s.all_stages().size(), 1u);
}

TEST(TensorErrors, Target) { EXPECT_ERROR(target("sm_12"), "choose one of sm_80"); }

TEST(Einsum, OfSeveralMultipliesInPairs) {
    auto computed = [](const Tensor& y) {
        std::vector<std::string> names;
        for (const auto& operation : operations_of({y}))
            if (!operation->is_input()) names.push_back(operation->name);
        return names;
    };
    auto chain = [](Type type, int count) {
        std::string formula;
        std::vector<Tensor> factors;
        for (int n = 0; n < count; ++n) {
            formula += std::string(n > 0 ? "," : "") + char('a' + n) + char('b' + n);
            factors.push_back(input("x" + std::to_string(n), type, {n == 0 ? 2 : 32, 32}));
        }
        return einsum("y", formula + "->a" + char('a' + count), factors);
    };
    // A row of few elements first: from there on all products are of few rows.
    const Tensor halves = chain(bf16, 3), floats = chain(f32, 3);
    EXPECT_EQ(computed(halves), (std::vector<std::string>{"y_ac", "y"}));
    EXPECT_EQ(operations_of({halves})[2]->outputs[0].type, bf16);
    EXPECT_EQ(halves.type(), f32);
    EXPECT_EQ(operations_of({floats})[2]->outputs[0].type, f32);
    EXPECT_EQ(computed(chain(f32, 9)).size(), 8u);
    const Tensor u = input("u", bf16, {8}), v = input("v", bf16, {8}), w = input("w", bf16, {8});
    EXPECT_EQ(computed(einsum("y", "i,i,i->i", {u, v, w})), (std::vector<std::string>{"y"}));
}

}  // namespace
}  // namespace tw
