// How long steps of many equal blocks take to plan: what is tried, and what is lowered for it, does not grow with them.
#include <ctime>

#include <gmock/gmock.h>

#include "ops/layers.h"
#include "ops/modules/multi_head_attention.h"
#include "ops/normalization.h"
#include "ops/optimizer.h"
#include "ops/step/compile_step.h"

namespace tw::nn {
namespace {

/// x + attention(norm(x)), then y + down(gelu(up(norm(y)))).
struct Block : Module {
    LayerNorm first, second;
    MultiHeadAttention attention;
    Linear up, down;
    Block(const std::shared_ptr<Backend>& backend, int64_t width, uint64_t seed)
        : first(register_module("first", LayerNorm(backend, {width}))),
          second(register_module("second", LayerNorm(backend, {width}))),
          attention(register_module("attention", MultiHeadAttention(backend, width, 2, seed, {.causal = true}))),
          up(register_module("up", Linear(backend, width, 4 * width, seed + 1))),
          down(register_module("down", Linear(backend, 4 * width, width, seed + 2))) {}
    Tensor operator()(const Tensor& x) const {
        const Tensor y = add(x, attention(first(x)));
        return add(y, down(gelu(up(second(y)))));
    }
};

struct Planned {
    size_t groups, distinct, tried;  // tried: declarations for which a schedule was looked for
    double seconds;                  // of this process on its processors
};

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

/// Forward, backward and AdamW's updates, f32 2 x 32 x 32.
Planned planned(uint64_t blocks, bool together = true) {
    constexpr int64_t width = 32;
    const auto backend = std::make_shared<Backend>(open_device("emulated"));
    std::vector<Block> stack;
    std::vector<Tensor> parameters;
    for (uint64_t k = 0; k < blocks; ++k) {
        stack.emplace_back(backend, width, 10 * k);
        for (const Tensor& parameter : stack.back().parameters()) parameters.push_back(parameter);
    }
    HostArray tokens = host_array(f32, {2, 32, width});
    fill_uniform(tokens, -1, 1, 3);
    const Tensor x(backend, tokens, "x");
    AdamW adamw(parameters, 1e-3, {.together = together});
    size_t tried = 0;
    backend->registry().add("count", [&](const std::vector<tw::Tensor>&, const Target&) {
        ++tried;
        return std::optional<Schedule>();
    });
    const double begin = processor_seconds();
    const StepPlan plan = nn::plan(
        backend,
        [&] {
            Tensor y = x;
            for (const Block& block : stack) y = block(y);
            const Tensor loss = mse_loss(y, x);
            backward(loss);
            adamw.step();
            return std::vector{loss};
        },
        {}, target("sm_90a"));
    EXPECT_EQ(plan.num_kernels(), plan.groups.size());
    const Planned result{plan.groups.size(), plan.num_distinct(), tried, processor_seconds() - begin};
    fmt::print("{} blocks of attention{}: {:.2f} s, {} groups, {} of them distinct, {} tried\n", blocks,
               together ? "" : ", updates apart", result.seconds, result.groups, result.distinct, result.tried);
    return result;
}

/// Updates of 64 parameters each begin at the same parameters of a block again, or at two other places.
TEST(PlanningTime, BlocksOfAttentionAreScheduledOnce) {
    const Planned few = planned(12), many = planned(48);
    EXPECT_EQ(few.distinct, many.distinct);
    EXPECT_GT(many.groups, 3.5 * few.groups);
    EXPECT_LE(many.tried, few.tried + few.tried / 10);
    EXPECT_LT(many.seconds, 4.5 * few.seconds);
}

/// An update of many parameters is tried with each kind of gradient, not with each gradient.
TEST(PlanningTime, UpdatesTogetherCostLittle) {
    const Planned together = planned(12), apart = planned(12, false);
    EXPECT_LT(together.groups, apart.groups);
    EXPECT_LT(together.tried, 1.5 * apart.tried);
    EXPECT_LT(together.seconds, 3 * apart.seconds);
}

}  // namespace
}  // namespace tw::nn
