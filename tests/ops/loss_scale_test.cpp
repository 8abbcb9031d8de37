// Scaled losses: a scale that is a power of two changes no bit of a step, a step whose gradients overflow is none.
#include <cmath>
#include <limits>
#include <optional>
#include <random>

#include <gmock/gmock.h>

#include "ops/layers.h"
#include "ops/operator.h"
#include "ops/optimizer.h"
#include "ops/parameters.h"
#include "ops/step/compile_step.h"
#include "tests/support/expect_error.h"
#include "tests/support/on_device.h"

namespace tw::nn {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

class LossScales : public OnDevice {
protected:
    void SetUp() override {
        OnDevice::SetUp();
        if (device_) backend_ = std::make_shared<Backend>(device_);
    }
    std::shared_ptr<Backend> backend_;
    std::mt19937_64 random_{std::random_device{}()};

    std::vector<float> draw(size_t count) {
        std::uniform_real_distribution<float> uniform(-1, 1);
        std::vector<float> values(count);
        for (float& value : values) value = uniform(random_);
        return values;
    }
};
TW_ON_EACH_DEVICE(LossScales);

/// sum(p * (c + p / 2)): p's gradient is c + p.
const Operator& objective() {
    static const Operator op("objective", [](const std::vector<tw::Tensor>& in) {
        Axis r = reduce_axis("r", in[0].shape()[0]);
        return compute("objective", {}, [&] { return sum(in[0](r) * (in[1](r) + 0.5 * in[0](r)), r); });
    });
    return op;
}

enum class Rule { Sgd, Adam, AdamW, Lion };

Optimizer optimizer_of(Rule rule, const std::vector<Tensor>& parameters, double max_norm) {
    switch (rule) {
        case Rule::Sgd: return Sgd(parameters, 0.05, SgdOptions{.momentum = 0.9, .max_norm = max_norm});
        case Rule::Adam: return Adam(parameters, 0.05, {.weight_decay = 0.1, .max_norm = max_norm});
        case Rule::AdamW: return AdamW(parameters, 0.05, {.weight_decay = 0.1, .max_norm = max_norm});
        case Rule::Lion: break;
    }
    return Lion(parameters, 0.05, {.weight_decay = 0.1, .max_norm = max_norm});
}

/// A parameter with its optimizer and, perhaps, a scale.
struct Trained {
    Trained(const std::shared_ptr<Backend>& backend, const std::vector<float>& start, Rule rule, double max_norm,
            const std::optional<LossScaleOptions>& options, bool is_compiled)
        : parameter(constant_parameter(backend, {int64_t(start.size())}, 0, "p")),
          c(constant_tensor(backend, {int64_t(start.size())}, 0, "c")),
          optimizer(optimizer_of(rule, {parameter}, max_norm)) {
        parameter.data().write(start);
        if (options) scale.emplace(backend, *options);
        if (!is_compiled) return;
        compiled = compile(backend, [&] {
            std::vector<Tensor> results{enqueue()};
            if (optimizer.gradient_norm().defined()) results.push_back(optimizer.gradient_norm());
            return results;
        });
    }
    Tensor enqueue() {
        const Tensor loss = objective()({parameter, c});
        backward(scale ? (*scale)(loss) : loss);
        if (scale) {
            optimizer.step(*scale);
            scale->step();
        } else {
            optimizer.step();
        }
        return loss;
    }
    void step(const std::vector<float>& coefficients) {
        c.data().write(coefficients);
        if (compiled)
            compiled->run();
        else
            enqueue();
    }
    /// Bits of the parameter, and of all that the optimizer keeps.
    std::vector<std::vector<float>> all() const {
        std::vector<std::vector<float>> values{parameter.data().read<float>()};
        for (const Tensor& state : optimizer.states()) values.push_back(state.data().read<float>());
        return values;
    }

    Tensor parameter, c;
    Optimizer optimizer;
    std::optional<LossScale> scale;
    std::optional<CompiledStep> compiled;
};

/// What the scale has to be, step by step.
struct ScaleReference {
    LossScaleOptions options;
    double scale = options.initial;
    int64_t good = 0;
    void step(bool overflowed) {
        ++good;
        if (overflowed) scale *= options.backoff;
        if (!overflowed && good >= options.interval) scale *= options.growth;
        if (overflowed || good >= options.interval) good = 0;
    }
};

/// Among steps of finite gradients some have one infinity, or NaN, or overflow by the scale alone.
TEST_P(LossScales, StepsThatOverflowAreNone) {
    for (int number = 0; number < 8; ++number) {
        const auto rule = static_cast<Rule>(number % 4);
        const bool is_compiled = number >= 4;
        const double max_norm = number % 2 ? 0 : 0.5;
        const LossScaleOptions options{.initial = 1024, .growth = 4, .backoff = 0.25, .interval = 3};
        const size_t count = 5 + random_() % 700;
        SCOPED_TRACE(fmt::format("rule {}, {} elements, compiled {}", number % 4, count, is_compiled));
        const std::vector<float> start = draw(count);
        // Of a scale that is 1 the same kernels: without one, products and sums are contracted otherwise.
        const LossScaleOptions one{.initial = 1, .growth = 1};
        Trained unscaled(backend_, start, rule, max_norm, {}, is_compiled);
        Trained plain(backend_, start, rule, max_norm, one, is_compiled);
        Trained scaled(backend_, start, rule, max_norm, options, is_compiled);
        ScaleReference reference{options};
        for (int n = 0; n < 12; ++n) {
            std::vector<float> coefficients = draw(count);
            const bool is_bad = n == 1 || n == 2 || n == 9;
            const size_t where = random_() % count;
            if (is_bad) coefficients[where] = n == 1 ? infinity : n == 2 ? std::nanf("") : 3e38F;
            if (!is_bad) {
                plain.step(coefficients);
                unscaled.step(coefficients);
            }
            scaled.step(coefficients);
            reference.step(is_bad);
            ASSERT_EQ(scaled.all(), plain.all()) << "step " << n;
            if (rule != Rule::Lion) {  // its signs may be those of roundings
                for (size_t k = 0; k < plain.all().size(); ++k)
                    ASSERT_THAT(plain.all()[k], testing::Pointwise(testing::FloatNear(1e-4F), unscaled.all()[k])) << n;
            }
            ASSERT_EQ(scaled.scale->value().data().read<float>()[0], static_cast<float>(reference.scale)) << n;
            ASSERT_EQ(scaled.scale->states()[1].data().read<float>()[0], static_cast<float>(reference.good)) << n;
            const float norm = scaled.optimizer.gradient_norm().data().read<float>()[0];
            ASSERT_EQ(std::isfinite(norm), !is_bad);
            if (!is_bad && max_norm > 0) {
                ASSERT_EQ(norm, plain.optimizer.gradient_norm().data().read<float>()[0]);
            }
        }
    }
}

/// Two optimizers share a scale: each skips its own overflow, and the scale follows both.
TEST_P(LossScales, SharedByOptimizers) {
    const std::vector<float> start = draw(40);
    const Tensor a = constant_parameter(backend_, {40}, 0.25, "a"), b = constant_parameter(backend_, {40}, 0.5, "b");
    const Tensor c = constant_tensor(backend_, {40}, 0.125, "c");
    const Tensor bad = constant_tensor(backend_, {40}, infinity, "bad");
    LossScale scale(backend_, {.initial = 16});
    Sgd first({a}, 0.5), second({b}, 0.5);
    const auto both = [&](const Tensor& of_second) {
        const Tensor loss = add(objective()({a, c}), objective()({b, of_second}));
        backward(scale(loss));
        first.step(scale);
        second.step(scale);
        scale.step();
    };
    both(bad);
    EXPECT_EQ(a.data().read<float>(), std::vector<float>(40, 0.25F - 0.5F * 0.375F));
    EXPECT_EQ(b.data().read<float>(), std::vector<float>(40, 0.5F));
    EXPECT_EQ(scale.value().data().read<float>()[0], 8);
    both(c);
    EXPECT_EQ(b.data().read<float>(), std::vector<float>(40, 0.5F - 0.5F * 0.625F));
    EXPECT_EQ(scale.value().data().read<float>()[0], 8);
    // One of them alone: another number of norms.
    backward(scale(objective()({a, bad})));
    first.step(scale);
    scale.step();
    EXPECT_EQ(scale.value().data().read<float>()[0], 4);
}

/// A perceptron whose gradients are small: without a scale f16 has none of them, with one it follows f32.
TEST_P(LossScales, F16) {
    const int64_t rows = 64, wide = 32;
    HostArray x = host_array(f32, {rows, wide}), y = host_array(f32, {rows, wide});
    fill_uniform(x, -1, 1, random_());
    fill_uniform(y, -1, 1, random_());
    struct Run {
        double first = 0, last = 0, scale = 0;
    };
    const auto train = [&](Type values, std::optional<double> initial) {
        const Tensor in(backend_, x, "x"), out(backend_, y, "y");
        const Linear a(backend_, wide, wide, 3), b(backend_, wide, wide, 4);
        Sgd sgd(joined({a.parameters(), b.parameters()}), 2e5);
        std::optional<LossScale> scale;
        if (initial) scale.emplace(backend_, LossScaleOptions{.initial = *initial, .interval = 50});
        const auto tiny = operator_with("tiny", "", [](const std::vector<tw::Tensor>& loss) {
            return compute("tiny", {}, [&] { return loss[0]() * 1e-6; });
        });
        const CompiledStep step = compile(backend_,
                                          [&] {
                                              const Tensor loss = tiny({mse_loss(b(relu(a(in))), out)});
                                              backward(scale ? (*scale)(loss) : loss);
                                              scale ? sgd.step(*scale) : sgd.step();
                                              if (scale) scale->step();
                                              return std::vector{loss};
                                          },
                                          {.mixed = {.values = values}});
        Run run;
        for (int n = 0; n < 100; ++n) {
            step.run();
            run.last = step.results()[0].to_host().at({}).real * 1e6;
            if (n == 0) run.first = run.last;
        }
        if (scale) run.scale = scale->value().data().read<float>()[0];
        return run;
    };
    const Run exact = train(f32, {}), lost = train(f16, {}), scaled = train(f16, 0x1p16), large = train(f16, 0x1p50);
    EXPECT_LT(exact.last, 0.9 * exact.first);
    EXPECT_GT(lost.last, 0.97 * lost.first) << "gradients that f16 should not have";
    EXPECT_NEAR(scaled.last, exact.last, 0.02 * exact.first);
    EXPECT_EQ(scaled.scale, 0x1p18);  // no overflow: it has grown twice
    EXPECT_LT(large.scale, 0x1p48);   // it shrank until gradients were finite
    EXPECT_LT(large.last, 0.97 * large.first);
}

TEST_P(LossScales, Refused) {
    const auto make = [&](const LossScaleOptions& options) { LossScale(backend_, options); };
    EXPECT_ERROR((make({.initial = 0})), "it begins with 0; give a power of two from 2^-24");
    EXPECT_ERROR((make({.growth = 0.5})), "growth is 0.5; give a power of two from 1 on");
    EXPECT_ERROR((make({.backoff = 1})), "backoff is 1, outside of (0, 1)");
    EXPECT_ERROR((make({.interval = 0})), "an interval of 0 steps");
    const std::string rounds = ", no power of two: losses and gradients would be rounded; give one";
    EXPECT_ERROR((make({.initial = 1000})), "LossScale: initial is 1000" + rounds);
    EXPECT_ERROR((make({.growth = 3})), "LossScale: growth is 3" + rounds);
    EXPECT_ERROR((make({.backoff = 0.3})), "LossScale: backoff is 0.3" + rounds);
    LossScale scale(backend_);
    EXPECT_ERROR((scale(constant_tensor(backend_, {2}, 0, "pair"))),
                 "the loss must be an f32 scalar, 'pair' is f32 [2]");
    EXPECT_ERROR((scale.step()), "no optimizer has stepped with it");
}

}  // namespace
}  // namespace tw::nn
