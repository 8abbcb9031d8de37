// What is made again where it is needed late: the same bits in less memory.
#include "ops/step/recompute.h"

#include <gmock/gmock.h>

#include "ops/capture.h"
#include "ops/check.h"
#include "ops/checkpoint.h"
#include "ops/layers.h"
#include "ops/modules/dropout.h"
#include "ops/modules/multi_head_attention.h"
#include "ops/modules/sequential.h"
#include "ops/normalization.h"
#include "ops/optimizer.h"
#include "ops/step/compile_step.h"
#include "ops/step/interpret_step.h"
#include "tests/ops/step/small_steps.h"
#include "tests/ops/step/step_results.h"
#include "tests/ops/step/with_all_kept.h"
#include "tests/support/expect_error.h"
#include "tests/support/on_device.h"

namespace tw {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

const Target& hopper_target() {
    static const Target target = tw::target("sm_90a");
    return target;
}

std::vector<HostArray> run_on(const std::shared_ptr<Device>& device, const StepPlan& plan, const Bindings& data,
                              const schedules::Declared& step) {
    return run_step(PlannedStep(plan, device), step, data);
}

size_t num_again(const StepPlan& plan) {
    size_t count = 0;
    for (const StepGroup& group : plan.groups) count += group.again_of >= 0 ? 1 : 0;
    return count;
}

Tensor named(const schedules::Declared& step, const std::string& name) {
    for (const auto& operation : operations_of(step.outputs))
        if (operation->name == name) return {operation, 0};
    throw std::runtime_error("there is no " + name);
}

/// Each block is a region, but for its input and its result.
std::vector<MadeBetween> blocks_of(const schedules::Declared& step, int blocks) {
    std::vector<MadeBetween> regions;
    Tensor in = named(step, "x");
    for (int k = 0; k < blocks; ++k) {
        const Tensor out = named(step, fmt::format("block{}_h", k));
        regions.push_back(made_between({in}, {out}));
        in = out;
    }
    return regions;
}

TEST(MadeBetween, IsNeitherGivenNorAView) {
    const Tensor x = input("x", f32, {4, 6}), w = input("w", f32, {6, 6});
    const Tensor before = compute("before", {4, 6}, [&](Expr i, Expr j) { return x(i, j) * 2.0; });
    const Tensor z = product_of_rows("z", before, w);
    const Tensor turned = compute("turned", {6, 4}, [&](Expr i, Expr j) { return z(j, i); });
    const Tensor y = compute("y", {6, 4}, [&](Expr i, Expr j) { return exp(turned(i, j)); });
    const Tensor seen = compute("seen", {4, 6}, [&](Expr i, Expr j) { return y(j, i); });
    const MadeBetween between = made_between({before}, {seen});
    ASSERT_THAT(between.inside, SizeIs(1));
    EXPECT_TRUE(between.inside[0].same(z));
    ASSERT_THAT(between.results, SizeIs(1));
    EXPECT_TRUE(between.results[0].same(y));
    EXPECT_THAT(made_between({}, {y}).inside, SizeIs(2));
}

/// Whether a group that is made again comes no earlier than it must: the next one that is not needs it.
void expect_delayed(const StepPlan& plan) {
    for (size_t g = 0; g < plan.groups.size(); ++g) {
        if (plan.groups[g].again_of < 0) continue;
        std::set<int> made(plan.groups[g].writes.begin(), plan.groups[g].writes.end()), overwritten;
        bool is_needed = false;
        for (size_t next = g + 1; next < plan.groups.size() && !is_needed; ++next) {
            for (int read : plan.groups[next].reads) is_needed = is_needed || made.contains(read);
            for (int written : plan.groups[next].writes)
                is_needed = is_needed || plan.values[static_cast<size_t>(written)].place == StepValue::Place::Replaced;
            if (plan.groups[next].again_of < 0) break;
            made.insert(plan.groups[next].writes.begin(), plan.groups[next].writes.end());
        }
        EXPECT_TRUE(is_needed) << "group " << g << "\n" << plan.text(false);
    }
}

class Recomputed : public OnDevice {};
TW_ON_EACH_DEVICE(Recomputed);

TEST_P(Recomputed, BlocksHaveTheSameBitsInLessMemory) {
    const schedules::Declared step = step_of_blocks(4, 64, 32);
    const Bindings data = random_bindings(step.outputs, 11);
    for (Type type : {f32, bf16}) {
        SCOPED_TRACE(name_of(type));
        const auto planned = [&](const std::vector<MadeBetween>& regions) {
            return plan_step(step, hopper_target(), {}, {.mixed = {.values = type}, .recompute = {.regions = regions}});
        };
        const StepPlan kept = planned({}), ordered = planned({MadeBetween{}}), again = planned(blocks_of(step, 4));
        EXPECT_THAT(faults_of(again), IsEmpty()) << again.text(false);
        EXPECT_EQ(ordered.arena_bytes, kept.arena_bytes);
        EXPECT_LT(again.arena_bytes, ordered.arena_bytes / 2) << ordered.text(false) << again.text(false);
        const StepPlan all_kept = with_all_kept(again);
        EXPECT_THAT(faults_of(all_kept), IsEmpty());
        EXPECT_EQ(again.num_distinct(), all_kept.num_distinct());
        EXPECT_EQ(num_again(ordered), 0U);
        EXPECT_GE(num_again(again), 4U * 3U);
        EXPECT_THAT(again.again, SizeIs(4));
        EXPECT_THAT(again.text(), HasSubstr("made again: block0_n_mean, block0_n_variance, block0_n"));
        EXPECT_THAT(again.text(), HasSubstr("block3_z_again"));
        expect_delayed(again);
        const std::vector<HostArray> expected = interpret_step(kept, data);
        expect_same_bits(interpret_step(ordered, data), expected);
        expect_same_bits(interpret_step(again, data), interpret_step(all_kept, data));
        expect_same_bits(run_on(device_, again, data, step), run_on(device_, all_kept, data, step));
        if (type == f32) expect_same_bits(interpret_step(again, data), expected);
        fmt::print("{} B, ordered {} B, made again {} B\n", kept.arena_bytes, ordered.arena_bytes, again.arena_bytes);
    }
}

TEST_P(Recomputed, BudgetsAreKept) {
    for (const auto& [step, least] : {std::pair(step_of_blocks(4, 64, 32), 0.46), {step_of_layers(6, 64, 32), 0.75}}) {
        const Bindings data = random_bindings(step.outputs, 12);
        const auto planned = [&, &declared = step](int64_t bytes) {
            return plan_step(declared, hopper_target(), {}, {.recompute = {.bytes = bytes}});
        };
        const StepPlan kept = planned(0);
        const std::vector<HostArray> expected = interpret_step(kept, data);
        EXPECT_EQ(planned(kept.arena_bytes).text(false), kept.text(false));
        StepPlan plan = kept;
        for (double share : {0.9, least + 0.1, least}) {
            const auto bytes = static_cast<int64_t>(share * static_cast<double>(kept.arena_bytes));
            plan = planned(bytes);
            EXPECT_LE(plan.arena_bytes, bytes);
            EXPECT_THAT(faults_of(plan), IsEmpty()) << plan.text(false);
            EXPECT_EQ(plan.again.size(), num_again(plan));
            expect_delayed(plan);
            expect_same_bits(interpret_step(plan, data), expected);
            fmt::print("{} of {} B: {} again, {:.1f} for {:.1f} us\n", plan.arena_bytes, kept.arena_bytes,
                       num_again(plan), plan.seconds() * 1e6, kept.seconds() * 1e6);
        }
        EXPECT_GT(num_again(plan), 0U);
        expect_same_bits(run_on(device_, plan, data, step), run_on(device_, kept, data, step));
    }
}

/// Of any budget that is too small, the one that the message names is none, and a byte less is.
TEST(RecomputeBudget, NamesOneThatWorks) {
    int refused = 0;
    for (const schedules::Declared& step : {step_of_layers(3, 64, 32), step_of_blocks(2, 64, 32)}) {
        const StepPlan kept = plan_step(step, hopper_target());
        const auto fitted = [&](int64_t bytes) {
            StepPlan plan = kept;
            fit_into(plan, bytes);
            return plan.arena_bytes;
        };
        int64_t last = 0;
        for (int percent = 5; percent < 100; percent += 5) {
            const int64_t bytes = kept.arena_bytes * percent / 100;
            try {
                EXPECT_LE(fitted(bytes), bytes);
            } catch (const Error& error) {
                const std::string text = error.what(), before = "but into ";
                last = std::stoll(text.substr(text.find(before) + before.size()));
                EXPECT_GT(last, bytes);
                EXPECT_LE(last, kept.arena_bytes);
                EXPECT_LE(fitted(last), last) << text;
                EXPECT_THROW(fitted(last - 1), Error) << "less would do: " << text;
                ++refused;
            }
        }
        const StepPlan named = plan_step(step, hopper_target(), {}, {.recompute = {.bytes = last}});
        EXPECT_LE(named.arena_bytes, last);
    }
    EXPECT_GT(refused, 10);
}

TEST(RecomputeBudget, SaysWhatIsLeast) {
    const schedules::Declared step = step_of_layers(3, 64, 32);
    EXPECT_ERROR(plan_step(step, hopper_target(), {}, {.recompute = {.bytes = 256}}),
                 "plan_step: recompute.bytes = 256: the arena does not fit into that, with all made again that saves "
                 "memory, but into ");
    EXPECT_ERROR(plan_step(step, hopper_target(), {}, {.recompute = {.bytes = -1}}),
                 "plan_step: recompute.bytes = -1: a number of bytes, or 0 for an arena of any size");
}

}  // namespace

namespace nn {
namespace {

/// A residual perceptron, behind attention or not.
struct Block : Module {
    ModuleList<Sequential> parts;
    Block(const std::shared_ptr<Backend>& backend, int64_t width, bool has_attention, uint64_t seed)
        : parts(register_module("parts", ModuleList<Sequential>())) {
        if (has_attention)
            parts.push_back(
                {LayerNorm(backend, {width}), MultiHeadAttention(backend, width, 2, seed, {.causal = true})});
        parts.push_back({LayerNorm(backend, {width}), Linear(backend, width, 4 * width, seed + 1), gelu,
                         Linear(backend, 4 * width, width, seed + 2), Dropout(backend, 0.2, seed)});
    }
    Tensor operator()(const Tensor& x) const {
        Tensor h = x;
        for (const Sequential& part : parts) h = add(h, part(h));
        return h;
    }
};

enum class Kept { All, OfBlocks, OfPairs };

/// Blocks, with their data and their optimizer: equal ones each time.
struct Stack {
    static constexpr int64_t length = 16, width = 16;
    std::shared_ptr<Backend> backend;
    Tensor x, goal;
    ModuleList<Block> blocks;
    Sgd sgd;

    Stack(const std::shared_ptr<Device>& device, size_t num_blocks, bool has_attention, int64_t batch = 2)
        : backend(std::make_shared<Backend>(device)),
          x(backend, data(batch, 1), "x"),
          goal(backend, data(batch, 2), "goal"),
          blocks(made(backend, num_blocks, has_attention)),
          sgd(blocks.parameters(), 0.1) {}

    static HostArray data(int64_t batch, uint64_t seed) {
        HostArray array = host_array(f32, {batch, length, width});
        fill_uniform(array, -1, 1, seed);
        return array;
    }
    static ModuleList<Block> made(const std::shared_ptr<Backend>& backend, size_t num_blocks, bool has_attention) {
        ModuleList<Block> blocks;
        for (uint64_t k = 0; k < num_blocks; ++k) blocks.push_back(Block(backend, width, has_attention, 10 * k));
        return blocks;
    }

    Tensor forward(Kept kept) const {
        Tensor h = x;
        if (kept == Kept::All)
            for (const Block& block : blocks) h = block(h);
        if (kept == Kept::OfBlocks)
            for (const Block& block : blocks) h = checkpoint(block, h);
        if (kept == Kept::OfPairs)
            for (size_t k = 0; k < blocks.size(); k += 2)
                h = checkpoint([&](const Tensor& in) { return checkpoint(blocks[k + 1], checkpoint(blocks[k], in)); },
                               h);
        return h;
    }
    Tensor step(Kept kept) {
        const Tensor loss = mse_loss(forward(kept), goal);
        backward(loss);
        sgd.step();
        return loss;
    }
    /// Without kernels that could run.
    StepPlan planned(Kept kept, Type type) {
        Capture capture;
        return planned(kept, type, capture);
    }
    StepPlan planned(Kept kept, Type type, Capture& capture) {
        std::vector<Tensor> results;
        backend->write_down(capture, [&] { results.push_back(step(kept)); });
        return plan_step(capture.declared(results), backend->target(), {},
                         {.mixed = {.values = type}, .recompute = {.regions = capture.regions()}});
    }
};

class Checkpoints : public OnDevice {
protected:
    /// Two steps: losses and parameters; also where nothing is made a second time.
    std::vector<HostArray> trained(size_t num_blocks, bool has_attention, Kept kept, Type type, bool makes_again) {
        Stack stack(device_, num_blocks, has_attention);
        Capture capture;
        StepPlan plan = stack.planned(kept, type, capture);
        EXPECT_THAT(faults_of(plan), IsEmpty());
        EXPECT_GE(num_again(plan), kept == Kept::All ? 0 : 3 * num_blocks);
        expect_delayed(plan);
        if (!makes_again) plan = with_all_kept(std::move(plan));
        const std::string loss = plan.values[static_cast<size_t>(plan.results[0])].name;
        const PlannedStep step(std::move(plan), device_, capture.given());
        std::vector<HostArray> got;
        for (int n = 0; n < 2; ++n) {
            step.run();
            got.push_back(step.get(loss));
        }
        for (const Tensor& parameter : stack.blocks.parameters()) got.push_back(parameter.to_host());
        return got;
    }
    void expect_same(size_t num_blocks, bool has_attention, Kept kept, Type type) {
        SCOPED_TRACE(fmt::format("{} blocks, {}{}", num_blocks, name_of(type), has_attention ? ", attention" : ""));
        const std::vector<HostArray> again = trained(num_blocks, has_attention, kept, type, true);
        expect_same_bits(again, trained(num_blocks, has_attention, kept, type, false));
        if (type == f32) expect_same_bits(again, trained(num_blocks, has_attention, Kept::All, type, true));
    }
};
TW_ON_EACH_DEVICE(Checkpoints);

TEST_P(Checkpoints, HaveTheSameBits) {
    expect_same(2, false, Kept::OfPairs, f32);
    expect_same(1, true, Kept::OfBlocks, f32);
    expect_same(2, true, Kept::OfBlocks, bf16);
}

/// What the arena grows by with each block is its result: the next block's norm is no part of the kernel that makes it.
TEST(Checkpoint, KeepsLittleOfEachBlock) {
    const int64_t batch = 16, kept_bytes = batch * Stack::length * Stack::width * 4;
    for (const auto& [has_attention, type] : {std::pair(false, f32), {true, bf16}}) {
        SCOPED_TRACE(fmt::format("{}{}", name_of(type), has_attention ? ", attention" : ""));
        const auto arena_of = [&, attention = has_attention, values = type](size_t num_blocks, Kept kept) {
            return Stack(open_device("emulated"), num_blocks, attention, batch).planned(kept, values).arena_bytes;
        };
        const int64_t all = arena_of(3, Kept::All) - arena_of(2, Kept::All),
                      again = arena_of(3, Kept::OfBlocks) - arena_of(2, Kept::OfBlocks);
        EXPECT_LE(again, kept_bytes * bytes_of(type) / 4 + 4096);
        EXPECT_GE(all, 8 * again);
        fmt::print("a block more: {} B, kept {} B\n", all, again);
    }
}

TEST(Checkpoint, IsTheCallByItself) {
    const Stack stack(open_device("emulated"), 2, false);
    const Tensor all = stack.forward(Kept::All), blocks = stack.forward(Kept::OfBlocks);
    EXPECT_TRUE(blocks.requires_grad());
    EXPECT_EQ(blocks.shape(), all.shape());
}

TEST(Checkpoint, SaysWhatIsMissing) {
    const Tensor x(std::make_shared<Backend>(open_device("emulated")), f32, {4}, "x");
    const std::function<Tensor(const std::vector<Tensor>&)> none;
    EXPECT_ERROR(checkpoint(none, {x}), "checkpoint: what to call is no function; give one of the inputs");
    EXPECT_ERROR(checkpoint([](const std::vector<Tensor>& in) { return in[0]; }, {}), "checkpoint: no inputs; name");
    EXPECT_ERROR(checkpoint([](const Tensor&) { return Tensor(); }, x),
                 "checkpoint: the function returns an undefined tensor; return its result");
}

}  // namespace
}  // namespace nn
}  // namespace tw
