// What choose_schedule makes of a convolution and its neighbours, declared plainly: what makes its image, and sums over
// all pixels of what it makes.
#include <gmock/gmock.h>

#include "dsl/interpret.h"
#include "ops/executable.h"
#include "schedules/channel_sums.h"
#include "schedules/choose.h"
#include "schedules/convolution.h"
#include "schedules/convolve.h"
#include "schedules/tuned_records.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"

namespace tw::schedules {
namespace {

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

enum class Prologue { None, Tensor, F32Tensor };
enum class Sums { None, One, Two, Tuple, Moments };

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
    if (!layer.own_sum && !layer.residual)
        return convolve("z", image, w, bias, {.stride = {s.stride}, .dilation = {s.dilation}, .padding = {s.padding}});
    const Tensor more = input("more", s.type, {s.images, s.rows(), s.columns(), s.filters});
    const Axis e = reduce_axis("e", s.channels), a = reduce_axis("a", s.kernel_h), b = reduce_axis("b", s.kernel_w);
    auto place = [&](const Expr& pixel, const Expr& tap) { return pixel * s.stride + tap * s.dilation - s.padding; };
    return compute("z", {s.images, s.rows(), s.columns(), s.filters}, [&](Expr n, Expr p, Expr q, Expr f) {
        const Expr element = cast(f32, padded(image, 0)(n, place(p, a), place(q, b), e));
        Expr total = sum(cast(f32, w(f, a, b, e)) * element, {e, a, b});
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
    const Tensor z = convolved(layer, layer.prologue == Prologue::None ? x : normalized(layer, x), w);
    std::vector<Tensor> outputs{z};
    for (const Tensor& sum : sums_of(layer.sums, z)) outputs.push_back(sum);
    return outputs;
}

class ChooseNeighbours : public RandomCases {
protected:
    ChooseNeighbours() : RandomCases(31) {}

    Layer random_layer() {
        Layer layer{.shape = {.images = between(1, 3),
                              .height = between(3, 12),
                              .width = between(3, 12),
                              .channels = 8 * between(1, 9),
                              .filters = 8 * between(1, 10),
                              .kernel_h = between(1, 3),
                              .kernel_w = between(1, 3),
                              .stride = between(0, 3) ? 1 : 2,
                              .padding = between(0, 2),
                              .type = chance() ? bf16 : f16}};
        if (chance()) layer.shape.filters = 64;  // whole tiles of a raster
        layer.prologue = static_cast<Prologue>(between(0, 2));
        layer.sums = static_cast<Sums>(between(0, 4));
        layer.bias = chance(), layer.residual = between(0, 2) == 0, layer.own_sum = chance();
        return layer;
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

/// A record of tiles over a raster, which few layers so small have by the model.
TunedRecord record_of_halo(const ConvolutionShape& s, const std::string& tiling) {
    return {.kernel = fmt::format("convolution_{}_{}x{}x{}x{}_{}_{}x{}{}", name_of(s.type), s.images, s.height, s.width,
                                  s.channels, s.filters, s.kernel_h, s.kernel_w,
                                  s.padding > 0 ? fmt::format("_pad{}", s.padding) : ""),
            .tiling = tiling,
            .schedule = {},
            .device = {},
            .arch = "sm_90a",
            .version = {}};
}

/// Bit for bit; of tiles for each tap and of rasters.
TEST_P(ChooseNeighbours, OfAnyLayerAreTheDeclared) {
    const int rounds = GetParam() == "cuda" ? 60 : 20;
    int summed = 0, made = 0, over_rasters = 0;
    for (int round = 0; round < rounds; ++round) {
        const Layer layer = random_layer();
        const std::vector<Tensor> given = declared(layer);
        SCOPED_TRACE(to_string(*given[0].operation()));
        Target some = device_target();
        some.multiprocessors = static_cast<int>(between(1, 6));
        const RecordsInUse in_use({record_of_halo(
            layer.shape, fmt::format("halo{}b16s{}t{}", 16 * between(1, 8), between(2, 3), between(1, 2)))});
        const Schedule s = choose_schedule(given, some);
        const std::string how = s.explain();
        auto says = [&](const char* what) { return how.find(what) != std::string::npos; };
        summed += says(with_sums) ? 1 : 0;
        made += says(with_image) ? 1 : 0;
        over_rasters += says("tiling halo") && (says(with_sums) || says(with_image)) ? 1 : 0;
        expect_equal(given, s, static_cast<unsigned>(round));
    }
    if (device_target().has_wgmma) {
        EXPECT_GE(summed, rounds / 2);
        EXPECT_GE(made, rounds / 10);
        EXPECT_GE(over_rasters, rounds / 5);
    }
}

}  // namespace
}  // namespace tw::schedules
