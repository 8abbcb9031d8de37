// How long steps of many equal blocks take to plan: what is tried, and what is lowered for it, does not grow with them.
#include <ctime>
#include <random>

#include <gmock/gmock.h>

#include "ops/layers.h"
#include "ops/modules/multi_head_attention.h"
#include "ops/normalization.h"
#include "ops/optimizer.h"
#include "ops/program.h"
#include "ops/step/compile_step.h"
#include "schedules/choose.h"

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
    const Planned result{plan.groups.size(), plan.num_distinct(), tried, processor_seconds() - begin};
    EXPECT_EQ(plan.num_kernels(), plan.groups.size());  // lowers them
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
    EXPECT_LE(few.tried, 200u);  // what is tried takes nearly all of the time
    EXPECT_LT(many.seconds, 4.5 * few.seconds);
}

/// An update of many parameters is tried with each kind of gradient, not with each gradient.
TEST(PlanningTime, UpdatesTogetherCostLittle) {
    const Planned together = planned(12), apart = planned(12, false);
    EXPECT_LT(together.groups, apart.groups);
    EXPECT_LE(together.tried, apart.tried);
    EXPECT_LT(together.seconds, 3 * apart.seconds);
}

/// Sums, and what reads them where conditions hold, have the kernels that they have apart: the cut relies on it, and
/// does not try them together.
TEST(PlanningTime, SumsThatAreReadGuardedKeepTheirKernels) {
    std::mt19937_64 random(std::random_device{}());
    auto any = [&](const std::vector<int64_t>& of) { return of[random() % of.size()]; };
    auto seconds = [](const tw::Tensor& t) {
        return build(schedules::choose_schedule({t}, target("sm_90a"))).predicted().seconds;
    };
    for (int round = 0; round < 10; ++round) {
        const int64_t rows = any({16, 64, 300}), columns = any({8, 32, 100}), others = any({1, 8, 24});
        const tw::Tensor x = input("x", f32, {rows, columns}), y = input("y", f32, {rows, others});
        const Axis r = reduce_axis("r", rows), c = reduce_axis("c", columns);
        const tw::Tensor sums[] = {
            compute("sums", {columns}, [&](Expr j) { return sum(x(r, j), r); }),
            compute("sums", {rows}, [&](Expr i) { return sum(x(i, c), c); }),
            compute("sums", {columns, others}, [&](Expr i, Expr j) { return sum(x(r, i) * y(r, j), r); })};
        const tw::Tensor& made = sums[random() % 3];
        const int64_t row = made.rank() == 2 ? others : 1, elements = require_constant(made.shape()[0]) * row;
        const int64_t before = any({0, 4, 16}), all = before + elements + any({4, 64});
        const tw::Tensor old = input("old", f32, {all});
        auto next = [&](const tw::Tensor& of) {
            return compute("next", {all}, [&](Expr p) {
                const Expr place = p - before;
                const std::vector<Operand> at =
                    of.rank() == 2 ? std::vector<Operand>{place / row, place % row} : std::vector<Operand>{place};
                return old(p) - padded(of, constant(f32, 0.0)).read(at);
            });
        };
        const tw::Tensor given = input("given", f32, {made.shape().begin(), made.shape().end()});
        const double together = seconds(next(made)), apart = seconds(made) + seconds(next(given));
        EXPECT_NEAR(together, apart, 1e-9) << rows << " x " << columns << " x " << others << ", rank " << made.rank();
    }
}

}  // namespace
}  // namespace tw::nn
