// What choose_schedule makes of a convolution and its neighbours, declared plainly: what makes its image, and sums over
// all pixels of what it makes.
#include <cmath>

#include <gmock/gmock.h>

#include "dsl/differentiate.h"
#include "dsl/interpret.h"
#include "ops/executable.h"
#include "schedules/channel_sums.h"
#include "schedules/choose.h"
#include "schedules/convolution.h"
#include "schedules/convolve.h"
#include "schedules/fused_convolution.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/schedules/without_names.h"

namespace tw::schedules {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

constexpr const char* with_sums = ", by the kernel that makes it, and one behind";

constexpr const char* with_image = ", once for all taps";

/// So small that sums of squares over all pixels are exact.
Bindings small_numbers(const std::vector<Tensor>& outputs, unsigned seed) {
    Bindings bindings = random_bindings(outputs, seed);
    for (auto& [name, array] : bindings.inputs) fill_integers(array, -2, 2, ++seed);
    return bindings;
}

enum class Prologue { None, Tensor, F32Tensor, InWindows };
enum class Sums { None, One, Two, Tuple, Moments, Shifted };

struct Layer {
    ConvolutionShape shape;
    Prologue prologue = Prologue::None;
    Sums sums = Sums::None;
    bool bias = false, residual = false, own_sum = false;
};

/// relu(x scale + shift), with zeros around it.
Tensor normalized(const Layer& layer, const Tensor& x) {
    const ConvolutionShape& s = layer.shape;
    const Tensor scale = input("gain", f32, {s.channels}), shift = input("offset", f32, {s.channels});
    const bool is_f32 = layer.prologue == Prologue::F32Tensor;
    auto made = [&](const std::string& name, Type type) {
        return compute(name, {s.images, s.height, s.width, s.channels}, [&](Expr n, Expr i, Expr j, Expr c) {
            const Expr value = relu(cast(f32, x(n, i, j, c)) * scale(c) + shift(c));
            return type == f32 ? value : cast(type, value);
        });
    };
    if (!is_f32) return made("active", s.type);
    const Tensor whole = made("active_f32", f32);
    return compute("active", {s.images, s.height, s.width, s.channels},
                   [&](Expr n, Expr i, Expr j, Expr c) { return cast(s.type, whole(n, i, j, c)); });
}

Tensor convolved(const Layer& layer, const Tensor& image, const Tensor& w) {
    const ConvolutionShape& s = layer.shape;
    const Tensor bias = layer.bias ? input("bias", f32, {s.filters}) : Tensor();
    if (!layer.own_sum && !layer.residual && layer.prologue != Prologue::InWindows)
        return convolve("z", image, w, bias, {.stride = {s.stride}, .dilation = {s.dilation}, .padding = {s.padding}});
    const Tensor more = input("more", s.type, {s.images, s.rows(), s.columns(), s.filters});
    const bool in_windows = layer.prologue == Prologue::InWindows;
    const Tensor scale = in_windows ? input("gain", f32, {s.channels}) : Tensor();
    const Axis e = reduce_axis("e", s.channels), a = reduce_axis("a", s.kernel_h), b = reduce_axis("b", s.kernel_w);
    auto place = [&](const Expr& pixel, const Expr& tap) { return pixel * s.stride + tap * s.dilation - s.padding; };
    return compute("z", {s.images, s.rows(), s.columns(), s.filters}, [&](Expr n, Expr p, Expr q, Expr f) {
        const Expr row = place(p, a), column = place(q, b);
        Expr element = padded(image, 0)(n, row, column, e);
        if (in_windows) {  // zeros around what is made of the elements
            const Expr is_inside = row >= 0 && row < s.height && column >= 0 && column < s.width;
            element = select(is_inside, cast(s.type, relu(cast(f32, element) * scale(e) + 1.0)), constant(s.type, 0.0));
        }
        Expr total = sum(cast(f32, w(f, a, b, e)) * cast(f32, element), {e, a, b});
        if (layer.bias) total = total + bias(f);
        if (layer.residual) total = total + cast(f32, more(n, p, q, f));
        return cast(s.type, relu(total));
    });
}

/// Of y, however a user says it.
std::vector<Tensor> sums_of(Sums sums, const Tensor& y) {
    const Shape shape(y.shape().begin(), y.shape().end());
    const Axis i = reduce_axis("i", shape[0]), j = reduce_axis("j", shape[1]), k = reduce_axis("k", shape[2]);
    auto value = [&](const Expr& f) { return cast(f32, y(i, j, k, f)); };
    if (sums == Sums::Tuple) {
        const Expr zero = constant(f32, 0.0);
        const Reducer both = make_reducer("both", {zero, zero}, [](const auto& a, const auto& b) {
            return std::vector{a[0] + b[0], a[1] + b[1]};
        });
        return compute_tuple("both", {"total", "square"}, {shape[3]}, [&](const std::vector<Expr>& f) {
            return reduce(both, {value(f[0]), value(f[0]) * value(f[0])}, {i, j, k});
        });
    }
    std::vector<Tensor> found;
    if (sums == Sums::Shifted) {
        const Tensor shift = input("about", f32, {shape[3]});
        found.push_back(compute("total", {shape[3]}, [&](Expr f) { return sum(value(f) - shift(f), {k, i, j}); }));
        found.push_back(compute("square", {shape[3]}, [&](Expr f) {
            const Expr off = value(f) - shift(f);
            return sum(off * off, {i, j, k});
        }));
        return found;
    }
    const Tensor total = compute("total", {shape[3]}, [&](Expr f) {
        return sum(value(f), {k, i, j}) * (sums == Sums::Moments ? 0.5 : 1.0);
    });
    if (sums != Sums::None) found.push_back(total);
    if (sums == Sums::Two)
        found.push_back(compute("square", {shape[3]}, [&](Expr f) { return sum(value(f) * value(f), {i, j, k}); }));
    if (sums == Sums::Moments)
        found.push_back(compute("variance", {shape[3]}, [&](Expr f) {
            return sum(value(f) * value(f), {j, i, k}) - abs(total(f));
        }));
    return found;
}

std::vector<Tensor> declared(const Layer& layer) {
    const ConvolutionShape& s = layer.shape;
    const Tensor x = input("x", s.type, {s.images, s.height, s.width, s.channels}),
                 w = input("w", s.type, {s.filters, s.kernel_h, s.kernel_w, s.channels});
    const Tensor z = convolved(
        layer, layer.prologue == Prologue::None || layer.prologue == Prologue::InWindows ? x : normalized(layer, x), w);
    std::vector<Tensor> outputs{z};
    for (const Tensor& sum : sums_of(layer.sums, z)) outputs.push_back(sum);
    return outputs;
}

class ChooseNeighbours : public RandomCases {
protected:
    ChooseNeighbours() : RandomCases(31) {}

    Layer random_layer() {
        Layer layer{.shape = {.images = between(1, 3),
                              .height = between(3, 9),
                              .width = between(3, 9),
                              .channels = 8 * between(1, 5),
                              .filters = 8 * between(1, 9),
                              .kernel_h = between(1, 3),
                              .kernel_w = between(1, 3),
                              .stride = between(0, 3) ? 1 : 2,
                              .padding = between(0, 2),
                              .type = chance() ? bf16 : f16}};
        if (chance()) layer.shape.filters = 64;  // whole tiles of a raster
        layer.prologue = static_cast<Prologue>(between(0, 3));
        layer.sums = static_cast<Sums>(between(0, 5));
        layer.bias = chance(), layer.residual = between(0, 2) == 0, layer.own_sum = chance();
        return layer;
    }

    /// Of many taps, few channels and multiprocessors: by the model over a raster.
    void make_raster(Layer& layer, Target& target) {
        ConvolutionShape& s = layer.shape;
        s.images = 1, s.height = between(11, 13), s.width = between(11, 13);
        s.channels = 16, s.filters = 64;
        s.kernel_h = s.kernel_w = 5, s.stride = 1, s.padding = 1;
        target.multiprocessors = 2;
    }

    /// Bit for bit but for the sign of a zero.
    void expect_equal(const std::vector<Tensor>& given, const Schedule& s, unsigned seed) {
        const Bindings bindings = small_numbers(given, seed);
        Executable executable(build(s), device_);
        const auto got = run_on(executable, bindings), expected = interpret_plain(given, bindings);
        ASSERT_EQ(s.outputs().size(), given.size());
        for (size_t k = 0; k < given.size(); ++k) {
            EXPECT_EQ(s.outputs()[k].name(), given[k].name());
            const auto differs = difference(given[k].name(), got[k], expected[k], equal_values);
            EXPECT_FALSE(differs) << *differs << "\n" << s.explain();
        }
    }
};
TW_ON_EACH_DEVICE(ChooseNeighbours);

/// Bit for bit; of tiles for each tap and of rasters.
TEST_P(ChooseNeighbours, OfAnyLayerAreTheDeclared) {
    const int rounds = GetParam() == "cuda" ? 60 : 10;
    int summed = 0, made = 0, over_rasters = 0;
    for (int round = 0; round < rounds; ++round) {
        Layer layer = random_layer();
        Target some = device_target();
        some.multiprocessors = static_cast<int>(between(1, 6));
        if (chance()) make_raster(layer, some);
        const std::vector<Tensor> given = declared(layer);
        SCOPED_TRACE(to_string(*given[0].operation()));
        const Schedule s = choose_schedule(given, some);
        const std::string how = s.explain();
        auto says = [&](const char* what) { return how.find(what) != std::string::npos; };
        summed += says(with_sums) ? 1 : 0;
        made += says(with_image) ? 1 : 0;
        if (layer.prologue == Prologue::InWindows && some.has_wgmma) {
            EXPECT_THAT(how, AllOf(HasSubstr("'z_image': what 'z' makes of each element"), HasSubstr(": tiling ")));
        }
        over_rasters += says("tiling halo") && (says(with_sums) || says(with_image)) ? 1 : 0;
        EXPECT_THAT(how, Not(HasSubstr("is not made with")));
        EXPECT_THAT(how, Not(HasSubstr("is not made over")));
        expect_equal(given, s, static_cast<unsigned>(round));
    }
    if (device_target().has_wgmma) {
        EXPECT_GE(summed, rounds / 2);
        EXPECT_GE(made, rounds / 10);
        EXPECT_GE(over_rasters, rounds / 7);
    }
}

/// What is rounded for a result, and read again by sums, is not rounded in pairs: ptxas would do so while a lone
/// instruction writes the numbers.
TEST_P(ChooseNeighbours, SumsOfALoneInstructionCompile) {
    Target target = tw::target("sm_90a");
    target.multiprocessors = 6;
    for (Type type : {f16, bf16}) {
        Layer layer{.shape = {.images = 2,
                              .height = 4,
                              .width = 3,
                              .channels = 16,
                              .filters = 24,
                              .kernel_h = 1,
                              .kernel_w = 1,
                              .type = type}};
        layer.prologue = Prologue::F32Tensor;
        layer.sums = Sums::Moments;
        expect_compiles(build(choose_schedule(declared(layer), target)));
    }
}

/// A layer whose sums are made over a raster by the model, in parts that are not what they look like.
struct Parts {
    Tensor x = input("x", bf16, {1, 12, 12, 16}), w = input("w", bf16, {64, 5, 5, 16}),
           scale = input("gain", f32, {16}), shift = input("offset", f32, {16}),
           scale_of_rows = input("gains", f32, {12});

    Tensor image(const std::function<Expr(const std::vector<Expr>& at)>& element) const {
        return compute("active", {1, 12, 12, 16},
                       [&](const std::vector<Expr>& at) { return cast(bf16, relu(element(at))); });
    }
    Tensor plain_image() const {
        return image(
            [&](const auto& at) { return cast(f32, x(at[0], at[1], at[2], at[3])) * scale(at[3]) + shift(at[3]); });
    }
    Tensor convolved(const Tensor& image, double around = 0) const {
        const Axis r = reduce_axis("r", 5), t = reduce_axis("s", 5), c = reduce_axis("c", 16);
        return compute("z", {1, 10, 10, 64}, [&](Expr n, Expr p, Expr q, Expr f) {
            const Expr element = cast(f32, padded(image, around)(n, p + r - 1, q + t - 1, c));
            return cast(bf16, sum(element * cast(f32, w(f, r, t, c)), {r, t, c}));
        });
    }
    Tensor sums(const Tensor& y,
                const std::function<Expr(const Expr& value, const std::vector<Expr>& at)>& term) const {
        const Axis p = reduce_axis("p", 10), q = reduce_axis("q", 10);
        return compute("total", {64}, [&](Expr f) { return sum(term(cast(f32, y(0, p, q, f)), {p, q, f}), {p, q}); });
    }
};

/// Adjoints behind a ReLU are elements of 16 bits or zeros, which units multiply in that type.
TEST_P(ChooseNeighbours, GradientsBehindAReluAreOnUnits) {
    const Tensor x = input("x", bf16, {2, 7, 6, 16}), w = input("w", bf16, {24, 3, 3, 16}),
                 dz = input("dz", bf16, {2, 7, 6, 24});
    const Tensor y = convolve("y", x, w, {}, {.padding = {1}});
    const Tensor z = compute(
        "z", {2, 7, 6, 24}, [&](Expr n, Expr p, Expr q, Expr f) { return cast(bf16, relu(cast(f32, y(n, p, q, f)))); });
    const std::vector<Tensor> given = gradients(z, dz, {x, w});
    const Schedule s = choose_schedule(given, device_target());
    if (s.target().has_wgmma) {
        EXPECT_THAT(s.explain(), HasSubstr("'d_y_narrow': 'd_y', whose elements are bf16 or zero, in that type"));
        EXPECT_THAT(s.explain(), Not(HasSubstr("is not computed by tensor cores")));
    }
    expect_equal(given, s, 4);
}

/// Variances of a large mean: sums of squares of f32 lose them, those of elements from which something near the mean is
/// taken do not.
TEST_P(ChooseNeighbours, SumsAboutAShiftKeepVariances) {
    const Tensor x = input("x", f16, {1, 12, 12, 16}), w = input("w", f16, {16, 3, 3, 16}),
                 bias = input("bias", f32, {16}), about = input("about", f32, {16});
    const Tensor z = convolve("z", x, w, bias, {.padding = {1}});
    const Axis n = reduce_axis("n", 1), p = reduce_axis("p", 12), q = reduce_axis("q", 12);
    auto sums = [&](const char* name, const std::function<Expr(const Expr& value)>& term, bool shifts) {
        return compute(name, {16}, [&](Expr f) {
            const Expr value = cast(f32, z(n, p, q, f));
            return sum(term(shifts ? value - about(f) : value), {n, p, q});
        });
    };
    auto itself = [](const Expr& v) { return v; };
    auto squared = [](const Expr& v) { return v * v; };
    const std::vector<Tensor> given{z, sums("near_total", itself, true), sums("near_square", squared, true),
                                    sums("total", itself, false), sums("square", squared, false)};
    Bindings bindings = random_bindings(given, 5);
    for (const char* name : {"bias", "about"}) fill_integers(bindings.inputs.at(name), 1500, 1500, 1);
    const Schedule s = choose_schedule(given, device_target());
    if (s.target().has_wgmma) {
        EXPECT_THAT(s.explain(), ContainsRegex("'near_square'[^\n]*: of 'z', by the kernel that makes it"));
    }
    Executable executable(build(s), device_);
    const auto got = run_on(executable, bindings);
    const double count = 144;
    double worst_near = 0, worst = 0;
    for (int64_t f = 0; f < 16; ++f) {
        double mean = 0, variance = 0;
        for (int64_t i = 0; i < 144; ++i) mean += got[0].at({0, i / 12, i % 12, f}).real / count;
        for (int64_t i = 0; i < 144; ++i)
            variance += std::pow(got[0].at({0, i / 12, i % 12, f}).real - mean, 2) / count;
        auto error = [&](const HostArray& total, const HostArray& square) {
            const double by_sums = square.at({f}).real / count - std::pow(total.at({f}).real / count, 2);
            return std::abs(by_sums - variance) / variance;
        };
        worst_near = std::max(worst_near, error(got[1], got[2])), worst = std::max(worst, error(got[3], got[4]));
    }
    EXPECT_LT(worst_near, 1e-4);
    EXPECT_GT(worst, 1e-3);
}

TEST_P(ChooseNeighbours, ThatOnlyLookAlikeAreComputedByThemselves) {
    const Parts parts;
    const Tensor z = parts.convolved(parts.x), of_image = parts.convolved(parts.plain_image());
    const Tensor more = input("more", bf16, {1, 10, 10, 64});
    const Tensor image = parts.plain_image();
    auto value = [](const Expr& v, const auto&) { return v; };
    // What they are, to begin with.
    Target some = device_target();
    some.multiprocessors = 2;
    if (some.has_wgmma) {
        EXPECT_THAT(choose_schedule({of_image, parts.sums(of_image, value)}, some).explain(),
                    AllOf(HasSubstr(with_image), HasSubstr(with_sums)));
    }
    const Axis n = reduce_axis("n", 1), p = reduce_axis("p", 10), q = reduce_axis("q", 10), half = reduce_axis("p", 5);
    const std::vector<std::pair<const char*, std::vector<Tensor>>> cases = {
        {"sums with another tensor at other places",
         {z,
          parts.sums(z, [&](const Expr& v, const auto& at) { return v * cast(f32, more(0, at[1], at[0], at[2])); })}},
        {"sums of some pixels",
         {z, parts.sums(z, [](const Expr& v, const auto& at) { return select(at[0] < at[1], v, 0.0); })}},
        {"sums whose terms count", {z, parts.sums(z, [](const Expr& v, const auto&) { return v + 1.0; })}},
        {"sums over every other row",
         {z, compute("total", {64},
                     [&](Expr f) {
                         return sum(cast(f32, z(n, half * 2, q, f)), {n, half, q});
                     })}},
        {"sums of rows",
         {z, compute("total", {10},
                     [&](Expr i) {
                         const Axis f = reduce_axis("f", 64);
                         return sum(cast(f32, z(n, i, q, f)), {n, q, f});
                     })}},
        {"the greatest",
         {z, compute("total", {64},
                     [&](Expr f) {
                         return reduce_max(cast(f32, z(n, p, q, f)), {n, p, q});
                     })}},
        {"another padding", {parts.convolved(parts.plain_image(), 1)}},
        {"an image that is a result", {parts.convolved(image), image}},
        {"a scale of rows", {parts.convolved(parts.image([&](const auto& at) {
             return cast(f32, parts.x(at[0], at[1], at[2], at[3])) * parts.scale_of_rows(at[1]);
         }))}},
        {"elements of other places", {parts.convolved(parts.image([&](const auto& at) {
             return cast(f32, parts.x(at[0], at[2], at[1], at[3])) * parts.scale(at[3]);
         }))}},
        {"two elements", {parts.convolved(parts.image([&](const auto& at) {
             return cast(f32, parts.x(at[0], at[1], at[2], at[3])) +
                    cast(f32, parts.x(at[0], 11 - at[1], at[2], at[3]));
         }))}},
        {"elements that know their place", {parts.convolved(parts.image([&](const auto& at) {
             return select(at[1] > 3, cast(f32, parts.x(at[0], at[1], at[2], at[3])), 1.0);
         }))}}};
    for (const auto& [what, given] : cases) {
        SCOPED_TRACE(what);
        const Schedule s = choose_schedule(given, some);
        EXPECT_THAT(s.explain(), AllOf(Not(HasSubstr(with_image)), Not(HasSubstr(with_sums))));
        expect_equal(given, s, 7);
    }
}

TEST(ChooseNeighbour, SaysWhyAnImageIsMadeBefore) {
    const Layer strided{.shape = {.images = 2,
                                  .height = 12,
                                  .width = 12,
                                  .channels = 16,
                                  .filters = 64,
                                  .kernel_h = 3,
                                  .kernel_w = 3,
                                  .stride = 2,
                                  .padding = 1},
                        .prologue = Prologue::Tensor};
    EXPECT_THAT(choose_schedule(declared(strided), target("sm_90a")).explain(),
                HasSubstr("'active' is not made by the kernel of 'z': over no raster"));
}

/// Of layers as networks have them.
TEST(ChooseNeighbour, TakesTheKernelsThatHaveNames) {
    const Target h200 = target("sm_90a");
    const std::pair<const char*, const char*> layers[] = {
        {"256x28x28x128_128_3x3_pad1", "_bias_residual_relu"},
        {"64x7x7x512_512_3x3_pad1", "_bias_residual_relu_statistics"},
        {"256x56x56x64_64_3x3_pad1", "_statistics"},
        {"256x56x56x64_64_3x3_pad1", "_bias_residual_relu"},
        {"256x56x56x64_64_3x3_pad1", "_prologue_statistics"},
        {"256x56x56x64_64_3x3_pad1", "_prologue_bias_relu"},
        {"256x56x56x64_64_3x3_pad1", "_prologue_bias_residual_relu_statistics"},
        {"256x28x28x128_128_3x3_pad1", "_statistics"},
        {"256x28x28x128_128_3x3_pad1", "_bias_relu_statistics"},
        {"256x28x28x128_128_3x3_pad1", "_prologue_statistics"},
        {"64x7x7x512_512_3x3_pad1", "_bias_silu_statistics"}};
    for (const auto& [layer, around] : layers) {
        const std::string name = std::string("convolution_fused_bf16_") + layer + around;
        SCOPED_TRACE(name);
        const auto named = parse_fused_convolution(name);
        ASSERT_TRUE(named);
        const Schedule s = choose_schedule(declare_fused_convolution(named->shape).outputs(), h200);
        EXPECT_EQ(without_names(build(s).cuda()), without_names(build(fused_convolution_schedule(*named, h200)).cuda()))
            << s.explain();
    }
}

}  // namespace
}  // namespace tw::schedules
