// The tape: scopes without gradients, tapes that are kept, hooks, gradients of gradients; by calls and as one graph.
#include <thread>

#include <gmock/gmock.h>

#include "ops/convolution.h"
#include "ops/layers.h"
#include "ops/modules/multi_head_attention.h"
#include "ops/normalization.h"
#include "ops/operator.h"
#include "ops/step/compile_step.h"
#include "ops/tape/tape.h"
#include "ops/views.h"
#include "tests/ops/modules/slopes.h"
#include "tests/support/expect_error.h"
#include "tests/support/on_device.h"

namespace tw::nn {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// x y, element by element.
Tensor times(const Tensor& x, const Tensor& y) {
    static const Operator op("times", [](const std::vector<tw::Tensor>& in) {
        return compute("product", {in[0].shape().begin(), in[0].shape().end()}, [&](const std::vector<Expr>& at) {
            return in[0].read({at.begin(), at.end()}) * in[1].read({at.begin(), at.end()});
        });
    });
    return op({x, y});
}

/// The sum of all elements of a vector.
Tensor total(const Tensor& x) {
    static const Operator op("total", [](const std::vector<tw::Tensor>& in) {
        const Axis i = reduce_axis("i", in[0].shape()[0]);
        return compute("sum", {}, [&] { return sum(in[0](i), i); });
    });
    return op({x});
}

class Tapes : public OnDevice {
protected:
    using Step = std::function<std::vector<Tensor>()>;

    void SetUp() override {
        OnDevice::SetUp();
        if (device_) backend_ = std::make_shared<Backend>(device_);
    }
    Tensor leaf(const std::vector<int64_t>& shape, const Values& values, const std::string& name) const {
        return of_values(backend_, shape, values, name).set_requires_grad();
    }
    /// By calls, and as one graph.
    std::vector<std::vector<Tensor>> both(const Step& step) const {
        std::vector<std::vector<Tensor>> results{step()};
        const CompiledStep compiled = compile(backend_, step);
        EXPECT_THAT(faults_of(compiled.plan()), IsEmpty());
        compiled.run();
        results.push_back(compiled.results());
        return results;
    }
    std::shared_ptr<Backend> backend_;
};
TW_ON_EACH_DEVICE(Tapes);

constexpr int64_t Count = 37;

/// sum(w x tanh(w x)), where one of both factors is a constant: as gradients see it, not as it is made.
TEST_P(Tapes, NothingIsKeptWithoutGrad) {
    const Values w = random_values(Count, 1), x = random_values(Count, 2);
    const Tensor tw = leaf({Count}, w, "w"), tx = of_values(backend_, {Count}, x, "x");
    const auto results = both([&] {
        const Tensor y = times(tw, tx);
        Tensor constant;
        {
            const NoGrad guard;
            const NoGrad inner;
            constant = nn::tanh(times(tw, tx));
        }
        EXPECT_FALSE(constant.requires_grad() || constant.creator());
        EXPECT_TRUE(grad_enabled() && y.requires_grad());
        const Tensor loss = total(times(y, constant));
        backward(loss);
        return std::vector{loss, tw.grad()};
    });
    for (const std::vector<Tensor>& got : results) {
        Values expected;
        double loss = 0;
        for (size_t e = 0; e < w.size(); ++e) {
            expected.push_back(x[e] * std::tanh(w[e] * x[e]));
            loss += w[e] * expected[e];
        }
        EXPECT_NEAR(values_of(got[0])[0], loss, 1e-5);
        expect_near(values_of(got[1]), expected, 1e-6, "d_w");
    }
    EXPECT_THROW(
        [] {
            const NoGrad guard;
            throw 1;
        }(),
        int);
    EXPECT_TRUE(grad_enabled());
    const NoGrad guard;
    std::thread([] { EXPECT_TRUE(grad_enabled()); }).join();
    EXPECT_ERROR(backward(total(times(tw, tx))), "'total' depends on no tensor that requires a gradient; call");
}

TEST_P(Tapes, StayIfRetained) {
    const Values w = random_values(Count, 1), x = random_values(Count, 2);
    const Tensor tw = leaf({Count}, w, "w"), tx = of_values(backend_, {Count}, x, "x");
    const auto results = both([&] {
        const Tensor trunk = times(tw, tx), first = total(times(trunk, trunk)), second = total(nn::tanh(trunk));
        std::vector<Tensor> found;
        backward(first, {.retain = true});
        found.push_back(tw.grad());
        backward(first, {.retain = true});
        found.push_back(tw.grad());
        backward(second);
        found.push_back(tw.grad());
        EXPECT_ERROR(backward(first),
                     "backward: the call that made 'times' has been released by an earlier backward(); "
                     "compute it again, or have that one keep the tape, with {.retain = true}");
        return found;
    });
    for (const std::vector<Tensor>& got : results) {
        Values of_first, of_second;
        for (size_t e = 0; e < w.size(); ++e) {
            of_first.push_back(2 * w[e] * x[e] * x[e]);
            of_second.push_back(x[e] * (1 - std::pow(std::tanh(w[e] * x[e]), 2)));
        }
        expect_near(values_of(got[0]), of_first, 1e-6, "first");
        EXPECT_EQ(values_of(got[1]), values_of(got[0]));
        expect_near(values_of(got[2]), of_second, 1e-6, "second");
    }
}

/// y is read twice; its hooks see the sum of both adjoints, in their order, once; those of w see what comes of that.
TEST_P(Tapes, HooksReplaceFinishedGradients) {
    const Values w = random_values(Count, 1), x = random_values(Count, 2), c = random_values(Count, 3);
    const Tensor tx = of_values(backend_, {Count}, x, "x"), tc = of_values(backend_, {Count}, c, "c");
    std::vector<std::string> order;
    const auto results = both([&] {
        order.clear();
        const Tensor tw = leaf({Count}, w, "w");
        std::vector<Tensor> seen(2);
        const auto see = [&](const std::string& name, const std::function<Tensor(const Tensor&)>& replace) {
            return [&order, name, replace](const Tensor& gradient) {
                order.push_back(name);
                EXPECT_FALSE(grad_enabled());
                return replace(gradient);
            };
        };
        const Tensor y = times(tw, tx);
        y.on_gradient(see("first", [&](const Tensor& g) { return seen[0] = times(g, g); }));
        tw.on_gradient(see("of w", [&](const Tensor& g) { return seen[1] = add(g, tc); }));
        y.on_gradient(see("second", [&](const Tensor& g) { return times(g, tw); }));
        const Tensor loss = total(add(times(y, tc), nn::tanh(y)));
        loss.on_gradient(see("of loss", [&](const Tensor& g) { return add(g, g); }));
        backward(loss);
        EXPECT_THAT(order, ElementsAre("of loss", "first", "second", "of w"));
        EXPECT_TRUE(tw.grad().same(seen[1]));
        return std::vector{tw.grad(), seen[0], loss};
    });
    for (const std::vector<Tensor>& got : results) {
        Values squares, of_w;
        double loss = 0;
        for (size_t e = 0; e < w.size(); ++e) {
            const double y = w[e] * x[e], dy = 2 * (c[e] + 1 - std::pow(std::tanh(y), 2));
            squares.push_back(dy * dy);
            of_w.push_back(dy * dy * w[e] * x[e] + c[e]);
            loss += y * c[e] + std::tanh(y);
        }
        expect_near(values_of(got[0]), of_w, 1e-5, "d_w");
        expect_near(values_of(got[1]), squares, 1e-5, "first");
        EXPECT_NEAR(values_of(got[2])[0], loss, 1e-5);
    }
}

/// A gradient that is NaN may be replaced: nothing of it is left.
TEST_P(Tapes, HooksMayDropWhatIsNoNumber) {
    const Tensor tw = leaf({Count}, random_values(Count, 1), "w"),
                 bad = of_values(backend_, {Count}, Values(Count, NAN), "bad"),
                 zero = of_values(backend_, {Count}, Values(Count, 0.0), "zero");
    for (const auto& got : both([&] {
             const Tensor y = nn::tanh(tw);
             y.on_gradient([&](const Tensor&) { return zero; });
             backward(total(add(times(y, bad), tw)));
             return std::vector{add(tw.grad(), zero)};
         }))
        EXPECT_EQ(values_of(got[0]), Values(Count, 1.0));
}

/// Doubled by the hook of y. What is made of them without a graph counts as constant, and grad() stays as it was.
TEST_P(Tapes, GradientsOfLeavesAndOfWhatIsComputed) {
    const Values w = random_values(Count, 1), x = random_values(Count, 2), o = random_values(Count, 3);
    const auto results = both([&] {
        const Tensor tw = leaf({Count}, w, "w"), tx = leaf({Count}, x, "x"), other = leaf({Count}, o, "other");
        const Tensor y = times(tw, tx);
        y.on_gradient([](const Tensor& g) { return add(g, g); });
        const Tensor loss = total(times(times(nn::tanh(y), y), other));
        const std::vector<Tensor> first = gradients(loss, {y, tw, loss}, {.retain = true});
        EXPECT_FALSE(tw.grad().defined() || first[1].requires_grad());
        const std::vector<Tensor> again = gradients(loss, {tw, other});
        EXPECT_ERROR(gradients(loss, {tw}), "gradients: the call that made 'total' has been released");
        backward(total(times(add(first[1], again[1]), tw)));
        EXPECT_FALSE(tx.grad().defined());
        return std::vector{first[0], first[1], first[2], again[0], again[1], tw.grad()};
    });
    for (const std::vector<Tensor>& got : results) {
        Values of_y, of_w, of_other, of_both;
        for (size_t e = 0; e < w.size(); ++e) {
            const double y = w[e] * x[e], z = std::tanh(y);
            of_y.push_back(2 * o[e] * (z + y * (1 - z * z)));
            of_w.push_back(of_y.back() * x[e]);
            of_other.push_back(z * y);
            of_both.push_back(of_w.back() + z * y);
        }
        const Values* expected[] = {&of_y, &of_w, nullptr, &of_w, &of_other, &of_both};
        for (size_t k = 0; k < got.size(); ++k)
            expect_near(values_of(got[k]), expected[k] ? *expected[k] : Values{1}, 1e-6, fmt::format("result {}", k));
    }
}

/// The penalty of a gradient (Gulrajani et al. 2017): what moves the weights goes through the gradient of x.
TEST_P(Tapes, GradientsMayBePartOfALoss) {
    constexpr int64_t Rows = 3, In = 4, Out = 5;
    Values x = random_values(Rows * In, 1), w = random_values(Out * In, 2), b = random_values(Out, 3);
    const Values goal = random_values(Rows * Out, 4), goal_of_dx = random_values(Rows * In, 5);
    const auto results = both([&] {
        const Tensor tx = leaf({Rows, In}, x, "x"), tw = leaf({Out, In}, w, "w"), tb = leaf({Out}, b, "b");
        const Tensor loss = mse_loss(nn::tanh(linear(tx, tw, tb)), of_values(backend_, {Rows, Out}, goal, "goal"));
        const Tensor dx = gradients(loss, {tx}, {.create_graph = true})[0];
        const Tensor whole = add(loss, mse_loss(dx, of_values(backend_, {Rows, In}, goal_of_dx, "goal_of_dx")));
        backward(whole);
        return std::vector{whole, dx, tx.grad(), tw.grad(), tb.grad()};
    });
    Values dx(x.size());
    const auto reference = [&] {
        double loss = 0, penalty = 0;
        dx.assign(x.size(), 0.0);
        for (int64_t i = 0; i < Rows; ++i)
            for (int64_t j = 0; j < Out; ++j) {
                double z = b[j];
                for (int64_t k = 0; k < In; ++k) z += x[i * In + k] * w[j * In + k];
                const double h = std::tanh(z), error = h - goal[i * Out + j];
                loss += error * error / (Rows * Out);
                for (int64_t k = 0; k < In; ++k)
                    dx[i * In + k] += 2 * error / (Rows * Out) * (1 - h * h) * w[j * In + k];
            }
        for (size_t e = 0; e < dx.size(); ++e) penalty += std::pow(dx[e] - goal_of_dx[e], 2) / (Rows * In);
        return loss + penalty;
    };
    for (const std::vector<Tensor>& got : results) {
        EXPECT_NEAR(values_of(got[0])[0], reference(), 1e-5);
        expect_near(values_of(got[1]), dx, 1e-5, "dx");
        expect_near(values_of(got[2]), slopes(x, reference), 3e-5, "x");
        expect_near(values_of(got[3]), slopes(w, reference), 3e-5, "w");
        expect_near(values_of(got[4]), slopes(b, reference), 3e-5, "b");
    }
}

/// x^4 three times, and a hook that doubles on the way of both of its gradients.
TEST_P(Tapes, GradientsOfGradientsOfGradients) {
    const Values x = random_values(Count, 1), c = random_values(Count, 2);
    const auto results = both([&] {
        const Tensor tx = leaf({Count}, x, "x"), square = times(tx, tx);
        const Tensor first = gradients(total(times(square, square)), {tx}, {.create_graph = true})[0];
        const Tensor second = gradients(total(first), {tx}, {.create_graph = true})[0];
        const Tensor third = gradients(total(second), {tx})[0];
        const Tensor tw = leaf({Count}, c, "c"), y = times(tw, tx);
        y.on_gradient([](const Tensor& g) { return add(g, g); });
        const Tensor of_w = gradients(total(times(times(y, y), y)), {tw}, {.create_graph = true})[0];
        backward(total(of_w));
        return std::vector{first, second, third, of_w, tw.grad()};
    });
    for (const std::vector<Tensor>& got : results) {
        Values expected[5];
        for (size_t e = 0; e < x.size(); ++e) {
            const double y = c[e] * x[e];
            const double now[] = {4 * std::pow(x[e], 3), 12 * x[e] * x[e], 24 * x[e], 6 * y * y * x[e],
                                  24 * y * x[e] * x[e]};
            for (size_t k = 0; k < 5; ++k) expected[k].push_back(now[k]);
        }
        for (size_t k = 0; k < 5; ++k) expect_near(values_of(got[k]), expected[k], 1e-5, fmt::format("result {}", k));
    }
}

/// d |dx - c|^2 / dx by differences of first gradients, which others have tested.
TEST_P(Tapes, SecondGradientsOfLayers) {
    using Network = std::function<Tensor(const Tensor&)>;
    Tensor labels(backend_, i32, {4}, "labels");
    labels.data().write(std::vector<int32_t>{0, 2, 1, 1});
    const MultiHeadAttention attention(backend_, 4, 2, 3, {.causal = true});
    const RMSNorm rms_norm(backend_, 4);
    const BatchNorm batch_norm(backend_, 4);
    const Conv1d convolution(backend_, 4, 4, {3}, 5, {.padding = {1}});
    const Tensor goal = of_values(backend_, {2, 2, 4}, random_values(16, 7), "goal");
    const auto towards_goal = [&](const auto& layer) {
        return [&](const Tensor& x) { return mse_loss(layer(x), goal); };
    };
    const std::pair<const char*, Network> networks[] = {
        {"cross entropy",
         [&](const Tensor& x) {
             return cross_entropy(gelu(reshape(x, {4, 4})), labels);
         }},
        {"attention", towards_goal(attention)},
        {"rms norm", towards_goal(rms_norm)},
        {"batch norm", towards_goal(batch_norm)},
        {"convolution", towards_goal([&](const Tensor& x) { return silu(convolution(x)); })}};
    const Values x = random_values(16, 1), c = random_values(16, 2);
    for (const auto& [name, network] : networks) {
        SCOPED_TRACE(name);
        const Tensor tc = of_values(backend_, {2, 2, 4}, c, "c");
        const auto first = [&, &network = network](const Values& values) {
            const Tensor tx = leaf({2, 2, 4}, values, "x");
            return values_of(gradients(network(tx), {tx})[0]);
        };
        const auto results = both([&, &network = network] {
            const Tensor tx = leaf({2, 2, 4}, x, "x");
            backward(mse_loss(gradients(network(tx), {tx}, {.create_graph = true})[0], tc));
            return std::vector{tx.grad()};
        });
        const Values dx = first(x);
        Values expected;
        for (size_t e = 0; e < x.size(); ++e) {
            constexpr double h = 1.0 / 128;
            Values up = x, down = x;
            up[e] += h;
            down[e] -= h;
            const Values above = first(up), below = first(down);
            expected.push_back(0);
            for (size_t k = 0; k < x.size(); ++k)
                expected.back() += 2 * (dx[k] - c[k]) / 16 * (above[k] - below[k]) / (2 * h);
        }
        for (const std::vector<Tensor>& got : results) expect_near(values_of(got[0]), expected, 5e-4, "second");
    }
}

/// Neither the way back nor the end of a tape takes a stack as deep as it is long. Nothing is run here.
TEST(TapesOfAnyLength, TakeNoDeeperStack) {
    constexpr size_t Calls = 300000;
    const auto backend = std::make_shared<Backend>(open_device("emulated"));
    const tw::Tensor number = input("number", f32, {});
    Tensor last(backend, number, "number"), other(backend, number, "other");
    last.set_requires_grad();
    for (size_t n = 0; n < Calls; ++n)
        last =
            OperatorState::link(Tensor(backend, number, "number"), std::make_shared<Node>(Node{{}, {last, other}, {}}));
    const std::vector<Tensor> order = Tape::behind(last, "backward", std::source_location::current());
    ASSERT_EQ(order.size(), Calls);
    EXPECT_TRUE(order.back().same(last));
    EXPECT_TRUE(order[Calls - 2].same(last.creator()->inputs[0]));
    EXPECT_EQ(Tape::leaves_of(order).size(), 1u);
}

TEST_P(Tapes, Refuse) {
    const Tensor tw = leaf({Count}, random_values(Count, 1), "w"), tx = leaf({Count}, random_values(Count, 2), "x"),
                 plain = of_values(backend_, {Count}, random_values(Count, 2), "plain");
    const auto keep = [](const Tensor& g) { return g; };
    EXPECT_ERROR(plain.on_gradient(keep), "on_gradient: 'plain' requires no gradient; register hooks of what has one");
    EXPECT_ERROR(tw.on_gradient({}), "on_gradient of 'w': the hook is no function");
    const Tensor loss = total(tw);
    EXPECT_ERROR(gradients(loss, {tw, tx}), "gradients: 'total' is not made of 'x' as a tensor that requires");
    EXPECT_ERROR(gradients(loss, {Tensor()}), "gradients: 'total' is not made of 'an undefined tensor'");
    EXPECT_ERROR(gradients(tw, {tw}), "gradients: the loss must be an f32 scalar, 'w' is f32 [37]; reduce it first");
    EXPECT_ERROR(gradients(total(plain), {plain}), "gradients: 'total' depends on no tensor that requires");
    const auto of = [&](const Step& step) { return compile(backend_, step); };
    EXPECT_ERROR(of([&] {
                     const Tensor y = times(tw, tx), read = total(y);
                     y.on_gradient(keep);
                     return std::vector{read};
                 }),
                 "on_gradient: 'times' is made by a step that is captured, and has been read there; register the hook");
    Tensor kept;
    of([&] { return std::vector{total(kept = times(tw, tx))}; });
    EXPECT_ERROR(kept.on_gradient(keep), "has been read there");
    tw.on_gradient([&](const Tensor&) { return loss; });
    EXPECT_ERROR(backward(loss),
                 "on_gradient of 'w': the hook returns f32 [], the gradient is f32 [37]; return one of");
    const Tensor y = times(plain, tx), next = total(y);
    y.on_gradient([](const Tensor&) { return Tensor(); });
    EXPECT_ERROR(backward(next), "on_gradient of 'times': the hook returns an undefined tensor, the gradient is f32");
}

}  // namespace
}  // namespace tw::nn
