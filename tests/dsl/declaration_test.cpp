// Declarations that mean nothing are refused where they stand.
#include <limits>

#include <gtest/gtest.h>

#include "dsl/declare_scatter.h"
#include "dsl/differentiate.h"
#include "dsl/tensor.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

using Indices = std::vector<Expr>;

struct Declarations {
    Tensor x = input("x", f32, {4}), w = input("w", f32, {4, 4}), ids = input("ids", i32, {4});
    Axis r = reduce_axis("r", 4), q = reduce_axis("q", 4);
};

Tensor vector_of(const std::function<Expr(Expr)>& body) {
    return compute("y", {4}, [&](Expr i) { return body(i); });
}

TEST(DeclarationErrors, IndicesWithoutAValue) {
    Declarations d;
    const char* wanted = "compute 'y': index 'r' has no value here: it is none of the axes [i], and no reduction";
    EXPECT_ERROR(vector_of([&](Expr) { return d.x(d.r); }), wanted);
    EXPECT_ERROR(vector_of([&](Expr) { return d.x(d.r); }), "declaration_test.cpp:");
    EXPECT_ERROR(vector_of([&](Expr) { return sum(d.x(d.r), d.r) + d.x(d.r); }), wanted);
    EXPECT_ERROR(vector_of([&](Expr) { return sum(d.w(d.r, d.q), d.q); }), wanted);
    EXPECT_ERROR(vector_of([&](Expr i) { return sum(sum(d.w(d.r, d.q), d.r) * d.x(d.r), d.q) + d.x(i); }), wanted);
    EXPECT_ERROR(vector_of([&](Expr i) { return select(d.r < i, d.x(i), 0.0); }), wanted);
    EXPECT_ERROR(vector_of([&](Expr i) { return padded(d.x, d.x(d.r))(i - 1); }), wanted);
    EXPECT_ERROR(vector_of([&](Expr i) { return sum(d.x(i), reduce_axis("s", d.r + 1)); }), wanted);
    EXPECT_ERROR(vector_of([&](Expr i) { return sum(d.x(i), reduce_axis("s", d.ids(d.r))); }), wanted);
    EXPECT_ERROR(compute_tuple("y", {4}, [&](const Indices& i) { return Indices{d.x(i[0]), d.x(d.r)}; }), wanted);
    EXPECT_ERROR(scatter("y", {4}, sum, {Expr(d.ids(d.q))}, d.x(d.r), {d.q}), wanted);
    Axis s = reduce_axis("s", d.r + 1);  // as long as another axis says, that runs around or does not
    EXPECT_ERROR(vector_of([&](Expr i) { return sum(d.x(i), s); }), wanted);
    EXPECT_NO_THROW(vector_of([&](Expr i) { return sum(sum(d.x(i), s), d.r); }));
}

TEST(DeclarationErrors, IndicesOfAnotherTensor) {
    Declarations d;
    Expr leaked;
    Tensor t = compute("t", {4}, [&](Expr i) {
        leaked = i;
        return d.x(i);
    });
    EXPECT_ERROR(vector_of([&](Expr i) { return t(i) + d.x(leaked); }), "index 'i' has no value here");
    EXPECT_ERROR(vector_of([&](Expr i) { return t(i) + cast(f32, leaked); }), "index 'i' has no value here");
    const char* wanted = "differs from element to element or is no size; extents are made of integers and tw::size";
    EXPECT_ERROR(input("v", f32, {leaked + 1}), wanted);
    EXPECT_ERROR(input("v", f32, {Expr(d.r) + 1}), wanted);
    EXPECT_ERROR(compute("y", {leaked + 1}, [&](Expr i) { return cast(f32, i); }), wanted);
    EXPECT_ERROR(compute("y", {max(cast(i64, d.ids(0)), 0)}, [&](Expr i) { return cast(f32, i); }), wanted);
    EXPECT_ERROR(compute("y", {max(scalar("count", i64), 0)}, [&](Expr i) { return cast(f32, i); }), wanted);
    EXPECT_ERROR(input("v", f32, {4, 4}, {leaked + 4, 1}), "stride 0 is");
}

TEST(DeclarationErrors, Gradients) {
    Declarations d;
    Tensor y = vector_of([&](Expr i) { return d.x(i) * 2.0; }), dy = input("dy", f32, {4});
    auto leaking = [&](const Tensor&, const Tensor& adjoint) {
        return std::vector<Tensor>{compute("d", {4}, [&](Expr) { return adjoint(d.r); })};
    };
    EXPECT_ERROR(gradients(with_gradient(y, {d.x}, leaking), dy, {d.x}), "index 'r' has no value here");
    auto shorter = [&](const Tensor&, const Tensor& adjoint) {
        return std::vector<Tensor>{compute("d", {2}, [&](Expr i) { return adjoint(i); })};
    };
    EXPECT_ERROR(gradients(with_gradient(y, {d.x}, shorter), dy, {d.x}), "the adjoint of 'x' is f32 [2]; it must be");
    EXPECT_ERROR(with_gradient(y, {Tensor()}, shorter), "with_gradient: an input of 'y' is an undefined tensor");
    EXPECT_ERROR(with_gradient(y, {d.x}, nullptr), "with_gradient of 'y': the rule is no function");
    EXPECT_ERROR(stop_gradient(Tensor()), "with_gradient: an undefined tensor is not computed");
}

TEST(DeclarationErrors, ExtentsAndStrides) {
    EXPECT_ERROR(input("v", f32, {-4}), "input 'v': extent 0 of [-4] may be negative; extents start at 0");
    EXPECT_ERROR(input("v", f32, {4, 4}, {-4, 1}),
                 "input 'v': stride 0 of [-4, 1] may be negative; strides start at 0");
    EXPECT_ERROR(input("v", f32, {4}, {Extent(Expr(1.5))}), "stride 0 must be an integer or a size");
    EXPECT_ERROR(input("v", f32, {Extent(Expr())}), "input 'v': extent 0 must be an integer or a size");
    EXPECT_ERROR(reduce_axis("r", Extent(Expr())), "reduce_axis 'r': the extent must be an integer, a size");
    EXPECT_ERROR(reduce_axis("r", 2 - size("n", {.min = 1, .max = 4})), "may be negative; extents start at 0");
    constexpr int64_t most = std::numeric_limits<int64_t>::max();
    EXPECT_ERROR(size("n", {.min = most - 1, .max = most, .multiple_of = 4}), "no multiple of 4 lies in");
    EXPECT_EQ(size("n", {.min = most - 5, .max = most, .multiple_of = 4}).as<Variable>()->min, most - 3);
}

TEST(DeclarationErrors, Reducers) {
    Declarations d;
    auto make = [&](const CombineTerms& combine) { return make_reducer("q", {constant(f32, 0.0)}, combine); };
    const char* wanted = "it is made of its operands, scalars and named sizes alone";
    EXPECT_ERROR(make([&](const Indices& a, const Indices& b) { return Indices{a[0] + b[0] * d.x(0)}; }), wanted);
    EXPECT_ERROR(make([&](const Indices& a, const Indices& b) { return Indices{a[0] + b[0] * cast(f32, Expr(d.r))}; }),
                 wanted);
    EXPECT_ERROR(make([&](const Indices& a, const Indices&) { return Indices{a[0] + sum(d.x(d.r), d.r)}; }), wanted);
    EXPECT_ERROR(make([&](const Indices&, const Indices&) { return Indices{Expr()}; }),
                 "reducer 'q': combine returns an undefined expression");
    EXPECT_ERROR(make(nullptr), "reducer 'q': combine is no function");
    EXPECT_ERROR(make_reducer("q", {Expr()}, [](const Indices& a, const Indices&) { return a; }),
                 "an operand is undefined");
    Expr leaked;
    Reducer fine = make([&](const Indices& a, const Indices& b) {
        leaked = a[0];
        return Indices{a[0] + b[0]};
    });
    EXPECT_ERROR(vector_of([&](Expr i) { return d.x(i) + leaked; }), "compute 'y': 'a0' is an operand of a reducer");
    EXPECT_ERROR(make([&](const Indices& a, const Indices&) { return Indices{a[0] + leaked}; }), wanted);
    EXPECT_ERROR(vector_of([&](Expr) { return reduce(nullptr, {d.x(d.r)}, {d.r})[0]; }),
                 "reduce: the reducer is undefined; make one with make_reducer()");
    EXPECT_ERROR(vector_of([&](Expr i) { return argmax(cast(bf16, d.w(i, d.r)), d.r)[0]; }),
                 "argmax: cannot compare bf16; cast the value first");
    EXPECT_ERROR(vector_of([&](Expr) { return welford(d.ids(d.r), {d.r})[0]; }),
                 "welford: takes f32 or f64, not i32; cast the value first");
}

TEST(DeclarationErrors, UndefinedHandles) {
    Declarations d;
    Tensor none;
    const char* operand = "an operand is undefined; give every Expr and every Axis a value before it is used";
    EXPECT_ERROR(vector_of([&](Expr i) { return sum(d.x(i), Axis()); }), "reduce with 'sum': an axis is undefined");
    EXPECT_ERROR(vector_of([&](Expr) { return sum(Expr(), d.r); }), operand);
    EXPECT_ERROR(vector_of([&](Expr i) { return select(Expr(), d.x(i), 0.0); }), operand);
    EXPECT_ERROR(vector_of([&](Expr) { return d.x(Axis()); }), operand);
    EXPECT_ERROR(vector_of([&](Expr i) { return padded(d.x, Expr())(i); }), operand);
    EXPECT_ERROR(vector_of([&](Expr i) { return d.x(i) + Expr(); }), operand);
    EXPECT_ERROR(Expr().type(), operand);
    EXPECT_ERROR(scatter("y", {4}, sum, {Expr(d.ids(d.r))}, d.x(d.r), {Axis()}), "scatter 'y': an axis is undefined");
    EXPECT_ERROR(scatter("y", {4}, nullptr, {Expr(d.ids(d.r))}, d.x(d.r), {d.r}), "scatter 'y': the reduction is no");
    const char* tensor = "an undefined tensor is used; declare it with input() or compute() first";
    EXPECT_ERROR(vector_of([&](Expr i) { return padded(none, 0.0)(i); }), tensor);
    EXPECT_ERROR(vector_of([&](Expr i) { return none(i); }), "an undefined tensor is read");
    EXPECT_ERROR(none(), "declaration_test.cpp:");
    EXPECT_ERROR(none.name(), tensor);
    EXPECT_ERROR(none.type(), tensor);
    EXPECT_ERROR(none.shape(), tensor);
    EXPECT_ERROR(none.rank(), "declaration_test.cpp:");
    EXPECT_ERROR(einsum("y", "i,i->i", {d.x, none}), "einsum \"i,i->i\": an operand is an undefined tensor");
    EXPECT_ERROR(compute_tuple("y", {4}, Body()), "compute 'y': the body is no function");
}

TEST(DeclarationErrors, LiteralsBeyondTheirType) {
    Declarations d;
    EXPECT_ERROR(vector_of([&](Expr i) { return min(d.x(i), 1e39); }),
                 "min: the literal 1e+39 is beyond the largest f32");
    EXPECT_ERROR(vector_of([&](Expr i) { return d.x(i) - 1e39; }), "operator-: the literal 1e+39 is beyond");
    EXPECT_ERROR(vector_of([&](Expr) { return Expr(-1e39); }),
                 "compute 'y': the literal -1e+39 is beyond the largest f32");
    EXPECT_ERROR(vector_of([&](Expr i) { return padded(d.x, 1e39)(i - 1); }), "padded: the literal 1e+39 is beyond");
    Tensor wide = input("wide", f64, {4});
    EXPECT_NO_THROW(vector_of([&](Expr i) { return wide(i) * 1e39; }));
    EXPECT_NO_THROW(vector_of([&](Expr i) { return min(d.x(i), infinity); }));
    EXPECT_NO_THROW(vector_of([&](Expr i) { return min(d.x(i), 3.4e38); }));
}

TEST(Declarations, OutputsOfATupleHaveNames) {
    Declarations d;
    auto best =
        compute_tuple("best", {"value", "place"}, {4}, [&](const Indices& i) { return argmax(d.w(i[0], d.r), d.r); });
    EXPECT_EQ(best[0].name(), "value");
    EXPECT_EQ(best[1].name(), "place");
    EXPECT_EQ(best[0].operation()->name, "best");
    EXPECT_ERROR(compute_tuple("best", {"value"}, {4}, [&](const Indices& i) { return argmax(d.w(i[0], d.r), d.r); }),
                 "compute 'best': 1 names for the 2 expressions that the body returns; give one each");
}

}  // namespace
}  // namespace tw
