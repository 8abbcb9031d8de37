// Optimizers against their formulas in float64: kernels that run at once, recorded steps and compiled ones.
#include <algorithm>
#include <cmath>
#include <random>

#include <gmock/gmock.h>

#include "ops/layers.h"
#include "ops/operator.h"
#include "ops/optimizer.h"
#include "ops/optimizers/gradient_norm.h"
#include "ops/parameters.h"
#include "ops/step/compile_step.h"
#include "tests/support/expect_error.h"
#include "tests/support/on_device.h"

namespace tw::nn {
namespace {

enum class Kind { Sgd, Adam, AdamW, Lion };

struct GroupCase {
    std::vector<int64_t> shape;
    double rate_factor = 1, weight_decay = 0;
};

struct Case {
    Kind kind = Kind::Sgd;
    double momentum = 0, beta1 = 0, beta2 = 0, epsilon = 1e-8, max_norm = 0, ema = 0;
    bool nesterov = false;
    std::vector<GroupCase> groups;
    std::vector<double> rates;  // of each step
};

/// A case of the kind, with all else random. Some clip always, some never, and some have nothing to clip.
Case random_case(int number, std::mt19937_64& random) {
    const auto uniform = [&](double low, double high) { return std::uniform_real_distribution(low, high)(random); };
    const auto integer = [&](int64_t low, int64_t high) { return std::uniform_int_distribution(low, high)(random); };
    Case result;
    result.kind = std::array{Kind::Sgd, Kind::Adam, Kind::AdamW, Kind::Lion, Kind::Sgd}[number % 5];
    result.momentum = number % 5 == 0 ? 0 : uniform(0.3, 0.95);
    result.nesterov = number % 10 == 4;
    result.beta1 = integer(0, 4) == 0 ? 0 : uniform(0.5, 0.95);
    result.beta2 = integer(0, 4) == 0 ? 0 : uniform(0.9, 0.9999);
    // A quotient of nearly nothing by as little would be made of roundings.
    result.epsilon = result.beta2 > 0 && integer(0, 1) == 0 ? 1e-8 : 0.1;
    result.max_norm = std::array{0.0, 0.3, 1e4}[static_cast<size_t>(number % 3)];
    result.ema = uniform(0.2, 0.9);
    result.groups = {{{integer(1, 9), integer(1, 40)}, 1, uniform(0.05, 0.3)},
                     {{integer(1, 2500)}, uniform(0.2, 2), 0}};
    const double rate = uniform(0.01, 0.1);
    result.rates = {rate, rate, rate / 3, rate / 3, 0, rate};
    return result;
}

/// The published formulas, in a type of the caller's.
template <class T>
class Reference {
public:
    struct Parameter {
        std::vector<T> value, first, second, average, gradient;
        std::vector<bool> doubtful;  // Lion's sign depends on rounding
    };

    Reference(const Case& c, const std::vector<std::vector<float>>& start) : case_(c) {
        for (const std::vector<float>& values : start) {
            const std::vector<T> value(values.begin(), values.end()), zeros(values.size());
            parameters.push_back({value, zeros, zeros, value, zeros, std::vector<bool>(values.size())});
        }
    }

    /// Of the loss sum(c * p) + sum(p * p) / 2, with the coefficients of this step.
    void step(const std::vector<std::vector<float>>& coefficients, double rate) {
        ++steps;
        T squares = 0;
        for (size_t p = 0; p < parameters.size(); ++p)
            for (size_t e = 0; e < coefficients[p].size(); ++e) {
                const T gradient = parameters[p].value[e] + coefficients[p][e];
                parameters[p].gradient[e] = gradient;
                squares += gradient * gradient;
            }
        norm = std::sqrt(squares);
        const T scale = case_.max_norm > 0 ? std::min(T(1), T(case_.max_norm) / (norm + T(1e-6))) : T(1);
        for (size_t p = 0; p < parameters.size(); ++p)
            for (size_t e = 0; e < coefficients[p].size(); ++e) {
                Parameter& parameter = parameters[p];
                update(parameter, e, parameter.gradient[e] * scale, T(rate) * T(case_.groups[p].rate_factor),
                       T(case_.groups[p].weight_decay));
                parameter.average[e] = T(case_.ema) * parameter.average[e] + T(1 - case_.ema) * parameter.value[e];
            }
    }

    std::vector<Parameter> parameters;
    int steps = 0;
    T norm = 0;

private:
    void update(Parameter& parameter, size_t e, T gradient, T rate, T decay) {
        T &x = parameter.value[e], &m = parameter.first[e], &v = parameter.second[e];
        const T b1 = T(case_.beta1), b2 = T(case_.beta2), rest1 = T(1 - case_.beta1), rest2 = T(1 - case_.beta2);
        switch (case_.kind) {
            case Kind::Sgd: {
                gradient += decay * x;
                m = T(case_.momentum) * m + gradient;
                x -= rate * (case_.nesterov ? gradient + T(case_.momentum) * m : m);
                return;
            }
            case Kind::Adam:
            case Kind::AdamW: {
                if (case_.kind == Kind::Adam)
                    gradient += decay * x;
                else
                    x -= rate * decay * x;
                m = b1 * m + rest1 * gradient;
                v = b2 * v + rest2 * gradient * gradient;
                const T mean = m / T(1 - std::pow(case_.beta1, steps)),
                        square = v / T(1 - std::pow(case_.beta2, steps));
                x -= rate * mean / (std::sqrt(square) + T(case_.epsilon));
                return;
            }
            case Kind::Lion: {
                const T ahead = b1 * m + rest1 * gradient;
                if (std::abs(ahead) < 1e-5) parameter.doubtful[e] = true;
                x -= rate * (T(ahead > 0 ? 1 : ahead < 0 ? -1 : 0) + decay * x);
                m = b2 * m + rest2 * gradient;
                return;
            }
        }
    }

    const Case& case_;
};

Optimizer make_optimizer(const Case& c, const std::vector<Tensor>& parameters) {
    // The first group has the optimizer's decay, the second one of its own.
    const double decay = c.groups[0].weight_decay;
    const std::vector<ParameterGroup> groups{{.parameters = {parameters[0]}},
                                             {.parameters = {parameters[1]},
                                              .rate_factor = c.groups[1].rate_factor,
                                              .weight_decay = c.groups[1].weight_decay}};
    const AdamOptions adam{
        .beta1 = c.beta1, .beta2 = c.beta2, .epsilon = c.epsilon, .weight_decay = decay, .max_norm = c.max_norm};
    switch (c.kind) {
        case Kind::Sgd:
            return Sgd(groups, 1,
                       {.momentum = c.momentum, .nesterov = c.nesterov, .weight_decay = decay, .max_norm = c.max_norm});
        case Kind::Adam: return Adam(groups, 1, adam);
        case Kind::AdamW: return AdamW(groups, 1, adam);
        case Kind::Lion: break;
    }
    return Lion(groups, 1, {.beta1 = c.beta1, .beta2 = c.beta2, .weight_decay = decay, .max_norm = c.max_norm});
}

size_t num_states(const Case& c) {
    if (c.kind == Kind::Sgd) return c.momentum > 0 ? 1 : 0;
    return c.kind == Kind::Lion ? 1 : 2;
}

/// sum(c0 * p0) + sum(p0 * p0) / 2 and the same of c1 and p1.
const Operator& objective() {
    static const Operator op("objective", [](const std::vector<tw::Tensor>& in) {
        Expr total;
        for (size_t k = 0; k < 2; ++k) {
            std::vector<Axis> axes;
            std::vector<Operand> at;
            for (const Expr& extent : in[k].shape()) {
                axes.push_back(reduce_axis("r", extent));
                at.emplace_back(axes.back());
            }
            const Expr p = in[k].read(at), part = sum(p * (in[k + 2].read(at) + 0.5 * p), axes);
            total = k == 0 ? part : total + part;
        }
        return compute("objective", {}, [&] { return total; });
    });
    return op;
}

enum class Mode { Eager, Recorded, Compiled };

/// Parameters, and what trains them in one of three ways.
class Trained {
public:
    Trained(const std::shared_ptr<Backend>& backend, const Case& c, const std::vector<std::vector<float>>& start,
            Mode mode)
        : parameters_(tensors(backend, c, start, "parameter")),
          coefficients_(tensors(backend, c, start, "c")),
          optimizer_(make_optimizer(c, parameters_)),
          ema_(parameters_, c.ema) {
        if (mode == Mode::Compiled) compiled_ = compile(backend, [&] { return std::vector{step()}; });
        if (mode == Mode::Recorded) recorded_ = backend->record([&] { step(); });
    }

    void step(const std::vector<std::vector<float>>& coefficients, double rate) {
        for (size_t p = 0; p < 2; ++p) coefficients_[p].data().write(coefficients[p]);
        optimizer_.set_rate(rate);
        if (compiled_)
            compiled_->run();
        else if (recorded_)
            recorded_->run();
        else
            step();
    }

    std::vector<float> parameter(size_t p) const { return parameters_[p].data().read<float>(); }
    std::vector<float> average(size_t p) const { return ema_.averages()[p].data().read<float>(); }
    std::vector<float> state(size_t k) const { return optimizer_.states().at(k).data().read<float>(); }
    size_t num_states() const { return optimizer_.states().size(); }
    std::optional<CompiledStep> compiled() const { return compiled_; }
    float norm() const { return optimizer_.gradient_norm().data().read<float>()[0]; }

private:
    static std::vector<Tensor> tensors(const std::shared_ptr<Backend>& backend, const Case& c,
                                       const std::vector<std::vector<float>>& values, const std::string& name) {
        std::vector<Tensor> result;
        for (size_t p = 0; p < 2; ++p) {
            result.emplace_back(backend, f32, c.groups[p].shape, name);
            result[p].data().write(values[p]);
            if (name == "parameter") result[p].set_requires_grad();
        }
        return result;
    }
    /// What a compiled step returns: the loss, or the norm if there is one.
    Tensor step() {
        const Tensor loss = objective()({parameters_[0], parameters_[1], coefficients_[0], coefficients_[1]});
        backward(loss);
        optimizer_.step();
        ema_.step();
        return optimizer_.gradient_norm().defined() ? optimizer_.gradient_norm() : loss;
    }

    std::vector<Tensor> parameters_, coefficients_;
    Optimizer optimizer_;
    Ema ema_;
    std::optional<CompiledStep> compiled_;
    std::optional<Graph> recorded_;
};

/// Errors are at most four times the largest one that the same formulas make in float32, and some roundings.
template <class A, class B>
void expect_close(const std::vector<float>& got, const std::vector<A>& exact, const std::vector<B>& rounded,
                  const std::vector<bool>& doubtful, const std::string& what) {
    double own = 0;
    for (size_t e = 0; e < exact.size(); ++e)
        if (!doubtful[e]) own = std::max(own, std::fabs(exact[e] - static_cast<double>(rounded[e])));
    ASSERT_EQ(got.size(), exact.size()) << what;
    for (size_t e = 0; e < exact.size(); ++e) {
        if (doubtful[e]) continue;
        ASSERT_NEAR(got[e], exact[e], 4 * own + 2e-7 * (1 + std::fabs(exact[e]))) << what << " " << e;
    }
}

void expect_state(const Trained& trained, const Case& c, const Reference<double>& exact,
                  const Reference<float>& rounded) {
    const size_t states = num_states(c);
    for (size_t p = 0; p < 2; ++p) {
        const auto& e = exact.parameters[p];
        const auto& r = rounded.parameters[p];
        expect_close(trained.parameter(p), e.value, r.value, e.doubtful, fmt::format("parameter {}", p));
        expect_close(trained.average(p), e.average, r.average, e.doubtful, fmt::format("average {}", p));
        if (states > 0) expect_close(trained.state(p * states), e.first, r.first, e.doubtful, "first state");
        if (states > 1) expect_close(trained.state(p * states + 1), e.second, r.second, e.doubtful, "second state");
    }
    const bool counts = c.kind == Kind::Adam || c.kind == Kind::AdamW;
    ASSERT_EQ(trained.num_states(), 2 * states + (counts ? 1 : 0));
    if (!counts) return;
    EXPECT_EQ(trained.state(2 * states), std::vector{static_cast<float>(exact.steps)});
}

std::string text_of(const Case& c) {
    return fmt::format("kind {} momentum {} betas {} {} epsilon {} nesterov {} max_norm {} shapes {} {} factor {}",
                       static_cast<int>(c.kind), c.momentum, c.beta1, c.beta2, c.epsilon, c.nesterov, c.max_norm,
                       shape_text(c.groups[0].shape), shape_text(c.groups[1].shape), c.groups[1].rate_factor);
}

class Optimizers : public OnDevice {
protected:
    void SetUp() override {
        OnDevice::SetUp();
        if (device_) backend_ = std::make_shared<Backend>(device_);
    }
    Tensor leaf(const std::vector<int64_t>& shape, const std::string& name = "leaf") const {
        return constant_parameter(backend_, shape, 0.5, name);
    }

    std::shared_ptr<Backend> backend_;
};
TW_ON_EACH_DEVICE(Optimizers);

/// In each mode, after each step: parameters, states, averages and norms; rates and gradients change in between.
TEST_P(Optimizers, FollowTheirFormulas) {
    const uint64_t seed = std::random_device{}();
    std::mt19937_64 random(seed);
    const auto values = [&](const Case& c, double low, double high) {
        std::uniform_real_distribution<float> uniform(static_cast<float>(low), static_cast<float>(high));
        std::vector<std::vector<float>> result;
        for (const GroupCase& group : c.groups) {
            int64_t elements = 1;
            for (int64_t extent : group.shape) elements *= extent;
            result.emplace_back(elements);
            for (float& value : result.back()) value = uniform(random);
        }
        return result;
    };
    for (int number = 0; number < 10; ++number) {
        const Case c = random_case(number, random);
        SCOPED_TRACE(fmt::format("case {} of seed {}: {}", number, seed, text_of(c)));
        const auto start = values(c, -1, 1);
        Trained eager(backend_, c, start, Mode::Eager), compiled(backend_, c, start, Mode::Compiled);
        std::optional<Trained> recorded;
        if (number < 5) recorded.emplace(backend_, c, start, Mode::Recorded);
        Reference<double> exact(c, start);
        Reference<float> rounded(c, start);
        for (double rate : c.rates) {
            const auto coefficients = values(c, 0.5, 1.5);
            exact.step(coefficients, rate);
            rounded.step(coefficients, rate);
            for (Trained* trained : {&eager, &compiled, recorded ? &*recorded : nullptr}) {
                if (!trained) continue;
                trained->step(coefficients, rate);
                expect_state(*trained, c, exact, rounded);
                const double norm = c.max_norm > 0 ? trained->norm() : exact.norm;
                EXPECT_NEAR(norm, exact.norm, 1e-5 * exact.norm);
                if (HasFailure()) return;
            }
        }
        EXPECT_EQ(exact.norm > c.max_norm, c.max_norm < 1) << "the norm is " << exact.norm;
    }
}

/// Operations of the step that are called so, whatever their number.
size_t count_operations(const StepPlan& plan, const std::string& name) {
    size_t count = 0;
    for (const StepGroup& group : plan.groups)
        for (const std::string& operation : group.operations)
            if (operation == name || operation.starts_with(name + "_")) ++count;
    return count;
}

/// A captured step has one operation for all small parameters, one for their averages, one for their norm, one that
/// counts, and none that copies.
TEST_P(Optimizers, AreOneOperationEachInACompiledStep) {
    const Linear hidden(backend_, 8, 8, 1), output(backend_, 8, 8, 2);
    const std::vector<Tensor> parameters = joined({hidden.parameters(), output.parameters()});
    const Tensor x(backend_, host_array(f32, {4, 8}), "x"), labels(backend_, host_array(i32, {4}), "labels");
    const auto plan_with = [&](Optimizer optimizer) {
        Ema ema(parameters, 0.9);
        return compile(backend_,
                       [&] {
                           const Tensor loss = cross_entropy(output(relu(hidden(x))), labels);
                           backward(loss);
                           optimizer.step();
                           ema.step();
                           return std::vector{loss};
                       })
            .plan();
    };
    const StepPlan plan = plan_with(AdamW(parameters, 0.1));
    SCOPED_TRACE(plan.text());
    EXPECT_THAT(faults_of(plan), testing::IsEmpty());
    EXPECT_EQ(count_operations(plan, "adamw"), 1u);
    EXPECT_EQ(count_operations(plan, "ema"), 1u);
    EXPECT_EQ(count_operations(plan, "count_steps"), 1u);
    EXPECT_EQ(plan.text().find("copy of"), std::string::npos);
    EXPECT_EQ(plan.text().find("sum_of_squares"), std::string::npos) << "nothing is clipped";

    const StepPlan clipped = plan_with(Sgd(parameters, 0.1, SgdOptions{.momentum = 0.9, .max_norm = 1}));
    EXPECT_THAT(faults_of(clipped), testing::IsEmpty());
    EXPECT_EQ(count_operations(clipped, "sgd"), 1u);
    EXPECT_EQ(count_operations(clipped, "sum_of_squares"), 1u);
    EXPECT_EQ(count_operations(clipped, "gradient_norm"), 1u);
    EXPECT_EQ(count_operations(clipped, "count_steps"), 0u);
}

/// More tensors than one kernel is given.
TEST_P(Optimizers, TheNormIsThatOfAllGradients) {
    std::vector<Tensor> gradients;
    double squares = 0;
    for (int k = 1; k <= 70; ++k) {
        gradients.push_back(constant_tensor(backend_, {3}, k, "g"));
        squares += 3.0 * k * k;
    }
    const size_t built = backend_->num_built();
    const float norm = global_norm(gradients).data().read<float>()[0];
    EXPECT_NEAR(norm, std::sqrt(squares), 1e-6 * std::sqrt(squares));
    EXPECT_EQ(backend_->num_built(), built + 3) << "sums of squares of 64 and of 6, and the root of both";
}

/// A norm that is no number spoils all parameters, in place of letting the others go on unclipped.
TEST_P(Optimizers, ClippingKeepsNotANumber) {
    const Tensor good = leaf({2}, "good"), bad = leaf({2}, "bad");
    bad.data().write(std::vector<float>{0, NAN});
    const Tensor ones(backend_, host_array(f32, {2}), "ones");
    Sgd sgd({good, bad}, 0.1, SgdOptions{.max_norm = 1});
    backward(objective()({good, bad, ones, ones}));
    sgd.step();
    EXPECT_TRUE(std::isnan(good.data().read<float>()[0]));
    EXPECT_TRUE(std::isnan(bad.data().read<float>()[0]));
}

/// In the first step Adam moves each parameter by the rate, whatever the betas are: 1 - beta has no error of f32.
TEST_P(Optimizers, TheFirstStepIsCorrectedExactly) {
    const Tensor a = constant_parameter(backend_, {2}, 0, "a"), b = leaf({2}, "b");
    const Tensor c = constant_tensor(backend_, {2}, 0.7, "c");
    Adam adam({a, b}, 0.25, {.beta1 = 0.999, .beta2 = 0.99999, .epsilon = 1e-12});
    backward(objective()({a, b, c, c}));
    adam.step();
    EXPECT_NEAR(a.data().read<float>()[0], -0.25, 1e-6);
    EXPECT_NEAR(b.data().read<float>()[1], 0.25, 1e-6);
}

/// Lion stands still where there is no gradient yet.
TEST_P(Optimizers, TheSignOfZeroIsZero) {
    const Tensor a = constant_parameter(backend_, {2}, 0, "a"), b = leaf({2}, "b");
    const Tensor zeros(backend_, host_array(f32, {2}), "zeros");
    Lion lion({a, b}, 0.1);
    backward(objective()({a, b, zeros, zeros}));
    lion.step();
    EXPECT_EQ(a.data().read<float>(), (std::vector<float>{0, 0}));
    EXPECT_EQ(b.data().read<float>(), (std::vector<float>{0.4F, 0.4F}));
}

/// A rule of the user's own is an expression; kernels are shared by optimizers that declare the same, and by no others.
TEST_P(Optimizers, TakeRulesOfTheUsersOwn) {
    const Tensor p = leaf({2}, "p"), q = leaf({2}, "q"), ones = constant_tensor(backend_, {2}, 1, "ones");
    const auto rule = [](double power) {
        return UpdateRule{.name = "Decreasing",
                          .next =
                              [](const UpdateElements& now) {
                                  return std::vector{now.parameter - now.rate * now.numbers[0] * now.gradient};
                              },
                          .numbers = [=](const Expr& steps) { return std::vector{power / steps}; }};
    };
    const auto moved_by = [&](double power) {
        Optimizer optimizer({p, q}, 0.25, rule(power));
        p.data().write(std::vector<float>{0, 0});
        for (int step = 0; step < 2; ++step) {
            backward(objective()({p, q, ones, ones}));
            optimizer.step();
        }
        return p.data().read<float>()[0];
    };
    EXPECT_FLOAT_EQ(moved_by(1), -0.25F - 0.125F * 0.75F);
    const size_t built = backend_->num_built();
    EXPECT_FLOAT_EQ(moved_by(1), -0.25F - 0.125F * 0.75F);
    EXPECT_EQ(backend_->num_built(), built);
    EXPECT_FLOAT_EQ(moved_by(2), -0.5F - 0.25F * 0.5F);
    EXPECT_EQ(backend_->num_built(), built + 1) << "the numbers of a step alone differ";
}

TEST_P(Optimizers, RefuseWhatTheyCannotUpdate) {
    const Tensor x = leaf({4, 3}, "x"), y = leaf({2}, "y");
    EXPECT_ERROR(AdamW({}, 0.1), "AdamW: no parameters; give those of the layers");
    EXPECT_ERROR((AdamW(std::vector<ParameterGroup>{{}, {}}, 0.1)), "AdamW: no parameters");
    EXPECT_ERROR(Ema({}, 0.9), "Ema: no parameters; give those of the layers");
    EXPECT_ERROR((Lion({x, Tensor()}, 0.1)), "Lion: parameter 1 is an undefined tensor; make it first");
    EXPECT_ERROR(Adam({leaf({}, "s")}, 0.1), "Adam: parameter 's' is a scalar; give it the shape [1]");
    EXPECT_ERROR((Sgd({x, Tensor(backend_, bf16, {2}, "half")}, 0.1)), "Sgd: parameter 'half' is bf16; keep f32 ones");
    EXPECT_ERROR((Sgd({x, constant_parameter(std::make_shared<Backend>(device_), {2}, 0, "far")}, 0.1)),
                 "Sgd: parameters 'x' and 'far' are of different backends; make all with one");
    EXPECT_ERROR((Sgd({{.parameters = {x, y}}, {.parameters = {x}}}, 0.1)),
                 "Sgd: parameter 'x' [4, 3] is given twice; name it once, in one group");
    EXPECT_ERROR(AdamW({x}, 0.1).step(), "AdamW: parameter 'x' [4, 3] has no gradient; call backward() before step()");

    // Called, but not of it: told apart, and by line.
    Sgd of_y({y}, 0.1);
    const Tensor z = leaf({3}, "z");
    Sgd of_both({y, z}, 0.1);
    int line = __LINE__ + 1;
    EXPECT_ERROR(of_y.step(),
                 fmt::format("optimizers_test.cpp:{}: Sgd: parameter 'y' [2] has no gradient; call ", line));
    backward(mse_loss(z, z));
    line = __LINE__ + 1;
    EXPECT_ERROR(of_both.step(), fmt::format("optimizers_test.cpp:{}: Sgd: parameter 'y' [2] has no gradient; "
                                             "backward() was called, but of no loss that is made of it",
                                             line));
    line = __LINE__ + 1;
    EXPECT_ERROR(Lion({}, 0.1), fmt::format("optimizers_test.cpp:{}: Lion: no parameters", line));
    line = __LINE__ + 1;
    EXPECT_ERROR((AdamW({x}, 0.1, {.beta1 = 2})), fmt::format("optimizers_test.cpp:{}: AdamW: beta1 is 2", line));

    const auto is_no_number = [](const std::string& what) {
        return what + "; give a finite number that is not negative";
    };
    EXPECT_ERROR(Sgd({x}, -0.1), is_no_number("Sgd: the rate is -0.1"));
    EXPECT_ERROR(Sgd({x}, 0.1).set_rate(NAN), is_no_number("Sgd: the rate is nan"));
    EXPECT_ERROR(Lion({x}, INFINITY), is_no_number("Lion: the rate is inf"));
    EXPECT_ERROR((Sgd({{.parameters = {x}, .rate_factor = -1}}, 0.1)), is_no_number("a group's rate is -1"));
    EXPECT_ERROR((Sgd({{.parameters = {x}, .weight_decay = -1}}, 0.1)), is_no_number("the weight decay is -1"));
    EXPECT_ERROR((Adam({x}, 0.1, {.weight_decay = NAN})), is_no_number("Adam: the weight decay is nan"));
    EXPECT_ERROR((Adam({x}, 0.1, {.max_norm = -2})), is_no_number("Adam: max_norm is -2"));

    const std::string kept = "outside of [0, 1); give the share of the old value that a step keeps";
    EXPECT_ERROR(Sgd({x}, 0.1, 1), "Sgd: momentum is 1, " + kept);
    EXPECT_ERROR((Adam({x}, 0.1, {.beta1 = -0.1})), "Adam: beta1 is -0.1, " + kept);
    EXPECT_ERROR((AdamW({x}, 0.1, {.beta2 = 1})), "AdamW: beta2 is 1, " + kept);
    EXPECT_ERROR((Lion({x}, 0.1, {.beta1 = NAN})), "Lion: beta1 is nan, " + kept);
    EXPECT_ERROR((Lion({x}, 0.1, {.beta2 = 2})), "Lion: beta2 is 2, " + kept);
    EXPECT_ERROR((Adam({x}, 0.1, {.epsilon = 0})), "Adam: epsilon is 0; give a positive number");
    EXPECT_ERROR((Sgd({x}, 0.1, SgdOptions{.nesterov = true})), "Sgd: nesterov without momentum looks ahead nowhere");
    EXPECT_ERROR(Ema({x}, 1),
                 "Ema: the decay is 1, outside of [0, 1); give the share of the average that a step keeps");

    Optimizer two({y}, 0.1, {.name = "Two", .next = [](const UpdateElements& now) {
                                 return std::vector{now.gradient, now.parameter};
                             }});
    backward(objective()({y, x, y, x}));
    EXPECT_ERROR(two.step(), "Two: the rule makes 2 values of 0 states; return what each becomes, and the parameter");
    Optimizer wide({y}, 0.1, {.name = "Wide", .next = [](const UpdateElements& now) {
                                  return std::vector{cast(f64, now.parameter) - cast(f64, now.rate * now.gradient)};
                              }});
    backward(objective()({y, x, y, x}));
    EXPECT_ERROR(wide.step(), "Wide: the rule makes f64 of 'parameter_next', which is f32; return what it becomes as");
}

/// Continuous at the end of the warm-up, never above the peak, the last rate from the last step on.
TEST(RateSchedules, GoUpAndDown) {
    std::mt19937_64 random(std::random_device{}());
    for (int number = 0; number < 200; ++number) {
        const int64_t warmup = std::uniform_int_distribution<int64_t>(0, 20)(random);
        const int64_t down = std::uniform_int_distribution<int64_t>(1, 50)(random);
        const double peak = std::uniform_real_distribution(0.01, 1.0)(random), last = peak / 10;
        const WarmupOptions options{.peak = peak, .warmup = warmup, .steps = warmup + down, .last = last};
        const RateSchedule cosine = cosine_rate(options), linear = linear_rate(options);
        for (const RateSchedule& rate : {cosine, linear}) {
            for (int64_t n = 0; n < warmup; ++n) {
                EXPECT_NEAR(rate(n), peak * static_cast<double>(n + 1) / static_cast<double>(warmup + 1), 1e-12);
                EXPECT_LT(rate(n), rate(n + 1));
            }
            EXPECT_DOUBLE_EQ(rate(warmup), peak);
            for (int64_t n = warmup; n < warmup + down; ++n) EXPECT_GT(rate(n), rate(n + 1));
            EXPECT_NEAR(rate(warmup + down), last, 1e-12);
            EXPECT_NEAR(rate(warmup + down + 100), last, 1e-12);
        }
        for (int64_t n = 0; n <= down; ++n) {
            const double done = static_cast<double>(n) / static_cast<double>(down);
            EXPECT_NEAR(linear(warmup + n), peak + (last - peak) * done, 1e-12);
            EXPECT_NEAR(cosine(warmup + n), last + (peak - last) * 0.5 * (1 + std::cos(M_PI * done)), 1e-12);
        }
    }
    EXPECT_EQ(constant_rate(0.3)(1000), 0.3);
    const RateSchedule stepped = stepped_rate(0.8, 3, 0.5);
    for (int64_t n = 0; n < 12; ++n)
        EXPECT_DOUBLE_EQ(stepped(n), 0.8 * std::pow(0.5, std::floor(static_cast<double>(n) / 3)));
}

TEST(RateSchedules, RefuseWhatIsNoRate) {
    EXPECT_ERROR(constant_rate(-1), "constant_rate: a rate of -1; give a finite one that is not negative");
    EXPECT_ERROR(cosine_rate({.peak = NAN, .steps = 1}), "cosine_rate: a rate of nan");
    EXPECT_ERROR((linear_rate({.peak = 1, .steps = 1, .last = -2})), "linear_rate: a rate of -2");
    EXPECT_ERROR((cosine_rate({.peak = 1, .warmup = 5, .steps = 5})),
                 "cosine_rate: 5 of 5 steps are warm-up; leave at least one step behind it");
    EXPECT_ERROR((linear_rate({.peak = 1, .warmup = -1, .steps = 5})), "linear_rate: -1 of 5 steps are warm-up");
    EXPECT_ERROR(stepped_rate(1, 0, 0.5), "stepped_rate: times 0.5 every 0 steps; give a finite, positive factor");
    EXPECT_ERROR(stepped_rate(1, 3, 0), "stepped_rate: times 0 every 3 steps");
    EXPECT_ERROR(constant_rate(1)(-1), "the learning rate of step -1; steps are counted from 0 on");
}

}  // namespace
}  // namespace tw::nn
