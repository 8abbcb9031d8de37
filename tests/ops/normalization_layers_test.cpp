// Batch, group and layer norm as declared and as layers: random shapes against loops over plain numbers in float64,
// every gradient against finite differences, running moments, narrow types, refusals.
#include <map>

#include "dsl/differentiate.h"
#include "ops/autograd.h"
#include "ops/layers.h"
#include "ops/normalization.h"
#include "tests/dsl/expect_gradients.h"
#include "tests/ops/on_each_device.h"
#include "tests/ops/random_windows.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

using Place = std::vector<int64_t>;

double real(const HostArray& array, const Place& at) { return array.at(at).real; }

/// Random extents between the images and the channels.
Place random_shape(Draw& draw, int64_t channels) {
    Place inner;
    for (int64_t d = draw.between(0, 2); d > 0; --d) inner.push_back(draw.between(1, 3));
    return indices(draw.between(1, 3), inner, channels);
}

/// Mean and variance of the elements that share what `kept` says of their place.
struct Moments {
    double mean = 0, variance = 0, count = 0;
};
std::map<Place, Moments> moments_by(const HostArray& x, const std::function<Place(const Place&)>& kept) {
    std::map<Place, Moments> all;
    auto each = [&](const auto& see) {
        Place at(x.shape.size(), 0);
        do see(all[kept(at)], real(x, at));
        while (advance(at, x.shape));
    };
    each([](Moments& m, double) { ++m.count; });
    each([](Moments& m, double value) { m.mean += value / m.count; });
    each([](Moments& m, double value) { m.variance += (value - m.mean) * (value - m.mean) / m.count; });
    return all;
}

/// `last`: how many dimensions gain and bias have.
std::function<double(const Place&)> expected(const Bindings& b, const std::map<Place, Moments>& moments,
                                             const std::function<Place(const Place&)>& kept, int64_t last,
                                             double epsilon) {
    return [&b, &moments, kept, last, epsilon](const Place& at) {
        const Moments& m = moments.at(kept(at));
        const Place part(at.end() - last, at.end());
        const double value = (real(b.inputs.at("x"), at) - m.mean) / std::sqrt(m.variance + epsilon);
        return value * real(b.inputs.at("gain"), part) + real(b.inputs.at("bias"), part);
    };
}

struct Operands {
    Tensor x, gain, bias;
    Operands(Type type, const Place& shape, int64_t last)
        : x(input("x", type, shape_of_extents(shape))),
          gain(input("gain", type, shape_of_extents({shape.end() - last, shape.end()}))),
          bias(input("bias", type, shape_of_extents({shape.end() - last, shape.end()}))) {}
    std::vector<Tensor> all() const { return {x, gain, bias}; }
};

constexpr double epsilon = 0.03;  // as large as variances, so that each test sees it

void expect_norm(const Operands& o, const Tensor& y, int64_t last, const std::function<Place(const Place&)>& kept,
                 uint64_t seed) {
    const Bindings bindings = random_inputs(o.all(), seed);
    const auto moments = moments_by(bindings.inputs.at("x"), kept);
    expect_elements(interpret_plain({y}, bindings)[0], 1e-12, expected(bindings, moments, kept, last, epsilon));
    expect_gradients(y, o.all(), bindings);
}

TEST(Norms, RandomShapesAndTheirGradients) {
    Draw draw(11);
    for (int n = 0; n < 30; ++n) {
        const int64_t groups = draw.between(1, 3), of_group = draw.between(1, 3);
        const Place shape = random_shape(draw, groups * of_group);
        SCOPED_TRACE(fmt::format("{} in {} groups", indices_text(shape), groups));
        const Operands o(f64, shape, 1);
        expect_norm(
            o, schedules::batch_norm("y", o.x, {o.gain, o.bias}, epsilon), 1,
            [](const Place& at) { return Place{at.back()}; }, static_cast<uint64_t>(n));
        expect_norm(
            o, schedules::group_norm("y", o.x, groups, {o.gain, o.bias}, epsilon), 1,
            [&](const Place& at) {
                return Place{at[0], at.back() / of_group};
            },
            static_cast<uint64_t>(n));
        const int64_t last = draw.between(1, static_cast<int64_t>(shape.size()));
        const Operands rows(f64, shape, last);
        expect_norm(
            rows, schedules::layer_norm("y", rows.x, last, {rows.gain, rows.bias}, epsilon), last,
            [&](const Place& at) { return Place(at.begin(), at.end() - last); }, static_cast<uint64_t>(n));
        if (HasFatalFailure()) return;
    }
}

TEST(Norms, ByMomentsThatAreGiven) {
    const Operands o(f64, {3, 2, 4}, 1);
    const Tensor mean = input("mean", f64, {4}), variance = input("variance", f64, {4});
    const Tensor y = schedules::batch_norm_by("y", {mean, variance}, o.x, {o.gain, o.bias}, epsilon);
    Bindings bindings = random_inputs({o.x, o.gain, o.bias, mean}, 4);
    bindings.inputs["variance"] = random_array(variance, 5);  // positive
    std::map<Place, Moments> moments;
    for (int64_t c = 0; c < 4; ++c)
        moments[{c}] = {real(bindings.inputs["mean"], {c}), real(bindings.inputs["variance"], {c}), 1};
    auto kept = [](const Place& at) { return Place{at.back()}; };
    expect_elements(interpret_plain({y}, bindings)[0], 1e-12, expected(bindings, moments, kept, 1, epsilon));
    expect_gradients(y, {o.x, o.gain, o.bias, mean, variance}, bindings);
}

TEST(Norms, WithoutGainOrBias) {
    const Operands o(f64, {3, 2, 4}, 1);
    const Bindings bindings = random_inputs(o.all(), 4);
    const auto got =
        interpret_plain({schedules::batch_norm("plain", o.x, {}), schedules::batch_norm("scaled", o.x, {o.gain, {}}),
                         schedules::batch_norm("y", o.x, {o.gain, o.bias})},
                        bindings);
    expect_elements(got[2], 1e-12, [&](const Place& at) {
        return real(got[0], at) * real(bindings.inputs.at("gain"), {at[2]}) + real(bindings.inputs.at("bias"), {at[2]});
    });
    expect_elements(got[1], 1e-12,
                    [&](const Place& at) { return real(got[0], at) * real(bindings.inputs.at("gain"), {at[2]}); });
}

TEST(Norms, Refusals) {
    const Tensor x = input("x", f32, {2, 5, 6}), part = input("part", f32, {5}), narrow = input("narrow", bf16, {6});
    EXPECT_ERROR(schedules::batch_norm("y", input("x", f32, {6}), {}), "batch_norm: x is f32 [6]; give floats of 2");
    EXPECT_ERROR(
        schedules::batch_norm("y", x, {part, {}}),
        "batch_norm: x is f32 [2, 5, 6], the gain f32 [5]; give it the last 1 of x's extents, and x's type or f32; "
        "channels are its last dimension here: give it permute(x, {0, 2, 1})");
    EXPECT_ERROR(schedules::batch_norm("y", x, {{}, narrow}), "the bias bf16 [6]");
    EXPECT_ERROR(schedules::batch_norm_by("y", {part, part}, x, {}),
                 "batch_norm_by: x is f32 [2, 5, 6], the mean f32 [5]");
    EXPECT_ERROR(schedules::group_norm("y", x, 4, {}),
                 "group_norm: 4 groups do not divide the 6 channels of x [2, 5, 6]");
    EXPECT_ERROR(schedules::layer_norm("y", x, 4, {}),
                 "layer_norm: over the last 4 dimensions of x [2, 5, 6]; give 1 to 3");
    EXPECT_ERROR(schedules::layer_norm("y", x, 2, {part, {}}), "give it the last 2 of x's extents");
}

class NormLayers : public OnEachDevice {
protected:
    void SetUp() override {
        OnEachDevice::SetUp();
        if (device_) backend_ = std::make_shared<nn::Backend>(device_);
    }
    nn::Tensor on_device(const HostArray& host, const std::string& name) const { return {backend_, host, name}; }

    std::shared_ptr<nn::Backend> backend_;
};
TW_ON_EACH_DEVICE(NormLayers);

/// sum(y * c)
nn::Tensor weighted(const nn::Tensor& y, const nn::Tensor& c) {
    static const nn::Operator op("weighted", [](const std::vector<Tensor>& in) {
        std::vector<Axis> axes;
        for (const Expr& extent : in[0].shape()) axes.push_back(reduce_axis("r", extent));
        const std::vector<Operand> at(axes.begin(), axes.end());
        return compute("loss", {}, [&] { return sum(in[0].read(at) * in[1].read(at), axes); });
    });
    return op({y, c});
}

/// Through the tape, with kernels, against the declaration's values and gradients in float64.
TEST_P(NormLayers, KernelsAgreeWithTheDeclaration) {
    const Operands o(f32, {3, 4, 5, 6}, 1), rows(f32, {3, 4, 5, 6}, 2);
    struct Norm {
        const Operands& operands;
        Tensor y;
        std::function<nn::Tensor(const std::vector<nn::Tensor>&)> call;
    };
    const std::vector<Norm> norms = {{o, schedules::batch_norm("y", o.x, {o.gain, o.bias}, epsilon),
                                      [](const auto& in) { return nn::batch_norm(in[0], in[1], in[2], epsilon); }},
                                     {o, schedules::group_norm("y", o.x, 3, {o.gain, o.bias}, epsilon),
                                      [](const auto& in) { return nn::group_norm(in[0], 3, in[1], in[2], epsilon); }},
                                     {rows, schedules::layer_norm("y", rows.x, 2, {rows.gain, rows.bias}, epsilon),
                                      [](const auto& in) { return nn::layer_norm(in[0], in[1], in[2], epsilon); }}};
    for (const Norm& norm : norms) {
        const Tensor dy = input("dy", f32, shape_of_extents(extents_of(norm.y)));
        std::vector<Tensor> inputs = norm.operands.all();
        inputs.push_back(dy);
        const Bindings bindings = random_inputs(inputs, 3);
        std::vector<nn::Tensor> leaves;
        for (const char* name : {"x", "gain", "bias"})
            leaves.push_back(on_device(bindings.inputs.at(name), name).set_requires_grad());
        const nn::Tensor result = norm.call(leaves);
        nn::backward(weighted(result, on_device(bindings.inputs.at("dy"), "dy")));
        std::vector<Tensor> declared = gradients(norm.y, dy, norm.operands.all());
        declared.push_back(norm.y);
        const auto exact = interpret_plain(declared, bindings, Precision::Float64);
        expect_elements(result.to_host(), 1e-5, [&](const Place& at) { return real(exact[3], at); });
        for (size_t i = 0; i < 3; ++i)
            expect_elements(leaves[i].grad().to_host(), 1e-5, [&](const Place& at) { return real(exact[i], at); });
    }
}

/// In training the running moments follow those of the batches, in a recorded step, too; inference takes them.
TEST_P(NormLayers, RunningMoments) {
    constexpr double momentum = 0.25;
    const nn::BatchNorm norm(backend_, 3, momentum, epsilon);
    std::vector<double> mean(3, 0), variance(3, 1);
    const nn::Tensor x(backend_, f32, {4, 2, 3}, "x");
    nn::Tensor y;
    Graph step = backend_->record([&] { y = norm(x); });
    HostArray host = host_array(f32, {4, 2, 3});
    for (uint64_t batch = 0; batch < 4; ++batch) {
        fill_uniform(host, -1, 2, batch);
        x.copy_from_host(host);
        if (batch % 2)
            step.run();
        else
            norm(x);
        for (const auto& [channel, m] : moments_by(host, [](const Place& at) { return Place{at.back()}; })) {
            const auto c = static_cast<size_t>(channel[0]);
            mean[c] += momentum * (m.mean - mean[c]);
            variance[c] += momentum * (m.variance * m.count / (m.count - 1) - variance[c]);
        }
    }
    expect_elements(norm.running_mean().to_host(), 1e-6, [&](const Place& c) { return mean[size_t(c[0])]; });
    expect_elements(norm.running_variance().to_host(), 1e-6, [&](const Place& c) { return variance[size_t(c[0])]; });
    expect_elements(norm.infer(x).to_host(), 1e-5, [&](const Place& at) {
        const auto c = static_cast<size_t>(at[2]);
        return (real(host, at) - mean[c]) / std::sqrt(variance[c] + epsilon);
    });
    EXPECT_FALSE(norm.running_mean().requires_grad());
    EXPECT_EQ(norm.parameters().size(), 2u);
}

TEST_P(NormLayers, LayersOfNarrowImages) {
    for (Type type : {bf16, f16}) {
        HostArray host = host_array(type, {2, 3, 4});
        fill_uniform(host, -1, 1, 7);
        const nn::Tensor x = on_device(host, "x");
        auto expect = [&](const nn::Tensor& y, const std::function<Place(const Place&)>& kept) {
            EXPECT_EQ(y.type(), type);
            const auto moments = moments_by(host, kept);
            expect_elements(y.to_host(), 1.1 * unit_roundoff(type), [&](const Place& at) {
                const Moments& m = moments.at(kept(at));
                return (real(host, at) - m.mean) / std::sqrt(m.variance + 1e-5);
            });
        };
        expect(nn::BatchNorm(backend_, 4)(x), [](const Place& at) { return Place{at[2]}; });
        expect(nn::GroupNorm(backend_, 2, 4)(x), [](const Place& at) { return Place{at[0], at[2] / 2}; });
        expect(nn::LayerNorm(backend_, {3, 4})(x), [](const Place& at) { return Place{at[0]}; });
    }
}

TEST_P(NormLayers, Flatten) {
    const Tensor x = input("x", f32, {2, 3, 4, 5}), dy = input("dy", f32, {2, 60});
    const Bindings bindings = random_inputs({x, dy}, 1);
    const nn::Tensor leaf = on_device(bindings.inputs.at("x"), "x").set_requires_grad(), flat = nn::flatten(leaf);
    EXPECT_EQ(flat.shape(), (Place{2, 60}));
    EXPECT_EQ(flat.data().read<float>(), leaf.data().read<float>());
    const nn::Tensor c = on_device(bindings.inputs.at("dy"), "dy");
    nn::backward(weighted(flat, c));
    EXPECT_EQ(leaf.grad().data().read<float>(), c.data().read<float>());
    EXPECT_ERROR(nn::flatten(on_device(host_array(f32, {3}), "row")), "flatten: x is [3]; give [batch, extents...]");
}

}  // namespace
}  // namespace tw
