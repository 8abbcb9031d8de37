// Checkpoints that are called by themselves: no tape is kept, what is made again has the same bits. Hooks that go.
#include <gmock/gmock.h>

#include "ops/checkpoint.h"
#include "ops/elementwise.h"
#include "ops/layers.h"
#include "ops/modules/dropout.h"
#include "ops/modules/sequential.h"
#include "ops/normalization.h"
#include "ops/reductions.h"
#include "ops/step/compile_step.h"
#include "ops/views.h"
#include "tests/ops/modules/slopes.h"
#include "tests/support/expect_error.h"
#include "tests/support/on_device.h"

namespace tw::nn {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t Rows = 8, Width = 6;

class MadeAgainTests : public OnDevice {
protected:
    void SetUp() override {
        OnDevice::SetUp();
        if (device_) backend_ = std::make_shared<Backend>(device_);
    }
    Tensor leaf(const std::vector<int64_t>& shape, uint64_t seed, const std::string& name) const {
        int64_t count = 1;
        for (int64_t extent : shape) count *= extent;
        return of_values(backend_, shape, random_values(count, seed), name).set_requires_grad();
    }
    std::shared_ptr<Backend> backend_;
};
TW_ON_EACH_DEVICE(MadeAgainTests);

/// Blocks of a layer, batch norm and dropout, with a residual.
struct Stack {
    ModuleList<Sequential> blocks;
    explicit Stack(const std::shared_ptr<Backend>& backend) {
        for (uint64_t k = 0; k < 3; ++k)
            blocks.push_back(Sequential{Linear(backend, Width, Width, k), BatchNorm(backend, Width), nn::tanh,
                                        Dropout(backend, 0.4, 10 + k)});
    }
    /// All values that a step leaves behind: gradients, running moments, numbers of calls; two steps.
    std::vector<Values> two_steps(const Tensor& x, const std::function<Tensor(const Sequential&, const Tensor&)>& call,
                                  const std::function<void(const Tensor& loss)>& back) const {
        std::vector<Values> found;
        for (int step = 0; step < 2; ++step) {
            Tensor h = x;
            for (const Sequential& block : blocks) h = h + call(block, h);
            back(mean(h * h));
            found.push_back(values_of(x.grad()));
            for (const auto& [name, tensor] : blocks.named_parameters()) found.push_back(values_of(tensor.grad()));
            for (const auto& [name, tensor] : blocks.named_buffers())
                found.push_back(tensor.type() == f32 ? values_of(tensor)
                                                     : Values{double(tensor.data().read<uint32_t>()[0])});
        }
        return found;
    }
};

TEST_P(MadeAgainTests, TheSameBitsAndNothingIsOverwrittenTwice) {
    const Tensor x = leaf({Rows, Width}, 1, "x");
    const auto plain = [](const Sequential& block, const Tensor& h) { return block(h); };
    const auto again = [](const Sequential& block, const Tensor& h) { return checkpoint(block, h); };
    const auto nested = [&](const Sequential& block, const Tensor& h) {
        return checkpoint([&](const Tensor& in) { return nn::tanh(checkpoint(block, in) * 2) * checkpoint(block, in); },
                          h);
    };
    const auto nested_plain = [&](const Sequential& block, const Tensor& h) {
        return nn::tanh(block(h) * 2) * block(h);
    };
    const auto back = [](const Tensor& loss) { backward(loss); };
    EXPECT_EQ(Stack(backend_).two_steps(x, again, back), Stack(backend_).two_steps(x, plain, back));
    EXPECT_EQ(Stack(backend_).two_steps(x, nested, back), Stack(backend_).two_steps(x, nested_plain, back));
    const auto retained = [](const Tensor& loss) {
        backward(loss, {.retain = true});
        backward(loss);
    };
    EXPECT_EQ(Stack(backend_).two_steps(x, again, retained), Stack(backend_).two_steps(x, plain, back));
}

/// Its node holds what the block reads, and of what is between nobody holds anything.
TEST_P(MadeAgainTests, KeepNoTape) {
    const Tensor x = leaf({Rows, Width}, 1, "x"), w = leaf({Width}, 2, "w"), outside = nn::tanh(x);
    std::weak_ptr<Node> between;
    const auto f = [&](const Tensor& in) {
        const Tensor y = in * w;
        between = y.creator();
        return nn::tanh(y) + outside;
    };
    const Tensor y = checkpoint(f, x);
    EXPECT_TRUE(between.expired());
    ASSERT_TRUE(y.creator());
    std::vector<std::string> read;
    for (const Tensor& each : y.creator()->inputs) read.push_back(each.name());
    EXPECT_THAT(read, testing::UnorderedElementsAre("x", "w", "tanh"));
    backward(sum(nn::pow(f(x), 2)), {.retain = true});
    const Values of_x = values_of(x.grad()), of_w = values_of(w.grad());
    const Tensor loss = sum(y * y);
    backward(loss);
    EXPECT_TRUE(between.expired());
    expect_near(values_of(x.grad()), of_x, 1e-6, "x");
    expect_near(values_of(w.grad()), of_w, 1e-6, "w");
    EXPECT_ERROR(backward(loss), "has been released by an earlier backward()");
    const NoGrad guard;
    EXPECT_FALSE(checkpoint(f, x).requires_grad());
}

/// Results that are made of each other, of nothing, twice the same one, and one that no loss needs: called again once.
TEST_P(MadeAgainTests, SeveralResults) {
    const Tensor x = leaf({Rows, Width}, 1, "x"), w = leaf({Width}, 2, "w");
    const Tensor outside = of_values(backend_, {Rows, Width}, random_values(Rows * Width, 3), "outside");
    int calls = 0;
    const auto f = [&](const std::vector<Tensor>& in) {
        ++calls;
        const Tensor h = nn::tanh(in[0] * w), last = sum(h * h * in[0], {0});
        const Tensor power = nn::exp(h);
        return std::vector{last, h, outside, power, power};
    };
    std::vector<std::vector<Values>> found;
    Tensor seen;
    for (bool is_again : {false, true}) {
        const std::vector<Tensor> y = is_again ? checkpoint(f, {x}) : f({x});
        ASSERT_EQ(y.size(), 5u);
        EXPECT_TRUE(y[2].same(outside));
        const Tensor between = y[1] * y[2];
        y[1].on_gradient([&](const Tensor& gradient) { return seen = gradient; });
        const Tensor loss = sum(between * y[4] * y[3]) + sum(y[0] * w);
        found.push_back({});
        for (const Tensor& of : gradients(loss, {x, w, y[0]}, {.retain = true})) found.back().push_back(values_of(of));
        const int before = calls;
        backward(loss);
        EXPECT_EQ(calls, before + is_again);
        for (const Tensor& of : {x.grad(), w.grad()}) found.back().push_back(values_of(of));
        if (is_again) expect_near(values_of(seen), values_of(outside * y[4] * y[4]), 1e-6, "what the hook has seen");
    }
    for (size_t k = 0; k < found[0].size(); ++k) expect_near(found[1][k], found[0][k], 1e-5, fmt::format("{}", k));

    const auto of_one = [&](const Tensor& in) { return f({in}); };
    const Tensor last = checkpoint(of_one, x)[0];  // all others are gone
    std::vector<Values> alone;
    for (const Tensor& result : {last, f({x})[0]}) {
        backward(sum(result));
        alone.push_back(values_of(x.grad()));
    }
    expect_near(alone[0], alone[1], 1e-5, "of one");
    const std::vector<Tensor> y = checkpoint(of_one, x);
    const Tensor first = sum(y[3]), second = sum(y[0]);
    backward(first);
    backward(second);  // its own way is there
    expect_near(values_of(x.grad()), alone[1], 1e-5, "of the second");
    EXPECT_ERROR(checkpoint([](const std::vector<Tensor>&) { return std::vector<Tensor>(); }, {x}),
                 "checkpoint: the function returns no tensors; return its results");
}

TEST_P(MadeAgainTests, SeveralResultsInACompiledStep) {
    const Tensor x = leaf({Rows, Width}, 1, "x"), w = leaf({Width}, 2, "w");
    std::vector<std::vector<Values>> found;
    for (bool is_again : {false, true}) {
        const CompiledStep step = compile(backend_, [&] {
            const auto f = [&](const Tensor& in) {
                const Tensor h = nn::tanh(in * w);
                return std::vector{nn::tanh(h * h), nn::exp(h) * in};
            };
            const std::vector<Tensor> y = is_again ? checkpoint(f, x) : f(x);
            const Tensor loss = sum(matmul(y[0], transpose(y[1], 0, 1)));
            backward(loss);
            return std::vector{loss, x.grad(), w.grad()};
        });
        step.run();
        found.push_back({});
        for (const Tensor& result : step.results()) found.back().push_back(values_of(result));
    }
    EXPECT_EQ(found[0], found[1]);
}

/// What requires no gradient and what nothing reads has none; the input itself may be the result.
TEST_P(MadeAgainTests, OfInputsThatItMayLeaveAlone) {
    const Tensor x = leaf({Rows}, 1, "x"), unread = leaf({Rows}, 2, "unread"),
                 plain = of_values(backend_, {Rows}, random_values(Rows, 3), "plain");
    const Tensor y = checkpoint([](const std::vector<Tensor>& in) { return in[0] * in[2]; }, {x, unread, plain});
    backward(sum(y));
    EXPECT_EQ(values_of(x.grad()), values_of(plain));
    EXPECT_FALSE(unread.grad().defined());
    EXPECT_TRUE(checkpoint([](const Tensor& in) { return in; }, x).same(x));
    EXPECT_FALSE(checkpoint([](const Tensor& in) { return in * in; }, plain).requires_grad());
}

TEST_P(MadeAgainTests, ByGradientsAndTwice) {
    const Tensor x = leaf({Rows}, 1, "x"), w = leaf({Rows}, 2, "w");
    const auto cube = [&](const Tensor& in) { return in * in * in * w; };
    const auto of = [&](const std::function<Tensor(const Tensor&)>& f) {
        const Tensor h = nn::tanh(x), y = f(h);
        const std::vector<Tensor> first = gradients(sum(y), {h, x}, {.create_graph = true});
        backward(sum(first[0] * first[1]));
        return std::vector{values_of(first[0]), values_of(first[1]), values_of(x.grad()), values_of(w.grad()),
                           values_of(gradients(sum(f(x)), {x})[0])};
    };
    EXPECT_EQ(of([&](const Tensor& in) { return checkpoint(cube, in); }), of(cube));
}

// Of chains, whatever is asked for: what is made again for one part has no place where that of another one was.
TEST_P(MadeAgainTests, ByGradientsThroughSeveral) {
    for (int64_t depth = 2; depth < 6; ++depth) {
        std::vector<Tensor> asked{leaf({Rows, Width}, 1, "x")};
        for (int64_t k = 0; k < depth; ++k) asked.push_back(leaf({Width, Width}, 2 + static_cast<uint64_t>(k), "w"));
        const auto of = [&](bool is_again, bool create_graph) {
            Tensor h = asked[0];
            for (size_t k = 1; k < asked.size(); ++k) {
                const auto block = [w = asked[k]](const Tensor& in) { return nn::tanh(matmul(in, w)); };
                h = is_again ? checkpoint(block, h) : block(h);
            }
            std::vector<Values> found;
            for (const Tensor& each : gradients(sum(h * h), asked, {.create_graph = create_graph}))
                found.push_back(values_of(each));
            return found;
        };
        for (bool create_graph : {false, true}) EXPECT_EQ(of(true, create_graph), of(false, create_graph)) << depth;
    }
}

TEST_P(MadeAgainTests, InARecordedStep) {
    const auto trained = [&](bool is_again) {
        const Tensor x = leaf({Rows, Width}, 1, "x");
        const Sequential block{Linear(backend_, Width, Width, 1), nn::tanh, Dropout(backend_, 0.5, 3)};
        Tensor gradient;
        const Graph graph = backend_->record([&] {
            backward(sum(nn::pow(is_again ? checkpoint(block, x) : block(x), 2)));
            gradient = x.grad();
        });
        std::vector<Values> found;
        for (int run = 0; run < 3; ++run) {
            graph.run();
            found.push_back(values_of(gradient));
        }
        EXPECT_NE(found[0], found[1]);
        return found;
    };
    EXPECT_EQ(trained(true), trained(false));
}

TEST_P(MadeAgainTests, HooksInsideAreCalledOnce) {
    const Tensor x = leaf({Rows}, 1, "x");
    int inside = 0, outside = 0;
    const Tensor y = checkpoint(
        [&](const Tensor& in) {
            const Tensor made = in * in;
            made.on_gradient([&](const Tensor& g) {
                ++inside;
                return g * 2;
            });
            return made;
        },
        x);
    y.on_gradient([&](const Tensor& g) {
        ++outside;
        return g * 3;
    });
    backward(sum(y));
    Values expected;
    for (double value : values_of(x)) expected.push_back(12 * value);
    expect_near(values_of(x.grad()), expected, 1e-6, "x");
    EXPECT_EQ(inside, 1);
    EXPECT_EQ(outside, 1);
}

// Of tensors that were there before, too, although the function is called twice.
TEST_P(MadeAgainTests, HooksOfWhatIsReadActOnce) {
    const auto of = [&](bool is_again) {
        const Tensor x = leaf({Rows}, 1, "x"), w = leaf({Rows}, 2, "w"), h = nn::tanh(x);
        const auto f = [&](const Tensor& in) {
            in.on_gradient([](const Tensor& g) { return g * 3; });
            w.on_gradient([](const Tensor& g) { return g * 0.5; });
            return in * w;
        };
        backward(sum(is_again ? checkpoint(f, h) : f(h)));
        return std::vector{values_of(x.grad()), values_of(w.grad())};
    };
    EXPECT_EQ(of(true), of(false));
}

TEST_P(MadeAgainTests, RefuseOtherSecondCalls) {
    const Tensor x = leaf({Rows}, 1, "x"), w = leaf({Rows}, 2, "w");
    int calls = 0;
    const auto differing = [&](const std::function<Tensor(const Tensor&)>& second) {
        calls = 0;
        const Tensor y = checkpoint([&](const Tensor& in) { return ++calls == 1 ? in * in : second(in); }, x);
        backward(sum(y));
    };
    const std::string text =
        "checkpoint: called again by backward(), the function makes another tensor than 'multiply' [8], or makes it";
    EXPECT_ERROR(differing([&](const Tensor& in) { return in * w; }), text);
    EXPECT_ERROR(differing([&](const Tensor&) { return w * w; }), text);
    EXPECT_ERROR(differing([&](const Tensor& in) { return sum(in); }), text);
    EXPECT_ERROR(differing([&](const Tensor& in) { return in; }), text);
    const Dropout dropout(backend_, 0.5, 1);
    EXPECT_ERROR(differing([&](const Tensor& in) { return dropout(in); }),
                 "checkpoint: called again by the backward pass, the function overwrites tensors more often than");
    differing([&](const Tensor& in) { return in * in; });
}

/// As by calls: what was frozen behind them has no gradient, and all else has its own.
TEST_P(MadeAgainTests, FreezingBehindTheCall) {
    const auto of = [&](bool is_again, const std::vector<size_t>& frozen) {
        const Tensor a = leaf({Rows}, 1, "a"), b = leaf({Rows}, 2, "b"), c = leaf({Rows}, 3, "c");
        int calls = 0;
        const auto f = [&](const std::vector<Tensor>& in) {
            ++calls;
            return std::vector{nn::tanh(in[0] * in[0]), in[0] * in[1] * c, in[1] * in[1]};
        };
        const std::vector<Tensor> made = is_again ? checkpoint(f, {a, b}) : f({a, b});
        const Tensor d = leaf({Rows}, 4, "d"), loss = sum(made[0] * made[1] + made[2] * d);
        const std::vector<Tensor> leaves{a, b, c, d};
        for (const size_t each : frozen) leaves[each].set_requires_grad(false);
        backward(loss);
        EXPECT_EQ(calls, is_again && frozen.size() < 3 ? 2 : 1);
        std::vector<Values> found;
        for (const Tensor& each : leaves) found.push_back(each.grad().defined() ? values_of(each.grad()) : Values{});
        return found;
    };
    for (const std::vector<size_t>& frozen :
         {std::vector<size_t>{}, {0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}, {0, 1, 2}}) {
        const std::vector<Values> expected = of(false, frozen);
        for (size_t k = 0; k < 4; ++k)
            EXPECT_EQ(expected[k].empty(), std::ranges::find(frozen, k) != frozen.end()) << k;
        EXPECT_EQ(of(true, frozen), expected);
    }
    const Tensor x = leaf({Rows}, 1, "x"), w = leaf({Rows}, 2, "w");
    w.set_requires_grad(false);
    const Tensor y = sum(checkpoint([&](const Tensor& in) { return in * w; }, x));
    w.set_requires_grad();
    EXPECT_ERROR(backward(y),
                 "makes it of others that require gradients; let it do the same in each call, and thaw tensors before "
                 "the first");
}

TEST_P(MadeAgainTests, HooksMayBeRemoved) {
    const Tensor x = leaf({Rows}, 1, "x");
    std::vector<std::string> order;
    const auto noted = [&](const std::string& name) {
        return [&order, name](const Tensor& g) {
            order.push_back(name);
            return g * 2;
        };
    };
    const auto step = [&] {
        const Tensor y = x * x;
        y.on_gradient(noted("of y")).remove();
        backward(sum(y));
        return std::vector{x.grad() + 0};
    };
    const auto both = [&](double factor) {
        Values expected;
        for (double value : values_of(x)) expected.push_back(factor * 2 * value);
        expect_near(values_of(step()[0]), expected, 1e-6, "called");
        const CompiledStep compiled = compile(backend_, step);
        compiled.run();
        expect_near(values_of(compiled.results()[0]), expected, 1e-6, "captured");
        return std::exchange(order, {});
    };
    const HookHandle first = x.on_gradient(noted("first")), second = x.on_gradient(noted("second"));
    HookHandle third;
    third = x.on_gradient([&](const Tensor& g) {
        third.remove();
        order.push_back("removes itself");
        return g;
    });
    EXPECT_THAT(both(4), ElementsAre("first", "second", "removes itself", "first", "second"));
    first.remove();
    first.remove();
    EXPECT_THAT(both(2), ElementsAre("second", "second"));
    second.remove();
    EXPECT_THAT(both(1), IsEmpty());
    HookHandle().remove();
    const HookHandle gone = leaf({1}, 1, "gone").on_gradient(noted("gone"));
    gone.remove();
}

}  // namespace
}  // namespace tw::nn
