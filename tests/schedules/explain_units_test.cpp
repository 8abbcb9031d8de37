// What explain() says of sums of products that choose_schedule leaves to threads.
#include <gmock/gmock.h>

#include "dsl/differentiate.h"
#include "ops/program.h"
#include "schedules/choose.h"
#include "schedules/convolve.h"

namespace tw::schedules {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string explained(const Tensor& y, const std::string& arch = "sm_90a") {
    return build(choose_schedule({y}, target(arch))).explain();
}

const std::string reason = "'y' is not computed by tensor cores: ";

Tensor product(const Tensor& a, const Tensor& b, const std::function<Expr(const Expr&)>& element) {
    const Axis k = reduce_axis("k", a.shape()[1]);
    return compute("y", {a.shape()[0], b.shape()[0]},
                   [&](Expr i, Expr j) { return sum(element(a(i, k)) * element(b(j, k)), k); });
}
Expr in_f32(const Expr& e) { return cast(f32, e); }

TEST(ExplainUnits, ProductsOnUnitsNeedNoReason) {
    const Tensor a = input("a", bf16, {64, 64}), b = input("b", bf16, {64, 64});
    EXPECT_THAT(explained(product(a, b, in_f32)), Not(HasSubstr("tensor cores")));
    const Tensor x = input("x", f32, {64, 64});
    const Axis k = reduce_axis("k", 64);
    const Tensor means = compute("y", {64}, [&](Expr i) { return sum(x(i, k) * x(0, k), k); });
    EXPECT_THAT(explained(means), Not(HasSubstr("tensor cores")));
}

TEST(ExplainUnits, OfTypes) {
    const Tensor a = input("a", f32, {64, 64}), b = input("b", f32, {64, 64});
    EXPECT_THAT(explained(product(a, b, [](const Expr& e) { return e; })),
                HasSubstr(reason + "'a' is f32, 'b' is f32; they multiply bf16, f16, fp8 and i8, and f32 that is "
                                   "truncated: truncate_tf32(..) of both operands, or store them as one of these"));
    EXPECT_THAT(explained(product(input("a", bf16, {64, 64}), input("b", f16, {64, 64}), in_f32)),
                HasSubstr(reason + "'a' is bf16, 'b' is f16; store both as one type"));
    EXPECT_THAT(explained(product(input("a", bf16, {64, 64}), input("b", bf16, {64, 64}),
                                  [](const Expr& e) { return cast(f64, e); })),
                HasSubstr(reason + "products of bf16 are summed in f64; cast the operands to f32"));
    EXPECT_THAT(explained(convolve("y", input("x", f32, {2, 9, 9, 16}), input("w", f32, {16, 3, 3, 16}), {}, {})),
                HasSubstr(reason + "'x' is f32, 'w' is f32; over windows they multiply bf16 and f16: store operands as "
                                   "one of these"));
}

TEST(ExplainUnits, OfExtents) {
    const Expr rows = size("rows", {.min = 1, .max = 100});
    EXPECT_THAT(explained(product(input("a", bf16, {rows, 64}), input("b", bf16, {64, 64}), in_f32)),
                HasSubstr(reason + "the extent rows of 'y' is a named size"));
    EXPECT_THAT(explained(product(input("a", bf16, {64, 4}), input("b", bf16, {64, 4}), in_f32)),
                HasSubstr(reason + "an instruction has 16 rows, columns and terms at least"));
}

/// The gradient behind a ReLU is that of its result where data say: units multiply it where it is a tensor.
TEST(ExplainUnits, OfFactorsThatDataDecide) {
    for (const int64_t side : {28, 32}) {
        const Tensor x = input("x", bf16, {2, 64, side, side}), w = input("w", bf16, {64, 64, 3, 3}),
                     d = input("d", bf16, {2, 64, side, side});
        const Tensor y = convolve("y", x, w, {}, {.padding = {1}, .layout = Layout::ChannelsFirst});
        const Tensor z = compute("z", {2, 64, side, side}, [&](Expr n, Expr f, Expr p, Expr q) {
            return cast(bf16, max(cast(f32, y(n, f, p, q)), 0.0));
        });
        const std::vector<Tensor> made = gradients(z, d, {x, w});
        const std::string text = build(choose_schedule(made, target("sm_90a"))).explain();
        EXPECT_THAT(text, HasSubstr("'d_y_narrow': 'd_y', whose elements are bf16 or zero, in that type")) << side;
        EXPECT_THAT(text, Not(HasSubstr("is not computed by tensor cores"))) << side;
    }
    const Tensor u = input("u", bf16, {2, 28, 28, 64}), d = input("d", bf16, {2, 28, 28, 64}),
                 w = input("w", bf16, {64, 3, 3, 64});
    const Axis r = reduce_axis("r", 3), t = reduce_axis("s", 3), c = reduce_axis("c", 64);
    const Tensor own = compute("y", {2, 26, 26, 64}, [&](Expr n, Expr p, Expr q, Expr f) {
        const Expr decides = cast(f32, u(n, p + r, q + t, c)) > 0.0, element = cast(f32, d(n, p + r, q + t, c));
        return cast(bf16, sum(select(decides, element, 0.0) * cast(f32, w(f, r, t, c)), {r, t, c}));
    });
    const std::string text = explained(own);
    EXPECT_THAT(text, HasSubstr(reason + "a factor is 'd' only where 'u' has it so, "));
    EXPECT_THAT(text, HasSubstr("declare the factor behind the condition as a tensor of its own, cast to bf16"));
    EXPECT_THAT(text, Not(HasSubstr("rows of 'd'")));
}

TEST(ExplainUnits, OfWindows) {
    const Tensor x = input("x", bf16, {2, 10, 10, 32}), w = input("w", bf16, {32, 3, 3, 32});
    EXPECT_THAT(explained(convolve("y", x, w, {}, {}), "sm_80"),
                HasSubstr(reason + "sums over windows take wgmma and boxes of the tensor memory accelerator, which "
                                   "sm_80 lacks"));
    EXPECT_THAT(explained(convolve("y", input("x", bf16, {2, 40, 12}), input("w", bf16, {32, 3, 12}), {}, {})),
                HasSubstr("of 'x' have 12 elements, no multiple of 8 (16 bytes), as boxes need; fill them up"));
    const Axis r = reduce_axis("r", 3), q = reduce_axis("q", 3), c = reduce_axis("c", 32);
    auto over_images = [&](auto&& term) {
        return compute("y", {2, 8, 8, 32}, [&](Expr n, Expr i, Expr j, Expr f) {
            return sum(term(n, i, j, f), {r, q, c});
        });
    };
    EXPECT_THAT(explained(over_images([&](Expr n, Expr i, Expr j, Expr f) {
                    return select(f >= c, cast(f32, x(n, i + r, j + q, c)) * cast(f32, w(f, r, q, c)), 0.0);
                })),
                HasSubstr("around the product depends on a column, u, and no copy can take it"));
    const Tensor planes = input("planes", bf16, {2, 32, 10, 16});
    EXPECT_THAT(explained(over_images([&](Expr n, Expr i, Expr j, Expr f) {
                    return cast(f32, planes(n, c, i + r, j + q)) * cast(f32, w(f, r, q, c));
                })),
                HasSubstr(reason + "neither last dimension runs along terms"));
    const Tensor rows = input("rows", i32, {8});
    EXPECT_THAT(explained(over_images([&](Expr n, Expr i, Expr j, Expr f) {
                    return cast(f32, x(n, cast(i64, rows(i)) + r, j + q, c)) * cast(f32, w(f, r, q, c));
                })),
                HasSubstr("'x' is read where data say, "));
}

/// Of convolutions of each channel by itself, and of nothing that only looks like one.
TEST(ExplainUnits, OfDepthwiseConvolutions) {
    const std::string why = "'y' is no depthwise convolution with windows in registers: ";
    auto layer = [](Type type, const ConvolutionOptions& options) {
        const bool is_first = options.layout == Layout::ChannelsFirst;
        return convolve("y", input("x", type, is_first ? Shape{2, 16, 9, 9} : Shape{2, 9, 9, 16}),
                        input("w", type, is_first ? Shape{16, 1, 3, 3} : Shape{16, 3, 3, 1}), {}, options);
    };
    EXPECT_THAT(explained(layer(bf16, {.groups = 16})), Not(HasSubstr("depthwise")));
    EXPECT_THAT(
        explained(layer(f64, {.groups = 16})),
        HasSubstr(why + "'x' is f64, 'w' is f64; it takes two of bf16, of f16 or of f32: store both as one of these"));
    EXPECT_THAT(explained(layer(bf16, {.groups = 16}), "sm_80"),
                HasSubstr(why + "it takes boxes of the tensor memory accelerator, which sm_80 lacks"));
    EXPECT_THAT(explained(layer(bf16, {.groups = 16, .layout = Layout::ChannelsFirst})),
                HasSubstr(why + "it takes images [images, height, width, channels] or [images, width, channels]"));
    const Tensor x = input("x", bf16, {2, 12, 64}), p = input("p", bf16, {2, 10, 3}), z = input("z", bf16, {2, 12, 64});
    const Axis k = reduce_axis("k", 3), c = reduce_axis("c", 8), n = reduce_axis("n", 2);
    const Tensor windows = compute("y", {2, 10, 64}, [&](Expr h, Expr i, Expr d) {
        return sum(cast(f32, p(h, i, k)) * cast(f32, x(h, i + k, d)), k);
    });
    EXPECT_THAT(explained(windows), Not(HasSubstr("depthwise")));
    const Tensor groups = compute("y", {12, 8}, [&](Expr t, Expr g) {
        return sum(cast(f32, x(n, t, g * 8 + c)) * cast(f32, z(n, t, g * 8 + c)), {n, c});
    });
    EXPECT_THAT(explained(groups), Not(HasSubstr("depthwise")));
}

}  // namespace
}  // namespace tw::schedules
