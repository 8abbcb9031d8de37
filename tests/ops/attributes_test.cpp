// Operators with attributes: by calls and as one graph, against plain loops; one set of kernels for each; what is
// misspelt is refused.
#include "ops/attributes.h"

#include <cmath>

#include <gmock/gmock.h>

#include "ops/operator.h"
#include "tests/ops/tape_arrays.h"
#include "tests/support/expect_error.h"

namespace tw::nn {
namespace {

/// scale * x^times of [rows, columns], in the mode "sums" scale * x * times, of the element that lies opposite along
/// `dims`; not below 0 if `clipped`.
const Operator& shaped() {
    static const Operator op("shaped", [](const std::vector<tw::Tensor>& in, const Attributes& a) {
        const std::vector<int64_t> dims = a.integers("dims", {});
        const double scale = a.number("scale", 1.0);
        const int64_t times = a.integer("times", 1);
        const bool clipped = a.flag("clipped", false), sums = a.text("mode", "products") == "sums";
        return compute("shaped", {in[0].shape()[0], in[0].shape()[1]}, [&](Expr i, Expr j) {
            for (const int64_t dim : dims) (dim == 0 ? i : j) = in[0].shape()[dim] - 1 - (dim == 0 ? i : j);
            const Expr x = in[0](i, j);
            Expr y = constant(f32, scale) * x;
            for (int64_t k = 1; k < times; ++k) y = sums ? y + constant(f32, scale) * x : y * x;
            return clipped ? max(y, 0.0) : y;
        });
    });
    return op;
}

class OperatorAttributes : public OnTapeTests {};
TW_ON_EACH_DEVICE(OperatorAttributes);

TEST_P(OperatorAttributes, AreConstantsOfEachCall) {
    const Dims shape = {3, 5};
    const auto at = [](const Array& x, Dims place, const Dims& dims) {
        for (const int64_t dim : dims) place[dim] = x.shape[dim] - 1 - place[dim];
        return x(place);
    };
    expect_like(
        [&](const std::vector<Tensor>& in) {
            const Tensor cubes = backend_->op_call(shaped(), in, {{"times", 3}, {"scale", 0.5}});
            const Tensor turned =
                backend_->op_call(shaped(), {cubes}, {{"dims", {0, 1}}, {"mode", "sums"}, {"times", 2}});
            return backend_->op_call(shaped(), {turned}, {{"clipped", true}, {"scale", -1}}) +
                   backend_->op_call(shaped(), in);
        },
        [&](const std::vector<Array>& in) {
            return array(shape, [&](const Dims& place) {
                return std::max(-std::pow(at(in[0], place, {0, 1}), 3), 0.0) + in[0](place);
            });
        },
        {shape});
}

/// Equal attributes are one operator, in whatever order they are written; others have kernels of their own.
TEST_P(OperatorAttributes, HaveKernelsForEach) {
    const Tensor x = random_leaf({2, 4}, 1);
    const size_t before = backend_->num_built();
    shaped()({x}, {{"scale", 0.25}, {"times", 2}});
    shaped()({x}, {{"times", 2}, {"scale", 0.25}});
    EXPECT_EQ(backend_->num_built(), before + 1);
    shaped()({x}, {{"times", 2}, {"scale", 0.2500001}});
    EXPECT_EQ(backend_->num_built(), before + 2);
    EXPECT_EQ(Attributes({{"b", 1}, {"a", 1.0}}).text(), "{a=1.0, b=1}");
    EXPECT_EQ(Attributes({{"dims", Dims{0, -1}}, {"mode", "a\"b"}, {"on", false}}).text(),
              R"({dims=[0, -1], mode="a\"b", on=false})");
}

/// What is asked for by calls of one shape is not known to those of another.
TEST_P(OperatorAttributes, AreAskedForByEachCall) {
    const Operator op("by_rank", [](const std::vector<tw::Tensor>& in, const Attributes& a) {
        const double scale = in[0].rank() == 2 ? a.number("scale") : 1.0;
        return compute("by_rank", {in[0].shape()[0]},
                       [&](Expr i) { return constant(f32, scale) * (in[0].rank() == 2 ? in[0](i, 0) : in[0](i)); });
    });
    const Tensor rows = random_leaf({4}, 1), matrix = random_leaf({4, 2}, 2);
    op({matrix}, {{"scale", size_t{3}}});
    EXPECT_ERROR(op({rows}, {{"scale", size_t{3}}}), "by_rank: it has no attribute 'scale'; it asks for none");
    op({matrix}, {{"scale", 3}});
    EXPECT_EQ(Attributes({{"dims", std::vector<int>{1, 2}}, {"n", 3u}}).text(), "{dims=[1, 2], n=3}");
}

TEST_P(OperatorAttributes, WhatIsWrongIsRefused) {
    const Tensor x = random_leaf({2, 4}, 1);
    EXPECT_ERROR(shaped()({x}, {{"tims", 2}}), "attributes_test.cpp:");
    EXPECT_ERROR(shaped()({x}, {{"tims", 2}}), "shaped: it has no attribute 'tims'; it asks for 'clipped', 'dims'");
    EXPECT_ERROR(shaped()({x}, {{"times", 2.5}}), "shaped: attribute 'times' is 2.5, which is not an integer");
    EXPECT_ERROR(shaped()({x}, {{"dims", 0}}), "attribute 'dims' is 0, which is not a list of integers");
    EXPECT_ERROR(shaped()({x}, {{"clipped", "yes"}}), "attribute 'clipped' is \"yes\", which is not true or false");
    EXPECT_ERROR(Attributes({{"a", 1}, {"a", 2}}), "attribute 'a' is given twice");
    EXPECT_ERROR(Attributes({{"", 1}}), "an attribute has no name");
    const Operator needs("needs", [](const std::vector<tw::Tensor>& in, const Attributes& a) {
        return compute("needs", {in[0].shape()[0]}, [&](Expr i) { return in[0](i, a.integer("column")); });
    });
    EXPECT_ERROR(needs({x}), "needs: it needs an attribute 'column', an integer; the call has {}");
    const Operator plain("plain", [](const std::vector<tw::Tensor>& in) {
        return compute("plain", {in[0].shape()[0]}, [&](Expr i) { return in[0](i, 0); });
    });
    EXPECT_ERROR(plain({x}, {{"column", 1}}), "plain: its expression takes inputs alone, and no attributes");
    const Operator two("two", [](const std::vector<tw::Tensor>& in) {
        return compute("two", {in.at(1).shape().at(1)}, [&](Expr i) { return in[0](0, i) * in[1](0, i); });
    });
    EXPECT_ERROR(
        two({x}),
        "two: its expression reads an input or a dimension that the call does not have, which gives 'x' f32[2, 4]");
    EXPECT_ERROR(compile(backend_, [&] { return std::vector{two({x})}; }), "two: its expression reads an input");
    const auto other = std::make_shared<Backend>(open_device("emulated"));
    EXPECT_ERROR(other->op_call(plain, {x}), "op_call: 'x' is of another backend");
}

}  // namespace
}  // namespace tw::nn
