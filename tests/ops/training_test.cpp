// The training layer through the whole stack: gradients of built kernels against finite differences in float64,
// accumulation on the tape, updates against a reference, and what is refused.
#include <cmath>
#include <random>

#include "dsl/differentiate.h"
#include "ops/autograd.h"
#include "ops/layers.h"
#include "ops/optimizer.h"
#include "schedules/elementwise.h"
#include "tests/ops/on_each_device.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

using Values = std::vector<double>;

Values random_values(int64_t count, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    Values values(static_cast<size_t>(count));
    for (double& value : values) value = uniform(random);
    return values;
}

class Training : public OnEachDevice {
protected:
    void SetUp() override {
        OnEachDevice::SetUp();
        if (device_) backend_ = std::make_shared<nn::Backend>(device_);
    }

    nn::Tensor leaf(const std::vector<int64_t>& shape, const Values& values, const std::string& name = "leaf") const {
        nn::Tensor tensor(backend_, f32, shape, name);
        tensor.data().write(std::vector<float>(values.begin(), values.end()));
        return tensor.set_requires_grad();
    }
    nn::Tensor labels(const std::vector<int32_t>& values) const {
        nn::Tensor tensor(backend_, i32, {static_cast<int64_t>(values.size())}, "labels");
        tensor.data().write(values);
        return tensor;
    }
    static Values values_of(const nn::Tensor& tensor) {
        std::vector<float> values = tensor.data().read<float>();
        return {values.begin(), values.end()};
    }

    std::shared_ptr<nn::Backend> backend_;
};
TW_ON_EACH_DEVICE(Training);

/// sum(x * coefficients), so that each element of an operator's result has another adjoint.
nn::Tensor weighted_sum(const nn::Tensor& x, const nn::Tensor& coefficients) {
    static const nn::Operator op("weighted_sum", [](const std::vector<Tensor>& in) {
        std::vector<Axis> axes;
        std::vector<Operand> at;
        for (const Expr& extent : in[0].shape()) {
            axes.push_back(reduce_axis("r", extent));
            at.emplace_back(axes.back());
        }
        return compute("weighted", {}, [&] { return sum(in[0].read(at) * in[1].read(at), axes); });
    });
    return op({x, coefficients});
}

/// d loss(values) against the gradient of `leaf`.
void expect_finite_differences(const nn::Tensor& leaf, Values& values, const std::function<double()>& loss) {
    ASSERT_TRUE(leaf.grad().defined());
    std::vector<float> got = leaf.grad().data().read<float>();
    constexpr double h = 1e-6;
    for (size_t e = 0; e < values.size(); ++e) {
        double before = values[e];
        values[e] = before + h;
        double above = loss();
        values[e] = before - h;
        double below = loss();
        values[e] = before;
        double expected = (above - below) / (2 * h);
        ASSERT_NEAR(got[e], expected, 2e-5 * (1 + std::fabs(expected))) << leaf.name() << " " << e;
    }
}

struct LinearCase {
    int64_t batch, in, out;
};

TEST_P(Training, LinearAndRelu) {
    for (auto [batch, in, out] : {LinearCase{5, 7, 3}, LinearCase{33, 20, 18}}) {
        SCOPED_TRACE(batch);
        Values x = random_values(batch * in, 1), w = random_values(out * in, 2), b = random_values(out, 3);
        Values c = random_values(batch * out, 4);
        nn::Tensor tx = leaf({batch, in}, x, "x"), tw = leaf({out, in}, w, "w"), tb = leaf({out}, b, "b");
        nn::Tensor tc = leaf({batch, out}, c, "c");
        nn::Tensor loss = weighted_sum(nn::relu(nn::linear(tx, tw, tb)), tc);
        nn::backward(loss);
        auto reference = [&, batch = batch, in = in, out = out] {
            double total = 0;
            for (int64_t i = 0; i < batch; ++i)
                for (int64_t j = 0; j < out; ++j) {
                    double y = b[j];
                    for (int64_t k = 0; k < in; ++k) y += x[i * in + k] * w[j * in + k];
                    total += std::max(y, 0.0) * c[i * out + j];
                }
            return total;
        };
        EXPECT_NEAR(values_of(loss)[0], reference(), 1e-4);
        expect_finite_differences(tx, x, reference);
        expect_finite_differences(tw, w, reference);
        expect_finite_differences(tb, b, reference);
        expect_finite_differences(tc, c, reference);
    }
}

TEST_P(Training, GeluSumAndSquaredError) {
    constexpr int64_t Rows = 5, Columns = 7;
    Values x = random_values(Rows * Columns, 21), y = random_values(Rows * Columns, 22),
           goal = random_values(Rows * Columns, 23);
    for (double& value : x) value = static_cast<float>(value * 3);
    nn::Tensor tx = leaf({Rows, Columns}, x, "x"), ty = leaf({Rows, Columns}, y, "y");
    nn::Tensor tgoal = leaf({Rows, Columns}, goal, "goal"), loss = nn::mse_loss(nn::add(nn::gelu(tx), ty), tgoal);
    nn::backward(loss);
    auto reference = [&] {
        double total = 0;
        for (size_t e = 0; e < x.size(); ++e) {
            const double error = x[e] / 2 * (1 + std::erf(x[e] / std::sqrt(2.0))) + y[e] - goal[e];
            total += error * error;
        }
        return total / static_cast<double>(x.size());
    };
    EXPECT_NEAR(values_of(loss)[0], reference(), 1e-5);
    expect_finite_differences(tx, x, reference);
    expect_finite_differences(ty, y, reference);
    expect_finite_differences(tgoal, goal, reference);
}

TEST_P(Training, CrossEntropy) {
    constexpr int64_t Batch = 37, Classes = 10;
    Values x = random_values(Batch * Classes, 5);
    for (double& value : x) value = static_cast<float>(value * 8);
    x[3] = 120;  // exp of it is infinite in f32
    std::vector<int32_t> label(Batch);
    for (int64_t i = 0; i < Batch; ++i) label[i] = static_cast<int32_t>(i * 7 % Classes);
    nn::Tensor logits = leaf({Batch, Classes}, x, "logits"), loss = nn::cross_entropy(logits, labels(label));
    nn::backward(loss);
    auto reference = [&] {
        double total = 0;
        for (int64_t i = 0; i < Batch; ++i) {
            double top = -INFINITY, sum = 0;
            for (int64_t c = 0; c < Classes; ++c) top = std::max(top, x[i * Classes + c]);
            for (int64_t c = 0; c < Classes; ++c) sum += std::exp(x[i * Classes + c] - top);
            total += std::log(sum) + top - x[i * Classes + label[i]];
        }
        return total / Batch;
    };
    EXPECT_NEAR(values_of(loss)[0], reference(), 1e-5);
    expect_finite_differences(logits, x, reference);
}

/// f(x) = sum c * relu(x) + sum x * x: the tensor is used three times, twice by one call.
TEST_P(Training, SharedInputAccumulates) {
    Values x = random_values(300, 6), c = random_values(300, 7);
    nn::Tensor tx = leaf({300}, x, "x"), tc = leaf({300}, c, "c");
    nn::Operator add(
        "add", [](const std::vector<Tensor>& in) { return compute("added", {}, [&] { return in[0]() + in[1](); }); });
    for (int round = 0; round < 2; ++round) {  // the second replaces the first
        nn::Tensor first = weighted_sum(nn::relu(tx), tc), second = weighted_sum(tx, tx);
        nn::backward(add({first, second}));
        expect_finite_differences(tx, x, [&] {
            double total = 0;
            for (size_t e = 0; e < x.size(); ++e) total += std::max(x[e], 0.0) * c[e] + x[e] * x[e];
            return total;
        });
    }
}

TEST_P(Training, SgdStep) {
    Values p = random_values(70, 8), g = random_values(70, 9), v(70, 0.0);
    nn::Tensor parameter = leaf({7, 10}, p, "p"), coefficient = leaf({7, 10}, g, "c");
    nn::Sgd sgd({parameter}, 0.1, 0.9);
    for (int step = 0; step < 3; ++step) {
        if (step == 2) sgd.set_rate(0.05);
        nn::backward(weighted_sum(parameter, coefficient));
        sgd.step();
        for (size_t e = 0; e < p.size(); ++e) {
            v[e] = 0.9 * v[e] + g[e];
            p[e] -= (step == 2 ? 0.05 : 0.1) * v[e];
        }
    }
    Values got = values_of(parameter);
    for (size_t e = 0; e < p.size(); ++e) ASSERT_NEAR(got[e], p[e], 1e-6) << e;
}

/// An operator of the user's own: the expression alone. Its one parameter is trained to a known value.
TEST_P(Training, OwnOperatorTrains) {
    nn::Operator error_of_scale("error_of_scale", [](const std::vector<Tensor>& in) {
        const Tensor &x = in[0], &y = in[1], &scale = in[2];
        Axis i = reduce_axis("i", x.shape()[0]);
        Tensor off = compute("off", {x.shape()[0]}, [&](Expr j) { return tanh(scale(0) * x(j)) - y(j); });
        return compute("error", {}, [&] { return sum(off(i) * off(i), i) / cast(f32, x.shape()[0]); });
    });
    Values x = random_values(64, 10), y;
    for (double value : x) y.push_back(std::tanh(1.7 * value));
    nn::Tensor tx(backend_, f32, {64}), ty(backend_, f32, {64}), scale = leaf({1}, {0.2});
    tx.data().write(std::vector<float>(x.begin(), x.end()));
    ty.data().write(std::vector<float>(y.begin(), y.end()));
    nn::Sgd sgd({scale}, 2.0);
    Graph step = backend_->record([&] {
        nn::backward(error_of_scale({tx, ty, scale}));
        sgd.step();
    });
    for (int i = 0; i < 60; ++i) step.run();
    EXPECT_NEAR(values_of(scale)[0], 1.7, 0.01);
}

/// Both can be replaced: a gradient that passes rounding straight through, and schedules of one's own.
TEST_P(Training, OwnGradientAndSchedules) {
    int forward = 0, backward = 0;
    auto counted = [](int& count) {
        return [&count](const std::vector<Tensor>& outputs, const Target& target) {
            ++count;
            Schedule s(outputs, target);
            schedules::schedule_elementwise(s, outputs[0], 32, 1);
            return s;
        };
    };
    nn::Operator straight_round(
        "straight_round",
        [](const std::vector<Tensor>& in) {
            Tensor y = compute("rounded", {in[0].shape()[0]}, [&](Expr i) { return round(in[0](i)); });
            return with_gradient(y, {in[0]}, [](const Tensor&, const Tensor& dy) { return std::vector<Tensor>{dy}; });
        },
        counted(forward), counted(backward));
    Values x = random_values(70, 12), c = random_values(70, 13);
    nn::Tensor tx = leaf({70}, x), tc = leaf({70}, c);
    for (int call = 0; call < 2; ++call) {
        nn::Tensor y = straight_round({tx});
        nn::backward(weighted_sum(y, tc));
        for (size_t e = 0; e < x.size(); ++e) ASSERT_EQ(values_of(y)[e], std::nearbyint(x[e]));
        EXPECT_EQ(values_of(tx.grad()), c);
    }
    EXPECT_EQ(forward, 1);
    EXPECT_EQ(backward, 1);
}

/// A gather's indices are the caller's; the emulator reports one that leaves its dimension.
TEST_P(Training, EmulatorReportsWrongLabel) {
    if (device_->kind() != DeviceKind::Emulated) GTEST_SKIP() << "only the emulator checks accesses";
    nn::Tensor logits = leaf({2, 3}, random_values(6, 1));
    try {
        nn::cross_entropy(logits, labels({0, 700})).to_host();
        FAIL() << "nothing was reported";
    } catch (const std::exception& error) {
        EXPECT_NE(std::string(error.what()).find("uses index 700 of dimension 1 of 'x0'"), std::string::npos)
            << error.what();
    }
}

/// Kernels are built once; a recorded step does what the same calls do at once, bit for bit, in every run.
TEST_P(Training, RunsAreBitwiseEqual) {
    Values x = random_values(20 * 12, 11);
    std::vector<int32_t> label(20);
    for (int i = 0; i < 20; ++i) label[i] = i % 4;
    auto train = [&](bool recorded) {
        nn::Linear first(backend_, 12, 16, 1), second(backend_, 16, 4, 2);
        std::vector<nn::Tensor> parameters = first.parameters();
        for (const nn::Tensor& parameter : second.parameters()) parameters.push_back(parameter);
        nn::Sgd sgd(parameters, 0.3, 0.5);
        nn::Tensor input(backend_, f32, {20, 12}), target = labels(label), loss;
        input.data().write(std::vector<float>(x.begin(), x.end()));
        auto step = [&] {
            loss = nn::cross_entropy(second(nn::relu(first(input))), target);
            nn::backward(loss);
            sgd.step();
        };
        Graph graph;
        if (recorded) graph = backend_->record(step);
        Values losses;
        for (int i = 0; i < 4; ++i) {
            recorded ? graph.run() : step();
            losses.push_back(values_of(loss)[0]);
        }
        return losses;
    };
    Values once = train(false);
    size_t built = backend_->num_built();
    EXPECT_EQ(train(false), once);
    EXPECT_EQ(train(true), once);
    EXPECT_EQ(backend_->num_built(), built);
    EXPECT_LT(once.back(), once.front());
}

TEST_P(Training, Errors) {
    nn::Tensor x = leaf({4, 3}, random_values(12, 1), "x"), w = leaf({5, 2}, random_values(10, 2), "w");
    nn::Tensor b = leaf({4}, random_values(4, 3), "b");
    EXPECT_ERROR(nn::linear(x, w, b), "x is [4, 3], the weight [5, 2]");
    EXPECT_ERROR((nn::linear(x, leaf({5, 3}, random_values(15, 2)), b)), "the weight is [5, 3], the bias [4]");
    EXPECT_ERROR(nn::cross_entropy(x, b), "logits are [4, 3], labels f32 [4]");
    EXPECT_ERROR(nn::cross_entropy(x, labels({1, 2})), "logits are [4, 3], labels i32 [2]");
    EXPECT_ERROR(nn::add(x, w), "add: x is [4, 3], y [5, 2]: dimension 1 of x is 3, dimension 1 of y is 2; dimensions");
    EXPECT_ERROR(nn::mse_loss(x, w), "mse_loss: x is [4, 3], y [5, 2]; give two of one shape with at least one extent");
    EXPECT_ERROR(nn::check_labels({0, 3, 1}, 3), "label 1 is 3, outside of 0..2");
    EXPECT_ERROR(nn::accuracy(x.to_host(), {0, 1}), "logits are [4, 3], labels [2]");
    EXPECT_ERROR(x.copy_from_host(host_array(f32, {3, 4})), "'x' is f32 [4, 3], the host array f32 [3, 4]");
    EXPECT_ERROR(labels({1}).set_requires_grad(), "'labels' is i32: gradients are computed for floats only");
    EXPECT_ERROR(nn::Sgd({}, 0.1), "Sgd: no parameters");
    EXPECT_ERROR(nn::Sgd({leaf({}, {1}, "s")}, 0.1), "parameter 's' is a scalar; give it the shape [1]");
    EXPECT_ERROR(nn::Sgd({x}, 0.1).step(), "parameter 'x' [4, 3] has no gradient");
    nn::Operator identity("identity", [](const std::vector<Tensor>& in) {
        return compute("same", {in[0].shape()[0]}, [&](Expr i) { return in[0](i) * 1; });
    });
    EXPECT_ERROR(identity({}), "identity: no inputs");
    nn::Operator itself("itself", [](const std::vector<Tensor>& in) { return in[0]; });
    EXPECT_ERROR(itself({x}), fmt::format("training_test.cpp:{}: Schedule: 'x0' is an input", __LINE__));
    nn::Tensor stranger(std::make_shared<nn::Backend>(device_), f32, {4, 3}, "stranger");
    EXPECT_ERROR(weighted_sum(x, stranger), "'x' and 'stranger' are of different backends");
    nn::Operator unknown("unknown", [](const std::vector<Tensor>&) {
        Tensor y = input("y", f32, {size("n", {.min = 1, .max = 4})});
        return compute("z", {y.shape()[0]}, [&](Expr i) { return y(i) + 1; });
    });
    EXPECT_ERROR(unknown({x}), "unknown: extent n of the result is no constant");

    EXPECT_ERROR(nn::backward(x), "the loss must be an f32 scalar, 'x' is f32 [4, 3]");
    EXPECT_ERROR(nn::backward(nn::Tensor(backend_, f32, {}, "alone")), "'alone' depends on no tensor");
    nn::Tensor loss = weighted_sum(x, x);
    nn::backward(loss);
    EXPECT_ERROR(nn::backward(loss), "has been released by an earlier backward()");
    EXPECT_ERROR(backend_->record([&] { weighted_sum(x, x).to_host(); }), "is read while a step is recorded");
    EXPECT_FALSE(backend_->recording());
}

TEST_P(Training, Accuracy) {
    HostArray logits = host_array(f32, {3, 2});
    logits.set({0, 1}, make_value(f32, 1.0));
    logits.set({2, 0}, make_value(f32, 1.0));
    EXPECT_DOUBLE_EQ(nn::accuracy(logits, {1, 0, 1}), 2.0 / 3);
}

}  // namespace
}  // namespace tw
