// Dropout: which elements stay, by a Philox of our own here; that replayed steps draw anew, and gradients the same.
#include "ops/modules/dropout.h"

#include <array>

#include "ops/layers.h"
#include "ops/persistence/checkpoint.h"
#include "ops/step/compile_step.h"
#include "tests/ops/modules/slopes.h"
#include "tests/support/expect_error.h"
#include "tests/support/on_device.h"

namespace tw::nn {
namespace {

using Words = std::array<uint32_t, 4>;

Words philox_of(Words c, std::array<uint32_t, 2> key) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t{0xD2511F53} * c[0], b = uint64_t{0xCD9E8D57} * c[2];
        c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ key[0], static_cast<uint32_t>(b),
             static_cast<uint32_t>(a >> 32) ^ c[3] ^ key[1], static_cast<uint32_t>(a)};
        key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
    }
    return c;
}

/// What the layer makes of x in its call of this number.
Values dropped(const Values& x, double probability, uint64_t seed, uint32_t call) {
    const uint32_t drawn =
        philox_of({call, 0, 0, 0}, {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)})[0];
    Values y;
    for (size_t e = 0; e < x.size(); ++e) {
        const uint32_t word = philox_of({static_cast<uint32_t>(e / 4), 0, 0, 0}, {drawn, 0})[e % 4];
        y.push_back(word / 4294967296.0 < probability ? 0 : x[e] / (1 - probability));
    }
    return y;
}

class Dropouts : public OnDevice {
protected:
    void SetUp() override {
        OnDevice::SetUp();
        if (device_) backend_ = std::make_shared<Backend>(device_);
    }
    std::shared_ptr<Backend> backend_;
};
TW_ON_EACH_DEVICE(Dropouts);

constexpr uint64_t Seed = 0x123456789abcdef;
constexpr int64_t Rows = 13, Columns = 31;

TEST_P(Dropouts, DrawAnewInEachCallAndRun) {
    const Values x = random_values(Rows * Columns, 1);
    const Tensor tx = of_values(backend_, {Rows, Columns}, x, "x");
    for (const double probability : {0.1, 0.5}) {
        const Dropout called(backend_, probability, Seed), recorded(backend_, probability, Seed),
            compiled(backend_, probability, Seed);
        Tensor of_recorded;
        Graph graph = backend_->record([&] { of_recorded = recorded(tx); });
        const CompiledStep step = compile(backend_, [&] { return std::vector{compiled(tx), compiled(tx)}; });
        for (uint32_t call = 0; call < 4; ++call) {
            SCOPED_TRACE(call);
            const Values expected = dropped(x, probability, Seed, call);
            expect_near(values_of(called(tx)), expected, 1e-6, "called");
            graph.run();
            expect_near(values_of(of_recorded), expected, 1e-6, "recorded");
            if (call % 2 == 0) step.run();
            expect_near(values_of(step.results()[call % 2]), expected, 1e-6, "compiled");
        }
        size_t zeros = 0;
        for (const double value : values_of(of_recorded)) zeros += value == 0;
        EXPECT_NEAR(static_cast<double>(zeros) / (Rows * Columns), probability, 0.1);
    }
}

/// d sum(y^2) / dx is 2 y / (1 - probability): with the elements that this very call has dropped, whatever came since.
TEST_P(Dropouts, GradientsDropTheSame) {
    const Values x = random_values(Rows * Columns, 1);
    const Tensor tx = of_values(backend_, {Rows, Columns}, x, "x").set_requires_grad(),
                 zero = of_values(backend_, {Rows, Columns}, Values(x.size(), 0.0), "zero");
    const Dropout layer(backend_, 0.25, Seed);
    const auto step = [&] {
        const Tensor loss = mse_loss(layer(tx), zero);
        layer(tx);
        backward(loss);
        return std::vector{tx.grad()};
    };
    const CompiledStep compiled = compile(backend_, step);
    for (uint32_t round = 0; round < 4; ++round) {
        Values expected = dropped(x, 0.25, Seed, 2 * round);
        for (double& value : expected) value *= 2 / (0.75 * Rows * Columns);
        if (round % 2 == 1) compiled.run();
        expect_near(values_of(round % 2 == 1 ? compiled.results()[0] : step()[0]), expected, 1e-7, "gradient");
    }
}

TEST_P(Dropouts, LeaveAllInEvaluation) {
    const Tensor tx = of_values(backend_, {Rows, Columns}, random_values(Rows * Columns, 1), "x");
    const Dropout layer(backend_, 0.5, Seed);
    layer.eval();
    EXPECT_TRUE(layer(tx).same(tx));
    EXPECT_TRUE(Dropout(backend_, 0, Seed)(tx).same(tx));
    EXPECT_EQ(layer.named_buffers()[1].second.data().read<uint32_t>()[0], 0u);
    layer.train();
    EXPECT_FALSE(layer(tx).same(tx));
    EXPECT_EQ(layer.named_buffers()[1].second.data().read<uint32_t>()[0], 1u);
}

TEST_P(Dropouts, RefuseSharesAndSeeds) {
    const Tensor x(backend_, f32, {4}, "x"), seed(backend_, host_array(u32, {}), "seed");
    EXPECT_ERROR(Dropout(backend_, 1, 1), "dropout: the probability is 1; give the share of elements that are dropped");
    EXPECT_ERROR(dropout(x, -0.5, seed), "dropout: the probability is -0.5");
    EXPECT_ERROR(dropout(x, 0.5, x), "dropout: x is f32, the seed f32 [4]; give floats, and a scalar of u32");
    EXPECT_ERROR(dropout(seed, 0.5, seed), "dropout: x is u32, the seed u32 []");
    HostArray rows = host_array(bf16, {8});
    for (int64_t e = 0; e < 8; ++e) rows.set({e}, make_value(bf16, 3.0));
    const HostArray kept = dropout(Tensor(backend_, rows, "x"), 0.5, seed).to_host();
    for (int64_t e = 0; e < 8; ++e) {
        const bool stays = philox_of({static_cast<uint32_t>(e / 4), 0, 0, 0}, {0, 0})[e % 4] >= 0x80000000;
        EXPECT_EQ(kept.at({e}).real, stays ? 6.0 : 0.0) << e;
    }
}

}  // namespace
}  // namespace tw::nn
