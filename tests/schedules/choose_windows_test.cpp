// What choose_schedule makes of sums of products over windows: convolutions of any dimensions and their gradients, and
// what is like them, on tensor cores.
#include "schedules/choose_windows.h"

#include <gmock/gmock.h>

#include "dsl/differentiate.h"
#include "dsl/interpret.h"
#include "ops/executable.h"
#include "runtime/compile/compile.h"
#include "schedules/choose.h"
#include "schedules/convolve.h"
#include "tests/ops/random_windows.h"
#include "tests/schedules/integers_for.h"

namespace tw {
namespace {

using schedules::choose_schedule;
using schedules::ConvolutionOptions;
using schedules::convolve;
using schedules::convolve_transposed;
using testing::HasSubstr;
using testing::Not;

/// Integers: sums are exact in every order, so that the kernels agree with the declaration bit for bit.
void expect_right(const std::vector<Tensor>& outputs, const Schedule& s) {
    SCOPED_TRACE(s.trace_as_cpp());
    const Bindings bindings = integers_for(outputs, 2);
    Executable executable(build(s), open_device("emulated:sm_90a"));
    const std::vector<HostArray> got = run_on(executable, bindings), expected = interpret_plain(outputs, bindings);
    for (size_t k = 0; k < outputs.size(); ++k) {
        const auto differs = difference(outputs[k].name(), got[k], expected[k], equal_values);
        EXPECT_FALSE(differs) << *differs;
    }
}

Target few_multiprocessors() {
    Target some = target("sm_90a");
    some.multiprocessors = 3;  // so that blocks have several tiles in turn
    return some;
}

bool is_on_units(const Schedule& s) { return s.trace_as_cpp().find(", wgmma, ") != std::string::npos; }

/// How many of the outputs, each scheduled alone, are on units; all are right.
int expect_each_right(const std::vector<Tensor>& outputs) {
    int on_units = 0;
    for (const Tensor& output : outputs) {
        const Schedule s = choose_schedule({output}, few_multiprocessors());
        expect_right({output}, s);
        on_units += is_on_units(s) ? 1 : 0;
    }
    return on_units;
}

struct RandomConvolution {
    RandomWindows w;
    int64_t images, channels, filters, groups;
    Type type;
    bool has_bias;

    explicit RandomConvolution(Draw& draw) {
        do {
            const int64_t dimensions = draw.between(1, 3);
            w = random_windows(draw, dimensions, dimensions == 1 ? 60 : dimensions == 2 ? 12 : 6, 2);
        } while (count_of_windows() < 12);
        images = draw.between(1, 3);
        groups = draw.between(0, 3) == 0 ? 2 : 1;
        channels = (groups > 1 ? 16 * draw.between(1, 4) : 8 * draw.between(2, 6)) * groups;
        filters = (groups > 1 ? 16 * draw.between(1, 4) : 8 * draw.between(2, 6)) * groups;
        type = draw.one_of<Type>({bf16, f16});
        has_bias = draw.between(0, 1) == 1;
    }
    int64_t count_of_windows() const {
        int64_t count = 1;
        for (size_t d = 0; d < w.dimensions(); ++d) count *= w.windows(d);
        return count;
    }
    ConvolutionOptions options() const {
        return {.stride = w.stride, .dilation = w.dilation, .padding = w.padding, .groups = groups};
    }
};

/// y and, by gradients(), those of x and of the weight.
TEST(ChooseWindows, RandomConvolutionsAndTheirGradients) {
    Draw draw(3);
    int on_units = 0;
    for (int round = 0; round < 16; ++round) {
        const RandomConvolution c(draw);
        SCOPED_TRACE(c.w.text() + fmt::format("{} images, {} channels, {} filters, {} groups", c.images, c.channels,
                                              c.filters, c.groups));
        const Tensor x = input("x", c.type, shape_of_extents(indices(c.images, c.w.extents, c.channels)));
        const Tensor w = input("w", c.type, shape_of_extents(indices(c.filters, c.w.taps, c.channels / c.groups)));
        const Tensor bias = c.has_bias ? input("bias", f32, {c.filters}) : Tensor();
        const Tensor y = convolve("y", x, w, bias, c.options());
        const Tensor dy = input("dy", c.type, shape_of_extents(extents_of(y)));
        std::vector<Tensor> all = gradients(y, dy, {x, w});
        all.insert(all.begin(), y);
        on_units += expect_each_right(all);
    }
    EXPECT_GE(on_units, 30);
}

/// Borders that are no zeros are no box: a kernel before makes a bordered copy, of which tiles are. Without tensor
/// cores elements are read where they are.
TEST(ChooseWindows, BordersAreCopiedFirst) {
    using schedules::PaddingMode;
    for (const std::vector<int64_t>& extents : {std::vector<int64_t>{40}, {9, 12}})
        for (PaddingMode mode : {PaddingMode::Reflect, PaddingMode::Replicate, PaddingMode::Circular}) {
            SCOPED_TRACE(fmt::format("{} dimensions, mode {}", extents.size(), static_cast<int>(mode)));
            const std::vector<int64_t> taps(extents.size(), 3);
            const ConvolutionOptions options{.padding = {{2, 1}}, .mode = mode};
            const Tensor x = input("x", bf16, shape_of_extents(indices(2, extents, 16)));
            const Tensor w = input("w", bf16, shape_of_extents(indices(24, taps, 16)));
            const Tensor y = convolve("y", x, w, {}, options);
            const Tensor dy = input("dy", bf16, shape_of_extents(extents_of(y)));
            std::vector<Tensor> all = gradients(y, dy, {x, w});
            all.insert(all.begin(), y);
            EXPECT_EQ(expect_each_right(all), 3);
            const Program program = build(choose_schedule({y}, target("sm_90a")));
            EXPECT_EQ(program.kernels().size(), 2u);
            EXPECT_THAT(program.explain(), HasSubstr("y_image_shared: by the tensor memory accelerator"));

            const Tensor x32 = input("x", f32, shape_of_extents(indices(2, extents, 16)));
            const Tensor w32 = input("w", f32, shape_of_extents(indices(24, taps, 16)));
            const Schedule plain = choose_schedule({convolve("y", x32, w32, {}, options)}, target("sm_90a"));
            EXPECT_EQ(build(plain).kernels().size(), 1u);
        }
}

void expect_no_spills(const Program& program) {
    for (const auto& kernel : program.kernels()) try {
            const CompiledKernel compiled =
                compile_kernel({.source = kernel.cuda, .name = kernel.name + ".cu", .arch = "sm_90a", .options = {}});
            const Resources& resources = compiled.of(kernel.name);
            EXPECT_EQ(resources.spill_store_bytes + resources.spill_load_bytes, 0) << kernel.name;
        } catch (const NvrtcMissing&) {
        }
}

void expect_units(const std::vector<Tensor>& outputs) {
    for (const Tensor& output : outputs) {
        const Program program = build(choose_schedule({output}, target("sm_90a")));
        SCOPED_TRACE(to_string(*output.operation()));
        EXPECT_THAT(program.explain(), HasSubstr("is computed by wgmma"));
        EXPECT_THAT(program.explain(), HasSubstr("_shared: by the tensor memory accelerator"));
        expect_no_spills(program);
    }
}

struct Layer {
    std::vector<int64_t> x, w;
    ConvolutionOptions options;
};

TEST(ChooseWindows, TypicalLayersAreOnUnits) {
    for (const Layer& layer :
         std::vector<Layer>{{{32, 56, 56, 64}, {64, 3, 3, 64}, {.padding = {1}}},
                            {{32, 56, 56, 128}, {128, 3, 3, 128}, {.stride = {2}, .padding = {1}}},
                            {{32, 56, 56, 256}, {512, 1, 1, 256}, {.stride = {2}}},
                            {{16, 14, 14, 256}, {1024, 1, 1, 256}, {}},
                            {{8, 28, 28, 96}, {96, 3, 3, 96}, {.dilation = {2}, .padding = {2}}},
                            {{8, 30, 20, 64}, {64, 3, 5, 64}, {.stride = {2, 1}, .padding = {{0, 1}, {2, 1}}}},
                            {{8, 400, 80}, {384, 3, 80}, {.stride = {2}, .padding = {1}}},
                            {{2, 12, 28, 28, 64}, {64, 3, 3, 3, 64}, {.stride = {1, 2, 2}, .padding = {1}}},
                            {{8, 28, 28, 256}, {256, 3, 3, 64}, {.padding = {1}, .groups = 4}}}) {
        const Tensor x = input("x", bf16, shape_of_extents(layer.x)), w = input("w", bf16, shape_of_extents(layer.w));
        const Tensor y = convolve("y", x, w, input("bias", bf16, {layer.w[0]}), layer.options);
        expect_units({y});
        expect_units(gradients(y, input("dy", bf16, shape_of_extents(extents_of(y))), {x, w}));
    }
}

TEST(ChooseWindows, TransposedConvolutions) {
    const Tensor x = input("x", f16, {2, 7, 5, 24}), w = input("w", f16, {24, 4, 3, 32}), bias = input("b", f32, {32});
    const Tensor y = convolve_transposed("y", x, w, bias, {.stride = {2}, .padding = {1}, .output_padding = {0, 1}});
    std::vector<Tensor> all = gradients(y, input("dy", f16, shape_of_extents(extents_of(y))), {x, w});
    all.insert(all.begin(), y);
    expect_units(all);
    EXPECT_EQ(expect_each_right(all), 3);
}

int kernels_of(const Schedule& s) {
    const std::string text = build(s).cuda();
    int count = 0;
    for (size_t at = 0; (at = text.find("__global__", at)) != std::string::npos; ++at) ++count;
    return count;
}

/// What an output makes of sums alone comes with them, in one kernel.
TEST(ChooseWindows, OutputsAreMadeWithTheirSums) {
    for (Type type : {f32, bf16}) {  // from registers, and as boxes
        const Tensor x = input("x", bf16, {2, 12, 12, 8}), w = input("w", bf16, {128, 3, 3, 8});
        const Tensor bias = input("bias", f32, {128}), other = input("other", bf16, {2, 12, 12, 128});
        Axis r = reduce_axis("r", 3), q = reduce_axis("q", 3), c = reduce_axis("c", 8);
        const Tensor sums = compute("sums", {2, 12, 12, 128}, [&](Expr n, Expr i, Expr j, Expr f) {
            return sum(cast(f32, padded(x, 0)(n, i + r - 1, j + q - 1, c)) * cast(f32, w(f, r, q, c)), {r, q, c});
        });
        const Tensor shifted = compute("shifted", {2, 12, 12, 128},
                                       [&](Expr n, Expr i, Expr j, Expr f) { return sums(n, i, j, f) + bias(f); });
        const Tensor z = compute("z", {2, 12, 12, 128}, [&](Expr n, Expr i, Expr j, Expr f) {
            return cast(type, relu(shifted(n, i, j, f)) + cast(f32, other(n, i, j, f)));
        });
        const Schedule s = choose_schedule({z}, few_multiprocessors());
        EXPECT_EQ(kernels_of(s), 1) << s.to_string();
        EXPECT_TRUE(is_on_units(s));
        EXPECT_EQ(s.trace_as_cpp().find("s.via(") != std::string::npos, type == bf16) << s.trace_as_cpp();
        expect_right({z}, s);
        // Whoever else reads the sums has them stored.
        const Schedule both = choose_schedule({z, sums}, few_multiprocessors());
        EXPECT_EQ(kernels_of(both), 2);
        expect_right({z, sums}, both);
    }
}

/// All that a layer's backward pass computes, at once.
TEST(ChooseWindows, GradientsInOneProgram) {
    const Tensor x = input("x", bf16, {2, 8, 7, 24}), w = input("w", bf16, {32, 3, 3, 24}), b = input("b", bf16, {32});
    const Tensor y = convolve("y", x, w, b, {.stride = {2, 1}, .padding = {1}});
    const std::vector<Tensor> all = gradients(y, input("dy", bf16, shape_of_extents(extents_of(y))), {x, w, b});
    const Schedule s = choose_schedule(all, few_multiprocessors());
    EXPECT_THAT(s.trace_as_cpp(), HasSubstr("s.mma(d_x"));
    EXPECT_THAT(s.trace_as_cpp(), HasSubstr("s.mma(d_w"));
    expect_right(all, s);
}

/// Copies of few channels are whole units of 16 bytes.
TEST(ChooseWindows, FewChannelsInWholeUnits) {
    for (int64_t channels : {3, 20}) {
        const Tensor x = input("x", bf16, {2, 9, 10, channels}), w = input("w", bf16, {16, 3, 5, channels});
        const Tensor y = convolve("y", x, w, {}, {.stride = {2, 1}, .padding = {1}, .unit = 8});
        std::vector<Tensor> all = gradients(y, input("dy", bf16, shape_of_extents(extents_of(y))), {x, w});
        all.push_back(y);
        EXPECT_EQ(expect_each_right(all), 3);
    }
}

/// Of a result with few columns, tiles are mostly empty, and still faster than threads that sum for themselves.
TEST(ChooseWindows, FewFilters) {
    for (int64_t filters : {1, 3, 8}) {
        const Tensor x = input("x", bf16, {2, 6, 7, 16}), w = input("w", bf16, {filters, 3, 3, 16});
        const Tensor y = convolve("y", x, w, {}, {.padding = {1}});
        std::vector<Tensor> all = gradients(y, input("dy", bf16, shape_of_extents(extents_of(y))), {x, w});
        all.push_back(y);
        EXPECT_EQ(expect_each_right(all), 3);
    }
}

/// Clips of two frames, and images smaller than a kernel with holes.
TEST(ChooseWindows, FewerWindowsThanTaps) {
    const Layer clips{{1, 2, 5, 4, 32}, {24, 3, 3, 3, 32}, {.padding = {1}}};
    const Layer holes{{4, 3, 3, 48}, {32, 3, 3, 24}, {.dilation = {2}, .padding = {2}, .groups = 2}};
    for (const Layer& layer : {clips, holes}) {
        const Tensor x = input("x", bf16, shape_of_extents(layer.x)), w = input("w", bf16, shape_of_extents(layer.w));
        const Tensor y = convolve("y", x, w, {}, layer.options);
        const Tensor dx = gradients(y, input("dy", bf16, shape_of_extents(extents_of(y))), {x})[0];
        EXPECT_EQ(expect_each_right({dx}), 1);
    }
}

/// Layers one behind another in one program: each reads what the last one stores.
TEST(ChooseWindows, LayersInOneProgram) {
    const Tensor x = input("x", bf16, {2, 9, 9, 16}), w = input("w", bf16, {32, 3, 3, 16}),
                 v = input("v", bf16, {16, 1, 1, 32});
    const Tensor first = convolve("first", x, w, {}, {.padding = {1}});
    const Tensor hidden = compute("hidden", {2, 9, 9, 32}, [&](Expr n, Expr i, Expr j, Expr f) {
        return cast(bf16, min(relu(cast(f32, first(n, i, j, f))), 3.0));
    });
    const Tensor second = convolve("second", hidden, v, {}, {});
    const Tensor y = compute("y", {2, 9, 9, 16}, [&](Expr n, Expr i, Expr j, Expr f) {
        return cast(bf16, cast(f32, second(n, i, j, f)) + cast(f32, x(n, i, j, f)));
    });
    const Schedule s = choose_schedule({y}, few_multiprocessors());
    EXPECT_THAT(s.trace_as_cpp(), HasSubstr("s.mma(first"));
    EXPECT_THAT(s.trace_as_cpp(), HasSubstr("s.mma(second"));
    expect_right({y}, s);
}

/// y[t, f] = sum u[t + 2 o, c] k[o, c, f]: a stencil over the steps of one signal of many channels.
TEST(ChooseWindows, StencilsOfManyChannels) {
    const Tensor u = input("u", bf16, {136, 48}), k = input("k", bf16, {5, 48, 24});
    Axis o = reduce_axis("o", 5), c = reduce_axis("c", 48);
    const Tensor y = compute("y", {128, 24}, [&](Expr t, Expr f) {
        return cast(bf16, sum(cast(f32, u(t + o * 2, c)) * cast(f32, k(o, c, f)), {o, c}));
    });
    expect_units({y});
    const Tensor dy = input("dy", bf16, {128, 24});
    std::vector<Tensor> all = gradients(y, dy, {u, k});
    all.push_back(y);
    EXPECT_EQ(expect_each_right(all), 3);
}

/// Three filters that results take in turn, as a signal is resampled from 1 to 3: taps of a phase of its own.
TEST(ChooseWindows, PolyphaseFilters) {
    const Tensor u = input("u", f16, {2, 40, 32}), k = input("k", f16, {3, 4, 32, 16});
    Axis r = reduce_axis("r", 4), c = reduce_axis("c", 32);
    const Tensor y = compute("y", {2, 120, 16}, [&](Expr b, Expr t, Expr f) {
        return sum(cast(f32, padded(u, 0)(b, t / 3 + r - 1, c)) * cast(f32, k(t % 3, r, c, f)), {r, c});
    });
    expect_units({y});
    EXPECT_EQ(expect_each_right({y}), 1);
}

/// Filters that lie as taps, channels, filters.
TEST(ChooseWindows, FiltersInAnotherOrder) {
    const Tensor x = input("x", bf16, {2, 9, 8, 32}), w = input("w", bf16, {3, 2, 32, 40});
    Axis r = reduce_axis("r", 3), q = reduce_axis("q", 2), c = reduce_axis("c", 32);
    const Tensor y = compute("y", {2, 9, 7, 40}, [&](Expr n, Expr i, Expr j, Expr f) {
        return cast(bf16, sum(cast(f32, padded(x, 0)(n, i + r - 1, j + q, c)) * cast(f32, w(r, q, c, f)), {r, q, c}));
    });
    std::vector<Tensor> all = gradients(y, input("dy", bf16, {2, 9, 7, 40}), {x, w});
    all.push_back(y);
    EXPECT_EQ(expect_each_right(all), 3);
}

/// A factor without dimensions, in front or behind: of a convolution, and of sums over windows alone.
TEST(ChooseWindows, ScalarsAreNoOperands) {
    const Tensor x = input("x", f32, {2, 8, 8, 16}), w = input("w", f32, {3, 3, 16, 24}),
                 scale = input("scale", f32, {});
    Axis r = reduce_axis("r", 3), q = reduce_axis("q", 3), c = reduce_axis("c", 16);
    auto window = [&](Expr n, Expr i, Expr j) { return x(n, i + r, j + q, c); };
    expect_each_right({compute("sums", {2, 6, 6},
                               [&](Expr n, Expr i, Expr j) {
                                   return sum(scale() * window(n, i, j), {r, q, c});
                               }),
                       compute("behind", {2, 6, 6},
                               [&](Expr n, Expr i, Expr j) {
                                   return sum(window(n, i, j) * scale(), {r, q, c});
                               }),
                       compute("channels", {2, 6, 6, 16},
                               [&](Expr n, Expr i, Expr j, Expr f) {
                                   return sum(scale() * x(n, i + r, j + q, f), {r, q});
                               }),
                       compute("pixels", {3, 16}, [&](Expr t, Expr f) {
                           Axis n = reduce_axis("n", 2), i = reduce_axis("i", 6);
                           return sum(scale() * x(n, i + t, i, f), {n, i});
                       })});
}

/// What no unit multiplies, or boxes do not take, is computed as it was.
TEST(ChooseWindows, WhatIsLeftAlone) {
    auto expect_left = [](const Tensor& y, const std::string& arch = "sm_90a") {
        SCOPED_TRACE(to_string(*y.operation()));
        EXPECT_THAT(choose_schedule({y}, target(arch)).trace_as_cpp(), Not(HasSubstr("As::Matrix")));
    };
    const Tensor x = input("x", bf16, {2, 10, 10, 32}), w = input("w", bf16, {32, 3, 3, 32});
    const Tensor y = convolve("y", x, w, {}, {});
    EXPECT_TRUE(is_on_units(choose_schedule({y}, target("sm_90a"))));
    expect_left(y, "sm_80");
    const Tensor few = input("few_channels", bf16, {2, 10, 10, 3}), of_few = input("w", bf16, {32, 3, 3, 3});
    expect_left(convolve("few", few, of_few, {}, {.padding = {Sides(1, 0)}}));
    expect_left(convolve("depthwise", x, input("w", bf16, {32, 3, 3, 1}), {}, {.groups = 32}));
    expect_left(convolve("wide", input("x", f32, {2, 10, 10, 32}), input("w", f32, {32, 3, 3, 32}), {}, {}));
    Axis r = reduce_axis("r", 3), q = reduce_axis("q", 3), c = reduce_axis("c", 32);
    auto over_images = [&](const std::string& name, auto&& term) {
        return compute(name, {2, 8, 8, 32}, [&](Expr n, Expr i, Expr j, Expr f) {
            return sum(term(n, i, j, f), {r, q, c});
        });
    };
    expect_left(over_images("squares", [&](Expr n, Expr i, Expr j, Expr f) {  // of one tensor
        return cast(f32, x(n, i + r, j + q, c)) * cast(f32, x(n, r, q, (c + f) % 32));
    }));
    const Tensor rows = input("rows", i32, {8});
    expect_left(over_images("gathered", [&](Expr n, Expr i, Expr j, Expr f) {
        return cast(f32, x(n, cast(i64, rows(i)) + r, j + q, c)) * cast(f32, w(f, r, q, c));
    }));
    expect_left(over_images("masked_filters", [&](Expr n, Expr i, Expr j, Expr f) {
        return select(f >= c, cast(f32, x(n, i + r, j + q, c)) * cast(f32, w(f, r, q, c)), 0.0);
    }));
    const Tensor planes = input("planes", bf16, {2, 32, 10, 10});
    expect_left(over_images("channels_first", [&](Expr n, Expr i, Expr j, Expr f) {
        return cast(f32, planes(n, c, i + r, j + q)) * cast(f32, w(f, r, q, c));
    }));
    const Tensor a = input("a", bf16, {4, 64, 32}), b = input("b", bf16, {4, 64, 48});
    Axis k = reduce_axis("k", 64);
    expect_left(compute("matrices", {4, 32, 48},
                        [&](Expr n, Expr i, Expr j) { return sum(cast(f32, a(n, k, i)) * cast(f32, b(n, k, j)), k); }));
    expect_left(over_images("own_filters", [&](Expr n, Expr i, Expr j, Expr f) {  // of each image
        return cast(f32, x(n, i + r, j + q, c)) * cast(f32, w(f + n * 0, r, q, (c + n) % 32));
    }));
}

}  // namespace
}  // namespace tw
