// Small parameters that are updated together, in the memory of one tensor: the same bits as one by one.
#include <algorithm>
#include <filesystem>
#include <random>

#include <gmock/gmock.h>

#include "ops/elementwise.h"
#include "ops/layers.h"
#include "ops/operator.h"
#include "ops/optimizer.h"
#include "ops/optimizers/joint_update.h"
#include "ops/overwriting.h"
#include "ops/parameters.h"
#include "ops/persistence/checkpoint.h"
#include "ops/reductions.h"
#include "ops/step/compile_step.h"
#include "ops/tape/tape.h"
#include "ops/views.h"
#include "tests/support/expect_error.h"
#include "tests/support/on_device.h"

namespace tw::nn {
namespace {

using Bits = std::vector<std::vector<std::byte>>;

enum class Mode { Eager, Recorded, Compiled };

struct Case {
    std::vector<std::vector<int64_t>> shapes;
    size_t num_first = 0;  // parameters of the first group
    int kind = 0;
    double max_norm = 0;
    bool is_scaled = false;
    Mode mode = Mode::Eager;
    uint64_t seed = 0;
};

Case random_case(int number, std::mt19937_64& random) {
    const auto integer = [&](int64_t low, int64_t high) { return std::uniform_int_distribution(low, high)(random); };
    Case c;
    const int64_t count = integer(3, 5);
    for (int64_t p = 0; p < count; ++p) {
        c.shapes.push_back({integer(1, 90)});
        if (integer(0, 1) == 0) c.shapes.back().push_back(integer(1, 7));
        if (integer(0, 3) == 0) c.shapes.back().insert(c.shapes.back().begin(), 1);
    }
    c.num_first = static_cast<size_t>(integer(1, count));
    c.kind = static_cast<int>(integer(0, 5));
    c.max_norm = std::array{0.0, 0.2, 0.7}[static_cast<size_t>(integer(0, 2))];
    c.is_scaled = integer(0, 2) == 0;
    c.mode = std::array{Mode::Eager, Mode::Compiled, Mode::Recorded}[static_cast<size_t>(number)];
    c.seed = random();
    return c;
}

Optimizer make_optimizer(const Case& c, const std::vector<Tensor>& parameters, bool together) {
    const auto middle = parameters.begin() + static_cast<ptrdiff_t>(c.num_first);
    std::vector<ParameterGroup> groups{{.parameters = {parameters.begin(), middle}}};
    if (middle != parameters.end())
        groups.push_back({.parameters = {middle, parameters.end()}, .rate_factor = 0.3, .weight_decay = 0});
    const double decay = 0.05;
    switch (c.kind) {
        case 0: return AdamW(groups, 0.1, {.weight_decay = decay, .max_norm = c.max_norm, .together = together});
        case 1: return Adam(groups, 0.1, {.weight_decay = decay, .max_norm = c.max_norm, .together = together});
        case 2: return Lion(groups, 0.1, {.weight_decay = decay, .max_norm = c.max_norm, .together = together});
        default: break;
    }
    return Sgd(groups, 0.1,
               SgdOptions{.momentum = c.kind == 3 ? 0 : 0.9,
                          .nesterov = c.kind == 5,
                          .weight_decay = decay,
                          .max_norm = c.max_norm,
                          .together = together});
}

/// sum(p0 * c0) + sum(p1 * c1) + ...: gradients are the coefficients, which no kernel makes otherwise than another.
const Operator& weighted_sum() {
    static const Operator op("weighted_sum", [](const std::vector<tw::Tensor>& in) {
        Expr total;
        for (size_t k = 0; k < in.size() / 2; ++k) {
            std::vector<Axis> axes;
            std::vector<Operand> at;
            for (const Expr& extent : in[k].shape()) {
                axes.push_back(reduce_axis("r", extent));
                at.emplace_back(axes.back());
            }
            const Expr part = sum(in[k].read(at) * in[k + in.size() / 2].read(at), axes);
            total = k == 0 ? part : total + part;
        }
        return compute("weighted_sum", {}, [&] { return total; });
    });
    return op;
}

class Training {
public:
    Training(const std::shared_ptr<Backend>& backend, const Case& c, bool together)
        : parameters_(tensors(backend, c, true)),
          coefficients_(tensors(backend, c, false)),
          optimizer_(make_optimizer(c, parameters_, together)),
          scale_(backend, {.initial = 4}),
          case_(c) {}

    /// As the mode says; from here on no parameter is to be frozen or thawed.
    void fix(const std::shared_ptr<Backend>& backend) {
        if (case_.mode == Mode::Compiled) compiled_ = compile(backend, [&] { return std::vector{step()}; });
        if (case_.mode == Mode::Recorded) recorded_ = backend->record([&] { step(); });
    }
    void run(uint64_t seed) {
        for (size_t p = 0; p < coefficients_.size(); ++p) {
            HostArray values = host_array(f32, coefficients_[p].shape());
            fill_uniform(values, -1, 1, seed + p);
            coefficients_[p].copy_from_host(values);
        }
        optimizer_.set_rate(0.01 * static_cast<double>(seed % 7 + 1));
        if (compiled_)
            compiled_->run();
        else if (recorded_)
            recorded_->run();
        else
            step();
    }
    void freeze(size_t p, bool is_frozen) { parameters_[p].set_requires_grad(!is_frozen); }
    Checkpoint checkpoint() { return Checkpoint().add("p", parameters_).add("s", optimizer_.states()); }
    Bits bits() const {
        Bits bits;
        for (const auto& tensors : {parameters_, optimizer_.states()})
            for (const Tensor& tensor : tensors) bits.push_back(tensor.to_host().bytes);
        return bits;
    }
    const std::vector<Tensor>& parameters() const { return parameters_; }

private:
    static std::vector<Tensor> tensors(const std::shared_ptr<Backend>& backend, const Case& c, bool are_parameters) {
        std::vector<Tensor> result;
        for (size_t p = 0; p < c.shapes.size(); ++p) {
            const std::string name = fmt::format("{}{}", are_parameters ? "p" : "c", p);
            result.push_back(uniform_parameter(backend, c.shapes[p], 1, c.seed + p, name));
            result.back().set_requires_grad(are_parameters);
        }
        return result;
    }
    Tensor step() {
        std::vector<Tensor> in = parameters_;
        in.insert(in.end(), coefficients_.begin(), coefficients_.end());
        const Tensor loss = weighted_sum()(in);
        backward(case_.is_scaled ? scale_(loss) : loss);
        if (case_.is_scaled)
            optimizer_.step(scale_);
        else
            optimizer_.step();
        return loss;
    }

    std::vector<Tensor> parameters_, coefficients_;
    Optimizer optimizer_;
    LossScale scale_;
    Case case_;
    std::optional<CompiledStep> compiled_;
    std::optional<Graph> recorded_;
};

class JointUpdates : public OnDevice {
protected:
    void SetUp() override {
        OnDevice::SetUp();
        if (device_) backend_ = std::make_shared<Backend>(device_);
    }
    std::shared_ptr<Backend> backend_;
};
TW_ON_EACH_DEVICE(JointUpdates);

/// Parameters and states, with frozen members, in each mode; also of a run that goes on from what one by one has saved.
TEST_P(JointUpdates, AreBitByBitThoseOneByOne) {
    const uint64_t seed = std::random_device{}();
    std::mt19937_64 random(seed);
    const std::string path = std::filesystem::temp_directory_path() / fmt::format("joint_updates_{}.ckpt", seed);
    for (int number = 0; number < 3; ++number) {
        const Case c = random_case(number, random);
        SCOPED_TRACE(fmt::format("case {} of seed {}", number, seed));
        Training apart(backend_, c, false), together(backend_, c, true);
        Case other = c;
        other.seed += 1000;  // whose parameters and states the file replaces
        Training resumed(backend_, other, true);
        const size_t frozen = random() % c.shapes.size();
        for (Training* each : {&apart, &together, &resumed}) each->run(seed);
        apart.checkpoint().save(path);
        resumed.checkpoint().load(path);
        for (Training* each : {&apart, &together, &resumed}) {
            each->freeze(frozen, true);
            each->fix(backend_);
        }
        for (uint64_t step = 1; step < 3; ++step) {
            for (Training* each : {&apart, &together, &resumed}) each->run(seed + 100 * step);
            ASSERT_EQ(together.bits(), apart.bits());
            ASSERT_EQ(resumed.bits(), apart.bits());
        }
        for (const Tensor& parameter : together.parameters())
            EXPECT_EQ(parameter.data().pointer() % 256, 0u) << "as memory of its own";
    }
    std::filesystem::remove(path);
}

/// Whoever has a parameter's memory goes on to see what becomes of it.
TEST_P(JointUpdates, LeaveMemoryThatOthersHave) {
    const auto make = [&](const char* name) { return constant_parameter(backend_, {40}, 1, name); };
    const Tensor a = make("a"), b = make("b"), viewed = make("viewed"), held = make("held"),
                 compiled = make("compiled");
    const Tensor view = reshape(viewed, {5, 8});
    const Buffer buffer = held.data();
    const CompiledStep score = compile(backend_, [&] { return std::vector{nn::sum(compiled)}; });
    Sgd sgd({a, b, viewed, held, compiled}, 0.5, 0.9);
    backward(nn::sum(a + b + viewed + held + compiled));
    sgd.step();
    score.run();
    for (const Tensor& each : {a, b, viewed, held, compiled, view})
        EXPECT_EQ(each.data().read<float>()[7], 0.5F) << each.name();
    EXPECT_EQ(buffer.read<float>()[39], 0.5F);
    EXPECT_EQ(score.results()[0].to_host().at({}).real, 20);
}

/// The optimizer that has put parameters together may be gone, or there may be another one.
TEST_P(JointUpdates, ManyOptimizersOneBehindTheOther) {
    const Tensor a = constant_parameter(backend_, {3, 5}, 1, "a"), b = constant_parameter(backend_, {7}, 1, "b");
    const auto step = [&](Optimizer& optimizer) {
        backward(nn::sum(a) + nn::sum(b));
        optimizer.step();
    };
    Sgd first({a, b}, 0.25, 0.5);
    const CompiledStep compiled = compile(backend_, [&] {
        backward(nn::sum(a) + nn::sum(b));  // which reads neither
        first.step();
        return std::vector{nn::sum(constant_tensor(backend_, {2}, 1, "one"))};
    });
    for (int n = 0; n < 2; ++n) {
        Sgd other({b, a}, 0.125);
        step(other);
    }
    first = Sgd({a}, 0.25);
    step(first);
    const size_t built = backend_->num_built();
    Sgd alike({a, b}, 0.25, 0.5);  // lies where the first one has put them
    step(alike);
    EXPECT_EQ(a.data().read<float>(), std::vector<float>(15, 0.25F));
    EXPECT_EQ(b.data().read<float>(), std::vector<float>(7, 0.5F));
    EXPECT_EQ(backend_->num_built(), built + 1);
    compiled.run();
    EXPECT_EQ(a.data().read<float>(), std::vector<float>(15, 0));
    EXPECT_EQ(b.data().read<float>(), std::vector<float>(7, 0.25F));
}

/// One that somebody else has keeps neither the others apart, nor a second optimizer from finding them.
TEST_P(JointUpdates, FindThoseThatAnotherOptimizerHasPutTogether) {
    const auto make = [&](const char* name) { return constant_parameter(backend_, {40}, 1, name); };
    const Tensor a = make("a"), b = make("b"), viewed = make("viewed"), view = reshape(viewed, {5, 8});
    const std::vector<Tensor> all{a, viewed, b};
    EXPECT_EQ(updated_together(all), (std::vector<std::vector<size_t>>{{0, 2}}));
    Sgd momentum(all, 0.5, 0.5);
    EXPECT_EQ(updated_together(all), (std::vector<std::vector<size_t>>{{0, 2}}));
    EXPECT_EQ(updated_together({a, make("c"), b, make("d")}), (std::vector<std::vector<size_t>>{{0, 2}, {1, 3}}));
    EXPECT_EQ(updated_together({b, a}), (std::vector<std::vector<size_t>>{})) << "which lie in another order";
    Sgd plain(all, 0.25);
    for (const bool is_plain_first : {false, true}) {
        const CompiledStep step = compile(backend_, [&] {
            backward(nn::sum(a + b + viewed));
            (is_plain_first ? plain : momentum).step();
            (is_plain_first ? momentum : plain).step();
            return std::vector{nn::sum(a + b)};
        });
        EXPECT_THAT(faults_of(step.plan()), testing::IsEmpty());
        step.run();
        // 1 - 0.5 * 1 - 0.25, and then, of a momentum of 1.5, - 0.25 - 0.5 * 1.5
        for (const Tensor& each : all)
            EXPECT_EQ(each.data().read<float>()[7], is_plain_first ? -0.75F : 0.25F) << each.name();
    }
}

/// A rule may divide by what it is given: what lies between parameters is none.
TEST_P(JointUpdates, LeaveWhatLiesBetweenParameters) {
    const Tensor a = constant_parameter(backend_, {3, 5}, 1, "a"), b = constant_parameter(backend_, {7}, 1, "b"),
                 frozen = constant_parameter(backend_, {70}, 1, "frozen");
    UpdateRule rule{.name = "Sign", .states = {"last"}, .next = [](const UpdateElements& now) {
                        return std::vector{now.gradient, now.parameter - now.rate * now.gradient / abs(now.gradient)};
                    }};
    Optimizer sign({a, frozen, b}, 0.25, rule);
    frozen.set_requires_grad(false);
    backward(nn::sum(a) + nn::sum(b));
    sign.step();
    const std::vector<float> whole = Tape::whole_of(a).data().read<float>();
    for (size_t k = 0; k < whole.size(); ++k) {
        const bool is_updated = k < 15 || (k >= 192 && k < 199), is_frozen = k >= 64 && k < 134;
        EXPECT_EQ(whole[k], is_updated ? 0.75F : is_frozen ? 1 : 0) << k;
    }
}

/// What a compiled step reads behind the update is what it has become; a plan has no fault, and one operation.
TEST_P(JointUpdates, AreReadBehindInACompiledStep) {
    const Tensor a = constant_parameter(backend_, {3, 5}, 1, "a"), b = constant_parameter(backend_, {7}, 1, "b");
    const Tensor big = constant_parameter(backend_, {(1 << 20) + 1}, 1, "big");
    Sgd sgd({a, big, b}, 0.5, 0.5);
    const CompiledStep step = compile(backend_, [&] {
        for (int n = 0; n < 2; ++n) {
            backward(nn::sum(a * a) + nn::sum(b * b) + nn::sum(nn::slice(big, 0, 0, 4)));
            sgd.step();
        }
        return std::vector{nn::sum(a), nn::sum(b), nn::sum(sgd.states()[2])};
    });
    EXPECT_THAT(faults_of(step.plan()), testing::IsEmpty());
    EXPECT_EQ(step.plan().text(false).find("sgd_5"), std::string::npos) << step.plan().text(false);
    step.run();  // p = 1: v = 2, p = 0; then v = 1, p = -0.5
    EXPECT_EQ(step.results()[0].to_host().at({}).real, -7.5);
    EXPECT_EQ(step.results()[1].to_host().at({}).real, -3.5);
    EXPECT_EQ(step.results()[2].to_host().at({}).real, 7);
    EXPECT_EQ(a.data().read<float>(), std::vector<float>(15, -0.5F));
}

/// Whoever reads a part comes before what overwrites the whole: without any one of its waits a plan has a fault.
TEST_P(JointUpdates, WaitForReadersOfParts) {
    const Linear first(backend_, 6, 8, 1), second(backend_, 8, 6, 2);
    const Tensor x = constant_tensor(backend_, {4, 6}, 1, "x");
    Sgd sgd(joined({first.parameters(), second.parameters()}), 0.5, 0.5);
    const StepPlan plan = nn::plan(
        backend_,
        [&] {
            const Tensor loss = mse_loss(second(relu(first(x))), x);
            backward(loss);
            sgd.step();
            return std::vector{loss};
        },
        {}, backend_->target());
    EXPECT_EQ(std::ranges::count_if(plan.values, [](const StepValue& value) { return value.part_of >= 0; }), 4);
    ASSERT_THAT(faults_of(plan), testing::IsEmpty());
    for (size_t group = 0; group < plan.groups.size(); ++group)
        for (size_t wait = 0; wait < plan.groups[group].after.size(); ++wait) {
            StepPlan wrong = plan;
            wrong.groups[group].after.erase(wrong.groups[group].after.begin() + static_cast<ptrdiff_t>(wait));
            EXPECT_THAT(faults_of(wrong), testing::Not(testing::IsEmpty())) << group << " " << wait;
        }
}

/// Gradients of products in 16 bits stay f32 on their way.
TEST_P(JointUpdates, AreOfWideGradientsInMixedPrecision) {
    const auto trained = [&](bool together) {
        const Linear first(backend_, 16, 32, 1), second(backend_, 32, 16, 2);
        HostArray rows = host_array(f32, {32, 16});
        fill_uniform(rows, -1, 1, 3);
        const Tensor x(backend_, rows, "x");
        AdamW adam(joined({first.parameters(), second.parameters()}), 0.1, {.together = together});
        const CompiledStep step = compile(backend_,
                                          [&] {
                                              const Tensor loss = mse_loss(second(relu(first(x))), x);
                                              backward(loss);
                                              adam.step();
                                              return std::vector{loss};
                                          },
                                          {.mixed = {.values = bf16}});
        for (int n = 0; n < 3; ++n) step.run();
        Bits bits;
        for (const Tensor& each : adam.states()) bits.push_back(each.to_host().bytes);
        return bits;
    };
    EXPECT_EQ(trained(true), trained(false));
}

TEST_P(JointUpdates, RefuseOthersThatOverwriteInOneStep) {
    const Tensor a = constant_parameter(backend_, {3}, 1, "a"), b = constant_parameter(backend_, {7}, 1, "b");
    Sgd together({a, b}, 0.5, 0.5), alone({a}, 0.5);
    EXPECT_ERROR(compile(backend_,
                         [&] {
                             backward(nn::sum(a) + nn::sum(b));
                             together.step();
                             alone.step();
                             return std::vector{nn::sum(a)};
                         }),
                 "one of which is a part of the other one, are both overwritten in the step that is captured: an "
                 "optimizer updates small parameters together; give it .together = false");
}

}  // namespace
}  // namespace tw::nn
