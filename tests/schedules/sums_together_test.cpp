// Sums over all pixels that read the same tensors: batch norms' gradients, those of layer norms' gains, sums that need
// each other, and sums of what a convolution's gradient makes.
#include <cmath>

#include <gmock/gmock.h>

#include "dsl/differentiate.h"
#include "dsl/interpret.h"
#include "ops/executable.h"
#include "schedules/choose.h"
#include "schedules/convolve.h"
#include "schedules/normalization.h"
#include "schedules/sums_together.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"

namespace tw::schedules {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr double epsilon = 0.03;

/// Of a batch norm, [channels].
struct ByChannel {
    std::vector<double> mean, variance, total, product, size_of_terms;
};

/// y = (x - mean) / sqrt(variance + epsilon) gain + bias, perhaps with a ReLU behind it, and its gradients in float64.
/// Without a rule, gradients() goes through the moments as through anything.
class Norm {
public:
    Norm(Shape shape, Type type, bool has_relu, bool knows_moments, bool has_rule = true)
        : x(input("x", type, shape)),
          gain(input("gain", f32, {shape.back()})),
          bias(input("bias", f32, {shape.back()})),
          has_relu_(has_relu),
          knows_moments_(knows_moments) {
        const Affinity affinity{gain, bias};
        const Moments moments =
            knows_moments ? Moments{input("mean", f32, {shape.back()}), input("variance", f32, {shape.back()})}
                          : channel_moments("y", x);
        const Tensor plain = knows_moments || !has_rule ? batch_norm_by("y", moments, x, affinity, epsilon)
                                                        : batch_norm("y", x, affinity, epsilon);
        y = !has_relu ? plain : compute("z", shape, [&](const std::vector<Expr>& at) {
            return cast(type, relu(cast(f32, plain.read({at.begin(), at.end()}))));
        });
    }
    std::vector<Tensor> gradients_of(const Tensor& dy) const { return gradients(y, dy, {x, gain, bias}); }

    /// `got`: dx, dgain and dbias for the elements of dy.
    void expect(const std::vector<HostArray>& got, const HostArray& dy, const Bindings& bindings) const {
        const HostArray& elements = bindings.inputs.at("x");
        auto part = [&](const char* name, int64_t c) { return bindings.inputs.at(name).at({c}).real; };
        const size_t channels = static_cast<size_t>(elements.shape.back());
        const ByChannel sums = sums_of(elements, dy, bindings);
        const double count = static_cast<double>(elements.num_elements()) / static_cast<double>(channels);
        for (size_t c = 0; c < channels; ++c) {
            const double scale = 1 / std::sqrt(sums.variance[c] + epsilon), near = 4e-6 * sums.size_of_terms[c];
            const int64_t at = static_cast<int64_t>(c);
            EXPECT_NEAR(got[1].at({at}).real, sums.product[c] * scale, 8 * near * scale) << "dgain " << c;
            EXPECT_NEAR(got[2].at({at}).real, sums.total[c], near) << "dbias " << c;
        }
        std::vector<int64_t> at(elements.shape.size(), 0);
        do {
            const auto c = static_cast<size_t>(at.back());
            const double scale = 1 / std::sqrt(sums.variance[c] + epsilon), off = elements.at(at).real - sums.mean[c],
                         adjoint = adjoint_of(elements, dy, at, sums, bindings);
            double rest = adjoint;
            if (!knows_moments_) rest -= (sums.total[c] + off * sums.product[c] * scale * scale) / count;
            const double expected = rest * scale * part("gain", at.back());
            ASSERT_NEAR(got[0].at(at).real, expected, 0.005 * std::abs(expected) + 1e-4) << "dx";
        } while (advance(at, elements.shape));
    }

    Tensor x, gain, bias, y;

private:
    double adjoint_of(const HostArray& elements, const HostArray& dy, const std::vector<int64_t>& at,
                      const ByChannel& sums, const Bindings& bindings) const {
        const auto c = static_cast<size_t>(at.back());
        const double value = (elements.at(at).real - sums.mean[c]) / std::sqrt(sums.variance[c] + epsilon) *
                                 bindings.inputs.at("gain").at({at.back()}).real +
                             bindings.inputs.at("bias").at({at.back()}).real;
        return !has_relu_ || value > 0 ? dy.at(at).real : 0;
    }
    ByChannel sums_of(const HostArray& elements, const HostArray& dy, const Bindings& bindings) const {
        const size_t channels = static_cast<size_t>(elements.shape.back());
        const std::vector<double> zeros(channels, 0.0);
        ByChannel sums{zeros, zeros, zeros, zeros, zeros};
        const double count = static_cast<double>(elements.num_elements()) / static_cast<double>(channels);
        auto each = [&](const auto& see) {
            std::vector<int64_t> at(elements.shape.size(), 0);
            do see(at, static_cast<size_t>(at.back()));
            while (advance(at, elements.shape));
        };
        each([&](const auto& at, size_t c) { sums.mean[c] += elements.at(at).real / count; });
        each([&](const auto& at, size_t c) {
            sums.variance[c] += std::pow(elements.at(at).real - sums.mean[c], 2) / count;
        });
        for (size_t c = 0; c < channels && knows_moments_; ++c) {
            sums.mean[c] = bindings.inputs.at("mean").at({static_cast<int64_t>(c)}).real;
            sums.variance[c] = bindings.inputs.at("variance").at({static_cast<int64_t>(c)}).real;
        }
        each([&](const auto& at, size_t c) {
            const double adjoint = adjoint_of(elements, dy, at, sums, bindings);
            sums.total[c] += adjoint;
            sums.product[c] += adjoint * (elements.at(at).real - sums.mean[c]);
            sums.size_of_terms[c] += std::abs(adjoint) + 1;
        });
        return sums;
    }

    bool has_relu_, knows_moments_;
};

class Sums : public RandomCases {
protected:
    Sums() : RandomCases(17) {}

    std::vector<HostArray> run(const Schedule& s, const Bindings& bindings) {
        Executable executable(build(s), device_);
        return run_on(executable, bindings);
    }
    Bindings some_numbers(std::vector<Tensor> outputs, const Norm& norm, unsigned seed) {
        outputs.push_back(norm.y);
        Bindings bindings = random_bindings(outputs, seed);
        if (bindings.inputs.count("variance"))
            for (int64_t c = 0; c < bindings.inputs["variance"].shape[0]; ++c) {
                const double value = bindings.inputs["variance"].at({c}).real;
                bindings.inputs["variance"].set({c}, make_value(f32, value * value));
            }
        return bindings;
    }
};
TW_ON_EACH_DEVICE(Sums);

/// Kernels that have a pointer to the tensor among their parameters.
int readers_of(const Program& program, const std::string& name) {
    int count = 0;
    for (const auto& kernel : program.kernels()) {
        const size_t head = kernel.cuda.find("__global__"), end = kernel.cuda.find('{', head);
        const std::string parameters = kernel.cuda.substr(head, end - head);
        for (const char* behind : {",", ")"})
            count += parameters.find("* __restrict__ " + name + behind) != std::string::npos ? 1 : 0;
    }
    return count;
}

TEST_P(Sums, GradientsOfBatchNormsReadTheirOperandsTwice) {
    for (int round = 0; round < 12; ++round) {
        const int64_t channels = chance() ? between(1, 8) * 8 : between(1, 40);
        Shape shape{between(1, 4), between(5, 20), between(5, 20), channels};
        if (chance()) shape.erase(shape.begin() + 1);
        const bool has_relu = chance(), knows_moments = chance(), has_rule = chance();
        const Norm norm(shape, chance() ? bf16 : f16, has_relu, knows_moments, has_rule);
        const Tensor dy = input("dy", norm.x.type(), shape);
        const std::vector<Tensor> given = norm.gradients_of(dy);
        const Schedule s = choose_schedule(given, device_target());
        SCOPED_TRACE(text_of_shape(norm.x) + (has_relu ? " relu" : "") + (knows_moments ? " of moments" : "") +
                     (has_rule ? "" : " without a rule"));
        EXPECT_THAT(s.explain(), HasSubstr(": by one kernel, which reads what they sum once"));
        EXPECT_EQ(readers_of(build(s), "dy"), 2);  // the sums, and dx
        // A mask needs the variance first, and so do sums whose terms have it as a factor, as gradients() makes them.
        const bool needs_variance = has_relu || (!knows_moments && !has_rule);
        EXPECT_EQ(readers_of(build(s), "x"), (knows_moments ? 1 : 3) + needs_variance);
        const Bindings bindings = some_numbers(given, norm, static_cast<unsigned>(round));
        norm.expect(run(s, bindings), bindings.inputs.at("dy"), bindings);
        if (HasFatalFailure()) return;
    }
}

/// Of no batch norm: gain and bias of a layer norm, over rows; and of channels that come first.
TEST_P(Sums, OfAnyKind) {
    const Tensor x = input("x", bf16, {70, 24}), dy = input("dy", bf16, {70, 24}), gain = input("gain", f32, {24}),
                 bias = input("bias", f32, {24});
    const std::vector<Tensor> rows = gradients(layer_norm("y", x, 1, {gain, bias}), dy, {gain, bias});
    const Tensor image = input("image", bf16, {3, 10, 7, 5}), other = input("other", f16, {3, 10, 7, 5}),
                 about = input("about", f32, {10});
    const Axis n = reduce_axis("n", 3), i = reduce_axis("i", 7), j = reduce_axis("j", 5);
    auto off = [&](const Expr& c) { return cast(f32, image(n, c, i, j)) - about(c); };
    const std::vector<Tensor> first = {compute("total", {10},
                                               [&](Expr c) {
                                                   return sum(off(c), {n, i, j});
                                               }),
                                       compute("square", {10},
                                               [&](Expr c) {
                                                   return 2.0 * sum(off(c) * off(c), {j, n, i});
                                               }),
                                       compute("product", {10}, [&](Expr c) {
                                           return sum(cast(f32, other(n, c, i, j)) * off(c), {i, j, n});
                                       })};
    for (const std::vector<Tensor>& given : {rows, first}) {
        const Schedule s = choose_schedule(given, device_target());
        EXPECT_THAT(s.explain(), HasSubstr(": by one kernel, which reads what they sum once"));
        Bindings bindings = random_bindings(given, 3);
        const auto got = run(s, bindings), expected = interpret_plain(given, bindings);
        for (size_t k = 0; k < given.size(); ++k)
            for (int64_t c = 0; c < got[k].shape[0]; ++c)
                EXPECT_NEAR(got[k].at({c}).real, expected[k].at({c}).real, 1e-4) << given[k].name() << " " << c;
    }
}

/// Sums that choose by others what they sum: any of them may come together, if none needs another one. Bit for bit.
TEST_P(Sums, ThatNeedEachOther) {
    int together = 0;
    for (int round = 0; round < 12; ++round) {
        const int64_t rows = between(2, 40), channels = between(1, 12);
        const Tensor tensors[] = {input("a", bf16, {rows, channels}), input("b", bf16, {rows, channels}),
                                  input("c", f32, {rows, channels})};
        std::vector<Tensor> sums;
        for (int number = 0; number < 6; ++number) {
            const Axis n = reduce_axis("n", rows);
            const Tensor &one = tensors[between(0, 2)], &two = tensors[between(0, 2)];
            const Tensor by =
                !sums.empty() && between(0, 2) ? sums[between(0, static_cast<int>(sums.size()) - 1)] : Tensor();
            sums.push_back(compute(fmt::format("sum{}", number), {channels}, [&](Expr c) {
                const Expr first = cast(f32, one(n, c)), second = cast(f32, two(n, c));
                return sum(by.defined() ? select(0.0 < by(c), first, second) : first - second, n) + 1.0;
            }));
        }
        SCOPED_TRACE(round);
        const Schedule s = choose_schedule(sums, device_target());
        together += s.explain().find("which reads what they sum once") != std::string::npos ? 1 : 0;
        const Bindings bindings = whole_numbers(sums, static_cast<unsigned>(round));
        const auto got = run(s, bindings), expected = interpret_plain(sums, bindings);
        for (size_t k = 0; k < sums.size(); ++k) {
            EXPECT_EQ(s.outputs()[k].name(), sums[k].name());
            const auto differs = difference(sums[k].name(), got[k], expected[k], equal_values);
            EXPECT_FALSE(differs) << *differs;
        }
    }
    EXPECT_GE(together, 8);
}

/// dy of a batch norm is what the next layer's gradient makes: sums of it, and of it and x, in that kernel.
TEST_P(Sums, OfAConvolutionsGradientComeWithIt) {
    const int rounds = GetParam() == "cuda" ? 30 : 6;
    int together = 0, boxes = 0;
    for (int round = 0; round < rounds; ++round) {
        const int64_t channels = chance() ? 64 * between(1, 2) : 16 * between(1, 9), filters = 8 * between(2, 10),
                      kernel = between(0, 2) ? 3 : 1;
        const Shape shape{between(1, 3), between(5, 14), between(5, 14), channels};
        const bool knows_moments = chance(), has_relu = between(0, 3) > 0;
        const Norm norm(shape, chance() ? bf16 : f16, has_relu, knows_moments);
        const Type type = norm.x.type();
        const Tensor a = input("a", type, shape), w = input("w", type, {filters, kernel, kernel, channels}),
                     dout = input("dout", type, {shape[0], shape[1], shape[2], filters});
        const Tensor da = gradients(convolve("out", a, w, {}, {.padding = {kernel / 2}}), dout, {a})[0];
        std::vector<Tensor> given = norm.gradients_of(da);
        given.push_back(da);
        Target some = device_target();
        some.multiprocessors = between(1, 6);
        const Schedule s = choose_schedule(given, some);
        const std::string how = s.explain();
        SCOPED_TRACE(text_of_shape(norm.x) + (has_relu ? " relu" : "") + (knows_moments ? " of moments" : "") + how);
        if (some.has_wgmma && how.find("tiling halo") == std::string::npos) {
            EXPECT_THAT(how, HasSubstr(": of 'd_a', by the kernel that makes it, and one behind"));
            EXPECT_THAT(how, Not(HasSubstr("is not made with")));
            ++together;
            boxes += build(s).explain().find("x_shared: by the tensor memory") != std::string::npos ? 1 : 0;
        }
        const Bindings bindings = some_numbers(given, norm, static_cast<unsigned>(round));
        std::vector<HostArray> got = run(s, bindings);
        norm.expect(got, got[3], bindings);
        if (HasFatalFailure()) return;
    }
    if (device_target().has_wgmma) {
        EXPECT_GE(together, rounds / 2);
        EXPECT_GE(boxes, rounds / 6);
    }
}

}  // namespace
}  // namespace tw::schedules
