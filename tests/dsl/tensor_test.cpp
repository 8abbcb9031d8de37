// Declarations: what they build, and every mistake that they explain.
#include "dsl/tensor.h"

#include <gtest/gtest.h>

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
}

TEST(TensorErrors, Target) { EXPECT_ERROR(target("sm_12"), "choose one of sm_80"); }

}  // namespace
}  // namespace tw
