// Depthwise convolutions and their gradients among what users declare: choose_schedule finds them by what they read.
#include <array>

#include <gmock/gmock.h>

#include "dsl/differentiate.h"
#include "dsl/interpret.h"
#include "ops/executable.h"
#include "schedules/choose.h"
#include "schedules/convolve.h"
#include "schedules/find_depthwise.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"

namespace tw::schedules {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* tiled = ", by the model of its time";
constexpr ConvolutionPass passes[] = {ConvolutionPass::Forward, ConvolutionPass::DataGradient,
                                      ConvolutionPass::WeightGradient};

/// A user's own declaration: numbers for each side, dimensions of the weight in an order of their own.
struct Declared {
    DepthwiseWindows windows;
    FoundDepthwise weight;  ///< its dimensions
    Shape weight_shape;
    bool weight_first = false, columns_first = false;  ///< of factors, of axes
};

Tensor image(const std::string& name, const DepthwiseWindows& of, bool is_result) {
    const int64_t rows = is_result ? of.rows.windows : of.rows.extent,
                  columns = is_result ? of.columns.windows : of.columns.extent;
    return of.is_signal ? input(name, of.type, {of.images, columns, of.channels})
                        : input(name, of.type, {of.images, rows, columns, of.channels});
}

/// finish(sum, indices of y)
using Finish = std::function<Expr(const Expr&, const std::vector<Expr>&)>;

Tensor forward(const Declared& d, const Tensor& x, const Tensor& w, const Finish& finish) {
    const auto& [images, channels, rows, columns, type, is_signal] = d.windows;
    const Axis r = reduce_axis("a", rows.taps), t = reduce_axis("b", columns.taps);
    const Tensor like = image("y", d.windows, true);
    return compute("y", {like.shape().begin(), like.shape().end()}, [&](const std::vector<Expr>& at) {
        std::vector<Operand> of_x{at[0]};
        if (!is_signal) of_x.emplace_back(at[1] * rows.stride + r * rows.dilation - rows.before);
        of_x.emplace_back(at[at.size() - 2] * columns.stride + t * columns.dilation - columns.before);
        of_x.emplace_back(at.back());
        const std::vector<Expr> of_w = d.weight.of_weight(w.rank(), at.back(), r, t);
        const Expr element = cast(f32, padded(x, 0).read(of_x)), factor = cast(f32, w.read({of_w.begin(), of_w.end()}));
        std::vector<Axis> axes = is_signal ? std::vector<Axis>{t} : std::vector<Axis>{r, t};
        if (d.columns_first) std::reverse(axes.begin(), axes.end());
        return finish(sum(d.weight_first ? factor * element : element * factor, axes), at);
    });
}

/// Or at most one term.
bool has_sum(const Tensor& given) {
    bool found = false;
    for (const auto& operation : operations_of({given}))
        if (!operation->is_input())
            visit(operation->outputs[0].body, [&](const Expr& e) { found = found || e.as<Reduce>(); });
    return found;
}

class ChooseDepthwises : public RandomCases {
protected:
    ChooseDepthwises() : RandomCases(41) {}

    DepthwiseSide random_side(bool is_signal) {
        DepthwiseSide side{.extent = between(1, is_signal ? 30 : 11), .windows = 1, .taps = between(1, 5)};
        side.stride = chance() ? 1 : between(2, 3), side.dilation = chance() ? 1 : 2;
        side.before = between(0, 4);
        const int64_t span = (side.taps - 1) * side.dilation + 1, after = between(0, 4);
        side.extent = std::max(side.extent, span - side.before - after);
        side.windows = (side.extent + side.before + after - span) / side.stride + 1;
        return side;
    }

    Declared random_declaration() {
        for (;;) {
            Declared d;
            d.weight_first = chance(), d.columns_first = chance();
            d.windows = {.images = between(1, 3),
                         .channels = chance() ? 8 * between(1, 5) : between(1, 40),
                         .rows = {1, 1, 1},
                         .columns = {},
                         .type = std::array{bf16, f16, f32}[static_cast<size_t>(between(0, 2))],
                         .is_signal = between(0, 2) == 0};
            d.windows.columns = random_side(d.windows.is_signal);
            if (!d.windows.is_signal) d.windows.rows = random_side(false);
            choose_dimensions(d);
            if (d.windows.rows.taps * d.windows.columns.taps > 1 && d.windows.reads_image()) return d;
        }
    }

    /// Channels before, behind or between taps, and a dimension of one element somewhere.
    void choose_dimensions(Declared& d) {
        std::vector<int64_t> extents{d.windows.columns.taps};
        if (!d.windows.is_signal) extents.insert(extents.begin(), d.windows.rows.taps);
        std::vector<int> taps;
        for (int k = 0; k < static_cast<int>(extents.size()); ++k) taps.push_back(k);
        auto insert = [&](int at, int64_t extent) {
            extents.insert(extents.begin() + at, extent);
            for (int& tap : taps) tap += tap >= at ? 1 : 0;
            if (d.weight.channels >= at) ++d.weight.channels;
        };
        d.weight.channels = -1;
        const int channels = between(0, static_cast<int>(extents.size()));
        insert(channels, d.windows.channels);
        d.weight.channels = channels;
        if (chance()) insert(between(0, static_cast<int>(extents.size())), 1);
        d.weight.taps = taps;
        d.weight_shape = {extents.begin(), extents.end()};
    }

    /// Bit for bit but for the sign of a zero.
    void expect_equal(const std::vector<Tensor>& given, const Schedule& s, unsigned seed) {
        const Bindings bindings = whole_numbers(given, seed);
        Bindings all = bindings;
        all.inputs.merge(whole_numbers(s.outputs(), seed).inputs);
        Executable executable(build(s), device_);
        const auto got = run_on(executable, all), expected = interpret_plain(given, bindings);
        for (size_t k = 0; k < given.size(); ++k) {
            const auto differs = difference(given[k].name(), got[k], expected[k], equal_values);
            EXPECT_FALSE(differs) << *differs << "\n" << executable.program().cuda();
        }
    }
};
TW_ON_EACH_DEVICE(ChooseDepthwises);

TEST_P(ChooseDepthwises, OfAnyDeclarationAreTiled) {
    const int rounds = GetParam() == "cuda" ? 40 : 14;
    for (int round = 0; round < rounds; ++round) {
        const Declared d = random_declaration();
        const Tensor x = image("x", d.windows, false), w = input("w", d.windows.type, d.weight_shape),
                     dy = image("dy", d.windows, true);
        const Tensor y = forward(d, x, w, [&](const Expr& total, const auto&) { return cast(d.windows.type, total); });
        for (ConvolutionPass pass : passes) {
            const Tensor given = pass == ConvolutionPass::Forward
                                     ? y
                                     : gradients(y, dy, {pass == ConvolutionPass::DataGradient ? x : w})[0];
            SCOPED_TRACE(to_string(*given.operation()));
            const Schedule s = choose_schedule({given}, device_target());
            if (s.target().has_tma && has_sum(given)) {
                EXPECT_THAT(s.explain(), HasSubstr(tiled));
                EXPECT_THAT(s.explain(), Not(HasSubstr("is no depthwise")));  // of another phase, say
                EXPECT_THAT(build(s).explain(), HasSubstr("by the tensor memory accelerator, boxes of"));
            }
            EXPECT_EQ(s.outputs()[0].name(), given.name());
            expect_equal({given}, s, static_cast<unsigned>(round));
        }
    }
}

/// Of both sides strides, so that no axis is an index, and columns are summed first.
TEST(ChooseDepthwise, OfAxesInAnyOrder) {
    const Tensor x = input("x", bf16, {1, 9, 6, 8}), w = input("w", bf16, {4, 8, 5, 1}),
                 dy = input("dy", bf16, {1, 3, 4, 8});
    const Axis r = reduce_axis("a", 4), t = reduce_axis("b", 5);
    const Tensor y = compute("y", {1, 3, 4, 8}, [&](Expr i, Expr p, Expr q, Expr c) {
        const Expr element = cast(f32, padded(x, 0).read({i, p * 3 + r - 2, q * 2 + t - 4, c}));
        return cast(bf16, sum(element * cast(f32, w(r, c, t, 0)), {t, r}));
    });
    for (const Tensor& given : {y, gradients(y, dy, {x})[0], gradients(y, dy, {w})[0]})
        EXPECT_THAT(choose_schedule({given}, target("sm_90a")).explain(), HasSubstr(tiled))
            << to_string(*given.operation());
}

/// What stands around the sums comes with them: a bias, a function, an image that is added, in one expression or in an
/// output that alone reads them.
TEST_P(ChooseDepthwises, EndWithWhatIsMadeOfThem) {
    const int rounds = GetParam() == "cuda" ? 24 : 8;
    for (int round = 0; round < rounds; ++round) {
        const Declared d = random_declaration();
        const Type type = d.windows.type;
        const Tensor x = image("x", d.windows, false), w = input("w", type, d.weight_shape),
                     more = image("more", d.windows, true), bias = input("bias", f32, {d.windows.channels});
        const bool apart = chance(), is_f32 = chance(), is_read_twice = between(0, 3) == 0;
        const Tensor y = forward(d, x, w, [&](const Expr& total, const std::vector<Expr>& at) {
            const Expr value = relu(total + bias(at.back()));
            if (apart) return is_f32 ? value : cast(type, value);
            return cast(type, value + cast(f32, more.read({at.begin(), at.end()})));
        });
        std::vector<Tensor> given{y};
        if (apart) {
            given[0] = compute("z", {y.shape().begin(), y.shape().end()}, [&](const std::vector<Expr>& at) {
                const std::vector<Operand> own{at.begin(), at.end()};
                return cast(type, min(cast(f32, y.read(own)) * 2.0 + cast(f32, more.read(own)), 6.0));
            });
            if (is_read_twice) given.push_back(y);
        }
        SCOPED_TRACE(to_string(*y.operation()));
        const Schedule s = choose_schedule(given, device_target());
        if (s.target().has_tma) {
            EXPECT_THAT(s.explain(), HasSubstr(tiled));
            EXPECT_EQ(build(s).kernels().size(), size_t{2} + (d.windows.channels % 8 ? 1 : 0) + given.size() - 1)
                << "taps, a copy of odd channels, the sums, and what else reads them";
        }
        expect_equal(given, s, static_cast<unsigned>(round));
    }
}

/// Layers as convolve() declares them, of one and two dimensions, with a bias, and all their gradients at once.
TEST_P(ChooseDepthwises, OfLayersAreTiledForwardAndBackward) {
    struct Layer {
        Shape x, weight;
        ConvolutionOptions options;
    };
    const Layer layers[] = {{{2, 9, 8, 24}, {24, 3, 3, 1}, {.padding = {1}, .groups = 24}},
                            {{2, 11, 6, 20}, {20, 5, 3, 1}, {.stride = {2}, .padding = {{2, 1}, {0, 1}}, .groups = 20}},
                            {{2, 4, 3, 16}, {16, 5, 5, 1}, {.padding = {3}, .groups = 16}},  // fewer windows than taps
                            {{2, 29, 40}, {40, 4, 1}, {.padding = {{3, 0}}, .groups = 40}},  // of the past alone
                            {{3, 26, 16}, {16, 3, 1}, {.stride = {2}, .dilation = {2}, .padding = {2}, .groups = 16}}};
    for (const Layer& layer : layers) {
        const Tensor x = input("x", bf16, layer.x), w = input("w", bf16, layer.weight),
                     bias = input("bias", bf16, {layer.weight[0]});
        const Tensor y = convolve("y", x, w, bias, layer.options);
        const Tensor dy = input("dy", bf16, {y.shape().begin(), y.shape().end()});
        const std::vector<Tensor> d = gradients(y, dy, {x, w, bias});
        for (const std::vector<Tensor>& given : {std::vector<Tensor>{y}, d}) {
            SCOPED_TRACE(to_string(*given[0].operation()));
            const Schedule s = choose_schedule(given, device_target());
            const std::string how = s.explain();
            size_t count = 0;
            for (size_t at = how.find(tiled); at != std::string::npos; at = how.find(tiled, at + 1)) ++count;
            if (s.target().has_tma) {
                EXPECT_EQ(count, given.size() == 1 ? 1u : 2u) << how;
            }
            expect_equal(given, s, 5);
        }
    }
}

/// Of so many taps copies with channels last pay, of few they do not.
TEST_P(ChooseDepthwises, WithChannelsFirstAreTiledWhereCopiesPay) {
    const Tensor x = input("x", bf16, {2, 48, 46, 50});
    auto layer = [&](int64_t taps) {
        return convolve("y", x, input("w", bf16, {48, 1, taps, taps}), {},
                        {.padding = {taps / 2}, .groups = 48, .layout = Layout::ChannelsFirst});
    };
    const Tensor y = layer(9), dy = input("dy", bf16, {y.shape().begin(), y.shape().end()});
    for (const Tensor& given : {y, gradients(y, dy, {x})[0]}) {
        SCOPED_TRACE(to_string(*given.operation()));
        const Schedule s = choose_schedule({given}, device_target());
        if (s.target().has_wgmma) {
            EXPECT_THAT(s.explain(), HasSubstr(tiled));
            EXPECT_THAT(s.explain(), HasSubstr("' is a copy, with channels first, of what its kernel makes"));
            EXPECT_THAT(
                choose_schedule({layer(3)}, s.target()).explain(),
                HasSubstr("'y' is computed as its channels lie, dimension 1: copies of so little, channels last, "
                          "would take longer than windows in registers save"));
        }
        if (given.same(y)) expect_equal({given}, s, 3);
    }
}

/// A layer has one window along a side whose terms, all of that window, fit other strides as well, with which it would
/// have more: gradients are compared with none of those.
TEST_P(ChooseDepthwises, OfOneWindowAreComparedWithAsMany) {
    for (const int64_t stride : {2, 3, 5})
        for (int64_t extent = 1; extent <= std::min<int64_t>(stride, 3); ++extent) {
            const Tensor x = input("x", f16, {1, 6, extent, 48}), w = input("w", f16, {48, 3, 3, 1});
            const Tensor y =
                convolve("y", x, w, {}, {.stride = {1, stride}, .padding = {{2, 2}, {2, 0}}, .groups = 48});
            const Tensor dy = input("dy", f16, {y.shape().begin(), y.shape().end()});
            ASSERT_EQ(as_constant(y.shape()[2]), 1);
            const Tensor given = gradients(y, dy, {x})[0];
            SCOPED_TRACE(to_string(*given.operation()));
            std::optional<Schedule> s;
            ASSERT_NO_THROW(s = choose_schedule({given}, device_target()));
            if (s->target().has_tma) {
                EXPECT_THAT(s->explain(), HasSubstr(tiled));
            }
            expect_equal({given}, *s, 3);
        }
}

/// One behind another, over a stage between them that both a layer and the result read.
TEST_P(ChooseDepthwises, AreReadByOthers) {
    const Tensor x = input("x", bf16, {2, 7, 9, 16}), w = input("w", bf16, {16, 3, 3, 1}),
                 v = input("v", bf16, {16, 3, 3, 1});
    const ConvolutionOptions options{.padding = {1}, .groups = 16};
    const Tensor first = convolve("first", x, w, {}, options);
    const Tensor hidden = compute("hidden", {2, 7, 9, 16}, [&](Expr n, Expr i, Expr j, Expr c) {
        return cast(bf16, min(relu(cast(f32, first(n, i, j, c))), 3.0));
    });
    const Tensor second = convolve("second", hidden, v, {}, options);
    const Tensor z = compute("z", {2, 7, 9, 16}, [&](Expr n, Expr i, Expr j, Expr c) {
        return cast(bf16, cast(f32, second(n, i, j, c)) + cast(f32, hidden(n, i, j, c)));
    });
    const Schedule s = choose_schedule({z}, device_target());
    if (s.target().has_tma) {
        EXPECT_THAT(s.explain(), HasSubstr("'first' is declared anew, as convolutions are fastest"));
        EXPECT_THAT(s.explain(), HasSubstr("'second' is declared anew, as convolutions are fastest"));
    }
    expect_equal({z}, s, 8);
}

}  // namespace
}  // namespace tw::schedules
