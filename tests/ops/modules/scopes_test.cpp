// What operations of a captured step belong to, and what precision makes of it.
#include "ops/modules/scope.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include <gmock/gmock.h>

#include "ops/autograd.h"
#include "ops/check.h"
#include "ops/layers.h"
#include "ops/modules/multi_head_attention.h"
#include "ops/modules/sequential.h"
#include "ops/optimizer.h"
#include "ops/parameters.h"
#include "ops/step/compile_step.h"
#include "ops/step/explain_step.h"
#include "ops/step/first_not_finite.h"
#include "tests/support/expect_error.h"
#include "tests/support/on_device.h"

namespace tw::nn {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr int64_t width = 16, rows = 32;

struct Block : Module {
    Linear up, down;
    Block(const std::shared_ptr<Backend>& backend, uint64_t seed)
        : up(register_module("up", Linear(backend, width, 2 * width, seed))),
          down(register_module("down", Linear(backend, 2 * width, width, seed + 1))) {}
    Tensor operator()(const Tensor& x) const {
        const Scope here = scope();
        return add(x, down(gelu(up(x))));
    }
};

struct Network : Module {
    ModuleList<Block> blocks;
    Sequential head;
    explicit Network(const std::shared_ptr<Backend>& backend)
        : blocks(register_module("blocks", ModuleList<Block>())),
          head(register_module(
              "head", Sequential{Linear(backend, width, width, 90), relu, Linear(backend, width, width, 91)})) {
        for (uint64_t k = 0; k < 3; ++k) blocks.push_back(Block(backend, 10 * k));
    }
    Tensor operator()(const Tensor& x) const {
        Tensor y = x;
        for (const Block& block : blocks) y = block(y);
        return head(y);
    }
};

/// Of operations, whose groups have one each.
std::multimap<std::string, std::string> operations_by_scope(const StepPlan& plan) {
    std::multimap<std::string, std::string> operations;
    for (const StepGroup& group : plan.groups) operations.emplace(group.scopes.at(0), group.operations.at(0));
    return operations;
}

/// Those in which something is made in 16 bits, but for copies that products of others read.
std::set<std::string> rounded_scopes(const StepPlan& plan) {
    std::set<std::string> scopes;
    for (const StepGroup& group : plan.groups)
        for (int written : group.writes) {
            const StepValue& value = plan.values[static_cast<size_t>(written)];
            if (value.type == bf16 && !value.name.ends_with("_bf16")) scopes.insert(group.scopes.at(0));
        }
    return scopes;
}

class Scopes : public testing::Test {
protected:
    std::vector<Tensor> train() {
        const Tensor loss = mse_loss(network_(x_), goal_);
        backward(loss);
        sgd_.step();
        return {loss};
    }
    StepPlan plan_of(const MixedPrecision& mixed, bool join = false) {
        return plan(
            backend_, [&] { return train(); }, {.mixed = mixed, .join = join}, target("sm_90a"));
    }

    std::shared_ptr<Backend> backend_ = std::make_shared<Backend>(open_device("emulated"));
    Tensor x_{backend_, host_array(f32, {rows, width}), "x"}, goal_{backend_, host_array(f32, {rows, width}), "goal"};
    Network network_{backend_};
    Sgd sgd_{network_.parameters(), 0.1, 0.9};
};

TEST_F(Scopes, ArePathsOfModulesAndNames) {
    EXPECT_EQ(Scope::path(), "");
    {
        const Scope outer("teacher");
        const Scope block = network_.blocks[1].scope();
        EXPECT_EQ(Scope::path(), "teacher.blocks.1");
        {
            const Scope again = network_.blocks[1].scope(), up = network_.blocks[1].up.scope(), part("part");
            EXPECT_EQ(Scope::path(), "teacher.blocks.1.up.part");
        }
        const Scope other = network_.head.scope();
        EXPECT_EQ(Scope::path(), "teacher.blocks.1.head") << "in no module around it";
    }
    const Scope alone = Linear(backend_, width, width, 1).scope();
    EXPECT_EQ(Scope::path(), "") << "registered in none";
    Module one, two;
    const Module part;
    one.register_module("one", part);
    two.register_module("two", part);
    const Scope first = part.scope();
    EXPECT_EQ(Scope::path(), "one");
    EXPECT_ERROR(Scope(""), "Scope: an empty name; give one, by which what is called there is known");
}

/// Calls and their gradients; blocks are equal whatever they are called.
TEST_F(Scopes, AreOfCallsAndGradients) {
    const StepPlan plan = plan_of({});
    const auto operations = operations_by_scope(plan);
    std::map<std::string, std::set<const Selection*>> kernels;
    for (const StepGroup& group : plan.groups) kernels[group.scopes.at(0)].insert(group.selection.get());
    for (const std::string scope : {"blocks.0.up", "blocks.1.down", "blocks.2.up", "head.0", "head.2"}) {
        std::set<std::string> names;
        for (auto [each, end] = operations.equal_range(scope); each != end; ++each) names.insert(each->second);
        EXPECT_THAT(names, Contains(testing::StartsWith("linear"))) << scope;
        EXPECT_THAT(names, Contains(testing::StartsWith("d_"))) << scope;
    }
    for (const std::string scope : {"blocks.0", "blocks.1", "blocks.2", "head.1", ""})
        EXPECT_TRUE(operations.contains(scope)) << scope;
    // the gradient of a product by the layer's weight is the layer's, whatever it is the gradient of
    for (const auto& [scope, name] : operations)
        if (name.starts_with("d_gelu")) {
            EXPECT_THAT(scope, testing::MatchesRegex("blocks.[012].down")) << name;
        } else if (name.starts_with("d_relu")) {
            EXPECT_EQ(scope, "head.2");
        }
    EXPECT_EQ(std::ranges::count_if(operations, [](const auto& each) { return each.second.starts_with("d_gelu"); }), 3);
    EXPECT_EQ(kernels.at("blocks.1.up"), kernels.at("blocks.2.up"));
    const std::string text = explain(plan_of({}, true));
    EXPECT_THAT(text, AllOf(HasSubstr("(blocks.2.up)"), HasSubstr("(head.1)"), HasSubstr("of linear")));
}

/// Whatever scopes are f32, and whatever is rounded in them after all: the innermost one counts.
TEST_F(Scopes, DecideWhatIsRounded) {
    const std::set<std::string> all = rounded_scopes(plan_of({.values = bf16}));
    EXPECT_THAT(all, AllOf(Contains("blocks.0.up"), Contains("blocks.2.down"), Contains("head.0")));
    const MixedPrecision none{.values = bf16, .scopes = {{"blocks", f32}, {"head", f32}}};
    EXPECT_THAT(plan_of(none).rounded, IsEmpty());
    EXPECT_EQ(plan_of(none, true).text(), plan_of({}, true).text());
    EXPECT_THAT(plan_of({.values = bf16, .scopes = {{"blocks.0", f32}}}).rounded, Contains("add_bf16"))
        << "what products of others read of it";

    std::mt19937_64 random(std::random_device{}());
    const std::vector<std::string> names{"blocks", "blocks.0", "blocks.1", "blocks.1.up", "blocks.2", "head", "head.0"};
    for (int k = 0; k < 8; ++k) {
        MixedPrecision mixed{.values = bf16};
        for (const std::string& name : names)
            if (const uint64_t choice = random() % 3; choice > 0)
                mixed.scopes.emplace_back(name, choice == 1 ? f32 : bf16);
        std::ranges::shuffle(mixed.scopes, random);
        const std::set<std::string> rounded = rounded_scopes(plan_of(mixed));
        for (const std::string& scope : all) {
            size_t longest = 0;
            Type type = bf16;
            for (const auto& [name, values] : mixed.scopes)
                if ((scope + ".").starts_with(name + ".") && name.size() > longest)
                    std::tie(longest, type) = std::pair(name.size(), values);
            if (type == f32) {
                EXPECT_THAT(rounded, Not(Contains(scope))) << k;
            }
        }
        const bool has_f32 = std::ranges::any_of(mixed.scopes, [](const auto& each) { return each.second == f32; });
        if (!has_f32) {
            EXPECT_EQ(rounded, all);
        }
    }
    const std::set<std::string> but_one = rounded_scopes(
        plan_of({.values = bf16, .keep = {"linear", "gelu", "d_linear"}, .scopes = {{"blocks.1", bf16}}}));
    EXPECT_THAT(but_one, AllOf(Contains("blocks.1.up"), Not(Contains("blocks.0.up"))));
}

/// Attention has a kernel of its own in 16 bits alone: in f32 it is what it is made of.
TEST_F(Scopes, DecideOfPartsWithSchedules) {
    Module network;
    const MultiHeadAttention attention =
        network.register_module("attention", MultiHeadAttention(backend_, width, 2, 3, {.causal = true}));
    const Tensor x(backend_, host_array(f32, {1, width, width}), "x");
    const auto has_kernel = [&](const MixedPrecision& mixed) {
        const StepPlan plan = nn::plan(
            backend_,
            [&] {
                const Tensor loss = mse_loss(attention(x), x);
                backward(loss);
                return std::vector{loss, attention.parameters()[0].grad()};
            },
            {.mixed = mixed}, target("sm_90a"));
        EXPECT_EQ(plan.rounded.empty(), !mixed.scopes.empty());
        return std::ranges::any_of(plan.groups, [](const StepGroup& group) {
            return group.operations[0] == "causal attention" && group.scopes[0] == "attention";
        });
    };
    EXPECT_TRUE(has_kernel({.values = bf16}));
    EXPECT_FALSE(has_kernel({.values = bf16, .scopes = {{"attention", f32}}}));
}

/// A weight of one layer is so large that its products overflow; gradients and updates are no numbers behind that.
TEST_F(Scopes, TellWhereAStepFirstMakesAnInfinity) {
    std::mt19937_64 random(std::random_device{}());
    const std::vector<std::string> layers{"blocks.0.down", "blocks.1.up", "blocks.2.down", "head.0", "head.2"};
    const std::string layer = layers[random() % layers.size()];
    for (const Type values : {f32, bf16}) {
        const Network network(backend_);
        AdamW adamw(network.parameters(), 0.01);
        const CompiledStep step = compile(backend_,
                                          [&] {
                                              const Tensor loss = mse_loss(network(x_), goal_);
                                              backward(loss);
                                              adamw.step();
                                              return std::vector{loss};
                                          },
                                          {.mixed = {.values = values}});
        HostArray x = host_array(f32, {rows, width});
        fill_uniform(x, -1, 1, random());
        x_.copy_from_host(x);
        EXPECT_FALSE(first_not_finite(step.planned()));
        for (const auto& [name, parameter] : network.named_parameters()) {
            if (name != layer + ".weight") continue;
            HostArray large = parameter.to_host();
            fill_uniform(large, 3e38, 3.1e38, random());
            parameter.copy_from_host(large);
        }
        const auto found = first_not_finite(step.planned());
        ASSERT_TRUE(found && found->group) << layer;
        EXPECT_EQ(found->scope, layer) << found->text();
        EXPECT_THAT(found->operation, testing::StartsWith("linear")) << found->text();
    }
}

TEST_F(Scopes, OfPrecisionAreScopesOfTheStep) {
    EXPECT_ERROR(
        plan_of({.values = bf16, .scopes = {{"block", f32}}}),
        "mixed_precision: nothing of the step is called in scope 'block'; there are [blocks.0, blocks.0.down, ");
    EXPECT_ERROR(plan_of({.values = bf16, .scopes = {{"head", f16}}}),
                 "mixed_precision: scope 'head' is to be f16 in a step of bf16; write f32 or bf16");
}

}  // namespace
}  // namespace tw::nn
