// Normalisation along a dimension whose elements do not lie side by side, by one kernel.
#include "schedules/kept_columns.h"

#include <random>

#include <gmock/gmock.h>

#include "ops/check.h"
#include "schedules/choose.h"
#include "support/random.h"
#include "tests/ops/on_each_device.h"

namespace tw::schedules {
namespace {

using testing::HasSubstr;

Expr wide(const Expr& x) { return cast(f32, x); }

/// Of u [groups, terms, columns] along the terms.
std::vector<Tensor> softmax_between(Type type, int64_t groups, int64_t terms, int64_t columns) {
    const Tensor u = input("u", type, {groups, terms, columns});
    const Axis k = reduce_axis("k", terms), l = reduce_axis("l", terms);
    const Tensor most =
        compute("most", {groups, columns}, [&](Expr g, Expr j) { return reduce_max(wide(u(g, k, j)), k); });
    const Tensor total =
        compute("total", {groups, columns}, [&](Expr g, Expr j) { return sum(exp(wide(u(g, l, j)) - most(g, j)), l); });
    return {compute("y", {groups, terms, columns}, [&](Expr g, Expr i, Expr j) {
        return cast(type, exp(wide(u(g, i, j)) - most(g, j)) / total(g, j));
    })};
}

/// A layer norm over the channels of images, with its statistics, a gain and a bias for each channel, a weight for each
/// pixel and a bias for its place.
std::vector<Tensor> norm_of_channels(Type type, int64_t images, int64_t channels, int64_t height, int64_t width) {
    const Tensor x = input("x", type, {images, channels, height, width}), gain = input("gain", f32, {channels}),
                 bias = input("bias", f32, {channels}), place = input("place", f32, {height, width}),
                 weight = input("weight", f32, {images, height, width});
    const Axis k = reduce_axis("k", channels), l = reduce_axis("l", channels);
    const double count = static_cast<double>(channels);
    const Tensor mean = compute("mean", {images, height, width},
                                [&](Expr n, Expr h, Expr w) { return sum(wide(x(n, k, h, w)), k) / count; });
    const Tensor variance = compute("variance", {images, height, width}, [&](Expr n, Expr h, Expr w) {
        const Expr off = wide(x(n, l, h, w)) - mean(n, h, w);
        return sum(off * off, l) / count;
    });
    const Tensor scale = compute("scale", {images, height, width},
                                 [&](Expr n, Expr h, Expr w) { return rsqrt(variance(n, h, w) + 1e-5); });
    const Tensor y = compute("y", {images, channels, height, width}, [&](Expr n, Expr c, Expr h, Expr w) {
        const Expr normed = (wide(x(n, c, h, w)) - mean(n, h, w)) * scale(n, h, w) * weight(n, h, w);
        return cast(type, normed * gain(c) + bias(c) + place(h, w));
    });
    return {y, mean, scale};
}

/// The gradient of a softmax, of two tensors that are read twice, along the first dimension.
std::vector<Tensor> softmax_gradient(Type type, int64_t terms, int64_t columns) {
    const Tensor y = input("y", type, {terms, columns}), dy = input("dy", type, {terms, columns});
    const Axis k = reduce_axis("k", terms);
    const Tensor dot = compute("dot", {columns}, [&](Expr j) { return sum(wide(y(k, j)) * wide(dy(k, j)), k); });
    return {compute("dx", {terms, columns},
                    [&](Expr i, Expr j) { return cast(type, wide(y(i, j)) * (wide(dy(i, j)) - dot(j))); })};
}

class KeptColumnsKernels : public OnEachDevice {
protected:
    /// One kernel that gives what is declared.
    void expect_declared(const std::vector<Tensor>& outputs, uint64_t seed) {
        const std::optional<Schedule> s = kept_columns(outputs, device_target());
        ASSERT_TRUE(s) << to_string(*outputs[0].operation());
        Executable executable(build(*s), device_);
        EXPECT_EQ(executable.program().kernels().size(), 1u);
        const Bindings data = random_bindings(outputs, seed);
        const std::vector<HostArray> results = run_on(executable, data);
        for (size_t k = 0; k < outputs.size(); ++k) {
            const CheckResult result = check_output(outputs[k], data, results[k], {.samples = 512});
            EXPECT_TRUE(result.ok) << result.text;
        }
    }
};

// Random extents, of which some fill no vector, no block, and no step of terms.
TEST_P(KeptColumnsKernels, GiveWhatIsDeclared) {
    const auto seed = static_cast<uint64_t>(std::random_device{}());
    SCOPED_TRACE(seed);
    Random random(seed);
    for (const Type type : {bf16, f32}) {
        const int64_t terms = random.between(2, 200), columns = random.between(1, 150), wide_columns = 8 * columns;
        expect_declared(softmax_between(type, random.between(1, 3), terms, columns), seed);
        expect_declared(softmax_between(type, random.between(1, 3), terms, wide_columns), seed);
        expect_declared(norm_of_channels(type, random.between(1, 2), terms, random.between(1, 5), columns), seed);
        expect_declared(softmax_gradient(type, terms, 8 * random.between(1, 40)), seed);
    }
}
TW_ON_EACH_DEVICE(KeptColumnsKernels);

// The rule takes it where it is faster: where kernels apart would read much more than once.
TEST(KeptColumns, AreTakenWhereMemoryDecides) {
    const Target hopper = target("sm_90a");
    EXPECT_THAT(build(choose_schedule(softmax_between(bf16, 64, 512, 1024), hopper)).explain(),
                HasSubstr("'y': columns stay in a block's memory"));
    EXPECT_THAT(build(choose_schedule(norm_of_channels(bf16, 32, 256, 56, 56), hopper)).explain(),
                HasSubstr("'y': columns stay in a block's memory"));
}

// More terms than a block holds, sums that no element reads, elements of neighbours.
TEST(KeptColumns, AreOfThatFormAlone) {
    const Target hopper = target("sm_90a");
    auto is_tried = [&](const std::vector<Tensor>& outputs) { return kept_columns(outputs, hopper).has_value(); };
    EXPECT_TRUE(is_tried(softmax_between(bf16, 2, 64, 256)));
    EXPECT_FALSE(is_tried(softmax_between(bf16, 2, 100000, 256)));
    const Tensor x = input("x", f32, {64, 256});
    const Axis k = reduce_axis("k", 64), l = reduce_axis("l", 256);
    const Tensor of_columns = compute("of_columns", {256}, [&](Expr j) { return sum(x(k, j), k); }),
                 of_rows = compute("of_rows", {64}, [&](Expr i) { return sum(x(i, l), l); });
    EXPECT_FALSE(is_tried({of_columns}));
    EXPECT_FALSE(is_tried({compute("y", {64, 256}, [&](Expr i, Expr j) { return x(i, j) / of_rows(i); })}));
    EXPECT_FALSE(
        is_tried({compute("y", {64, 256}, [&](Expr i, Expr j) { return x(i, j) / of_columns((j + 1) % 256); })}));
    EXPECT_TRUE(is_tried({compute("y", {64, 256}, [&](Expr i, Expr j) { return x(i, j) / of_columns(j); })}));
}

// Elements in a long chain, each of which reads the one before twice, are looked at once each.
TEST(KeptColumns, AreFoundInLongChains) {
    const Tensor x = input("x", f32, {64, 256});
    const Axis k = reduce_axis("k", 64);
    const Tensor of_columns = compute("of_columns", {256}, [&](Expr j) { return sum(x(k, j), k); });
    Tensor y = x;
    for (int step = 0; step < 60; ++step)
        y = compute("y", {64, 256}, [&, before = y](Expr i, Expr j) { return before(i, j) + 0.5 * before(i, j); });
    EXPECT_FALSE(kept_columns({y, of_columns}, target("sm_90a")));
}

}  // namespace
}  // namespace tw::schedules
