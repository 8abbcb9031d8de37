// Functions with gradients of their own, by calls, recorded and in a step as one graph, against plain loops.
#include <random>

#include <gmock/gmock.h>

#include "ops/checkpoint.h"
#include "ops/comparisons.h"
#include "ops/function.h"
#include "ops/layers.h"
#include "ops/optimizer.h"
#include "ops/tape/tape.h"
#include "ops/views.h"
#include "tests/ops/tape_arrays.h"
#include "tests/support/expect_error.h"

namespace tw::nn {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using Tensors = std::vector<Tensor>;

class Functions : public OnTapeTests {
protected:
    Tensor leaf_of(const Dims& shape, uint64_t seed, const std::string& name) const {
        return of_values(backend_, shape, random_values(count_of(shape), seed), name).set_requires_grad();
    }
    /// By calls, recorded, and as one graph.
    std::vector<Tensors> each_way(const std::function<Tensors()>& step) const {
        std::vector<Tensors> found{step()};
        Tensors recorded;
        backend_->record([&] { recorded = step(); }).run();
        found.push_back(recorded);
        const CompiledStep compiled = compile(backend_, step);
        EXPECT_THAT(faults_of(compiled.plan()), IsEmpty());
        compiled.run();
        found.push_back(compiled.results());
        return found;
    }
};
TW_ON_EACH_DEVICE(Functions);

/// x^3, from the square that forward makes on the way.
const Function& cube() {
    static const Function function(
        "cube",
        [](FunctionContext& context, const Tensors& in) {
            const Tensor square = in[0] * in[0];
            context.save({square});
            return Tensors{square * in[0]};
        },
        [](const FunctionContext& context, const Tensors& dy) { return Tensors{3 * context.saved()[0] * dy[0]}; });
    return function;
}

/// tanh(x w) from its result, and the sum of x along its last dimension: results of two shapes.
const Function& tanh_and_sum() {
    static const Function function(
        "tanh_and_sum",
        [](FunctionContext& context, const Tensors& in) {
            const Tensor y = nn::tanh(in[0] * in[1]);
            context.save({in[1], y, in[0]});
            return Tensors{y, nn::sum(in[0], {-1})};
        },
        [](const FunctionContext& context, const Tensors& d) {
            const Tensor &w = context.saved()[0], &y = context.saved()[1], &x = context.saved()[2];
            const Tensor inner = d[0] * (1 - y * y), of_sum = broadcast_to(unsqueeze(d[1], -1), x.shape());
            Tensor dw = inner * x;
            while (dw.shape().size() > w.shape().size()) dw = nn::sum(dw, {0});
            return Tensors{inner * w + of_sum, dw};
        });
    return function;
}

/// One of its inputs as it is, twice; its gradient goes to both inputs.
const Function& both_ways() {
    static const Function function(
        "both_ways",
        [](FunctionContext&, const Tensors& in) {
            return Tensors{in[0], in[0]};
        },
        [](const FunctionContext&, const Tensors& d) {
            const Tensor all = d[0] + d[1];
            return Tensors{all, all};
        });
    return function;
}

Dims random_dims(std::mt19937_64& random) {
    Dims shape(1 + random() % 3);
    for (int64_t& extent : shape) extent = 1 + static_cast<int64_t>(random() % 5);
    return shape;
}

/// Results are used, each or one of them, by other functions, twice, or through views.
TEST_P(Functions, HaveTheGradientsOfWhatTheyCompute) {
    const uint64_t seed = std::random_device{}();
    for (uint64_t number = 0; number < 3; ++number) {
        SCOPED_TRACE(fmt::format("case {} of seed {}", number, seed));
        std::mt19937_64 random(seed + number);
        const Dims shape = random_dims(random), last(1, shape.back());
        const bool needs_sum = random() % 2 != 0, needs_tanh = !needs_sum || random() % 2 != 0,
                   again = random() % 2 != 0;
        const auto on_tape = [=](const Tensors& in) {
            const Tensors made = tanh_and_sum()({cube()({in[0]})[0], in[1]});
            Tensor y = in[0] * 0.5;
            if (needs_tanh) y = y + (again ? cube()({made[0]})[0] * made[0] : made[0]);
            if (needs_sum) y = y + unsqueeze(made[1], -1);
            return y;
        };
        const Plain plain = [=](const std::vector<Array>& in) {
            return array(shape, [&](const Dims& at) {
                const double x = in[0](at), t = std::tanh(x * x * x * in[1](at));
                double y = 0.5 * x + (needs_tanh ? (again ? t * t * t * t : t) : 0);
                Dims other = at;
                for (int64_t k = 0; needs_sum && k < shape.back(); ++k) {
                    other.back() = k;
                    y += std::pow(in[0](other), 3);
                }
                return y;
            });
        };
        expect_like(on_tape, plain, {shape, random() % 2 ? shape : last});
    }
}

/// Of a tensor that is also used elsewhere: nothing is added to memory that somebody else may hold.
TEST_P(Functions, ShareNoGradients) {
    const Tensor x = leaf_of({5}, 1, "x"), w = leaf_of({5}, 2, "w"), z = leaf_of({5}, 3, "z");
    for (const Tensors& got : each_way([&] {
             const Tensors y = both_ways()({x, w});
             backward(nn::sum(x * z + w * z + (y[0] * z + y[1] * z)));  // goes back through y first
             return Tensors{x.grad(), w.grad(), z.grad()};
         })) {
        Values x_values = values_of(x), z_values = values_of(z), of_x, of_z;
        for (size_t e = 0; e < 5; ++e) {
            of_x.push_back(3 * z_values[e]);
            of_z.push_back(3 * x_values[e] + values_of(w)[e]);
        }
        expect_near(values_of(got[0]), of_x, 1e-6, "d_x");
        expect_near(values_of(got[1]), of_x, 1e-6, "d_w");
        expect_near(values_of(got[2]), of_z, 1e-6, "d_z");
    }
    // A scalar result is a loss itself, whose gradient is nobody's.
    const Tensor s = leaf_of({}, 4, "s"), t = leaf_of({}, 5, "t");
    backward(both_ways()({s, t})[0]);
    const Tensor& one = s.grad();
    one.copy_from_host(t.to_host());
    backward(both_ways()({s, t})[0]);
    EXPECT_EQ(values_of(s.grad()), Values{1});
}

/// What backward says counts, not what forward computes: kinks let through, inputs without a gradient, results that no
/// loss needs, other types.
TEST_P(Functions, AreAsTheyAreDeclared) {
    std::vector<std::vector<bool>> needs;
    const Function sign_and_place(
        "sign_and_place",
        [&](FunctionContext& context, const Tensors& in) {
            context.save({in[2]});
            return Tensors{nn::sign(in[0]) + in[1], cast(in[0] > 0, i32), in[0] * 7};
        },
        [&](const FunctionContext& context, const Tensors& d) {
            needs.push_back({context.needs_gradient(0), context.needs_gradient(1), context.needs_gradient(2)});
            EXPECT_FALSE(d[1].defined() || grad_enabled());
            EXPECT_EQ(d[2].shape(), context.saved()[0].shape());
            EXPECT_EQ(d[2].type(), bf16);
            return Tensors{d[0] * context.saved()[0] + d[2], Tensor(), Tensor()};
        });
    const Tensor x = leaf_of({3, 4}, 1, "x"), w = leaf_of({3, 4}, 2, "w"),
                 c = of_values(backend_, {3, 4}, random_values(12, 3), "c");
    for (const Tensors& got : each_way([&] {
             const Tensor x16 = cast(x, bf16), w16 = cast(w, bf16);
             const Tensors y = sign_and_place({x16, w16, cast(c, bf16)});
             EXPECT_TRUE(y[0].requires_grad() && !y[1].requires_grad() && y[2].requires_grad());
             backward(nn::sum(cast(y[0], f32) * 2));
             return Tensors{x.grad(), w.grad(), cast(y[1], f32)};
         })) {
        Values c16 = values_of(cast(cast(c, bf16), f32)), places;
        for (double& value : c16) value *= 2;
        for (const double value : values_of(x)) places.push_back(value > 0);
        EXPECT_EQ(values_of(got[0]), c16);
        EXPECT_EQ(values_of(got[1]), Values(12, 0));
        EXPECT_EQ(values_of(got[2]), places);
    }
    EXPECT_THAT(needs, testing::Each(ElementsAre(true, true, false)));
    const NoGrad guard;
    EXPECT_FALSE(cube()({x})[0].requires_grad());
}

/// Twice down the same way, by what backward calls: of x^3 from its input and its result.
TEST_P(Functions, HaveGradientsOfGradients) {
    const Function cube_by_result(
        "cube_by_result",
        [](FunctionContext& context, const Tensors& in) {
            const Tensor y = in[0] * in[0] * in[0];
            context.save({in[0], y});
            return Tensors{y};
        },
        [](const FunctionContext& context, const Tensors& dy) {
            return Tensors{3 * context.saved()[1] / context.saved()[0] * dy[0]};
        });
    const Tensor x = leaf_of({4, 3}, 1, "x");
    for (const Tensors& got : each_way([&] {
             const Tensor first = gradients(nn::sum(cube_by_result({x})[0]), {x}, {.create_graph = true})[0];
             const Tensor second = gradients(nn::sum(first * first), {x}, {.create_graph = true})[0];
             backward(nn::sum(second));
             return Tensors{first, second, x.grad()};
         })) {
        Values first, second, third;
        for (const double value : values_of(x)) {
            first.push_back(3 * value * value);
            second.push_back(36 * std::pow(value, 3));  // of 9 x^4
            third.push_back(108 * value * value);
        }
        expect_near(values_of(got[0]), first, 1e-5, "first");
        expect_near(values_of(got[1]), second, 1e-5, "second");
        expect_near(values_of(got[2]), third, 1e-5, "third");
    }
    const auto refused = [&] { gradients(nn::sum(cube()({x})[0]), {x}, {.create_graph = true}); };
    const char* why =
        "cube: gradients of its gradients would need that of 'multiply' f32 [4, 3], which forward saved, "
        "and which is neither an input nor a result; return it as another result, or make it anew";
    EXPECT_ERROR(refused(), why);
    EXPECT_ERROR(compile(backend_, [&] { return refused(), Tensors{x + 1}; }), why);
}

TEST_P(Functions, RunForwardOnceAndLeaveNothingBehind) {
    int calls = 0;
    const Function counted(
        "counted",
        [&](FunctionContext& context, const Tensors& in) {
            ++calls;
            const Tensor y = nn::exp(in[0]);
            context.save({in[0], y});
            return Tensors{y};
        },
        [&](const FunctionContext& context, const Tensors& dy) { return Tensors{dy[0] * context.saved()[1]}; });
    const Tensor x = leaf_of({6}, 1, "x");
    std::vector<std::string> hooked;
    std::weak_ptr<Node> node, released;
    for (const Tensors& got : each_way([&] {
             const Tensor y = counted({x})[0];
             y.on_gradient([&](const Tensor& d) {
                 hooked.push_back(d.name());
                 return d * 2;
             });
             node = y.creator();
             backward(nn::sum(y));
             return Tensors{x.grad()};
         })) {
        Values expected;
        for (const double value : values_of(x)) expected.push_back(2 * std::exp(value));
        expect_near(values_of(got[0]), expected, 1e-6, "d_x");
    }
    EXPECT_EQ(calls, 3);
    EXPECT_EQ(hooked.size(), 3u);
    {
        const Tensor y = counted({counted({x})[0]})[0];
        node = y.creator();
        released = y.creator()->inputs[0].creator();
    }
    EXPECT_TRUE(node.expired() && released.expired());
    Buffer memory;
    {
        const Tensor w = leaf_of({6}, 2, "w");
        memory = w.data();
        compile(backend_, [&] {
            backward(nn::sum(counted({counted({w})[0] * w})[0]), {.retain = true});
            return Tensors{w + 1};
        }).run();
    }
    EXPECT_FALSE(memory.shared()) << "the graph of a step holds what its gradients are of";
    calls = 0;
    const Tensor loss = nn::sum(checkpoint([&](const Tensor& in) { return counted({in})[0]; }, x));
    backward(loss);
    EXPECT_EQ(calls, 2);
    expect_near(values_of(x.grad()), values_of(nn::exp(x)), 1e-6, "d_x");
    // A retained tape goes once more; a frozen input gets nothing.
    const Tensor kept = nn::sum(counted({x})[0]);
    backward(kept, {.retain = true});
    x.set_requires_grad(false).set_requires_grad();
    backward(kept);
    expect_near(values_of(x.grad()), values_of(nn::exp(x)), 1e-6, "d_x");
    EXPECT_ERROR(backward(kept), "backward: the call that made 'sum' has been released by an earlier backward()");
}

/// Training with one, by calls and compiled: the same parameters behind some steps.
TEST_P(Functions, Train) {
    std::vector<Values> found;
    for (const bool compiled : {false, true}) {
        const Tensor w = leaf_of({4}, 1, "w"), x = of_values(backend_, {8, 4}, random_values(32, 2), "x");
        Sgd sgd({w}, 0.1, 0.9);
        const auto step = [&] {
            const Tensors y = tanh_and_sum()({x, w});
            const Tensor loss = nn::mean(y[0] * y[0]) + nn::mean(y[1]);
            backward(loss);
            sgd.step();
            return Tensors{loss};
        };
        if (compiled) {
            const CompiledStep graph = compile(backend_, step);
            for (int n = 0; n < 3; ++n) graph.run();
        } else {
            for (int n = 0; n < 3; ++n) step();
        }
        found.push_back(values_of(w));
    }
    expect_near(found[1], found[0], 1e-5, "w");
}

/// What requires a gradient is an input: of anything else that forward reads or returns backward says nothing.
TEST_P(Functions, ReadNothingElseThatRequiresAGradient) {
    const Tensor x = leaf_of({2, 4}, 1, "x"), w = leaf_of({4}, 2, "w"),
                 data = of_values(backend_, {2, 4}, random_values(8, 3), "data");
    const Linear linear(backend_, 4, 4, 5);
    const auto reading = [](const std::function<Tensor(const Tensor&)>& f) {
        return Function(
            "own", [=](FunctionContext&, const Tensors& in) { return Tensors{f(in[0])}; },
            [](const FunctionContext&, const Tensors& dy) {
                return Tensors{dy[0], Tensor()};
            });
    };
    const auto refused = [&](const std::function<Tensor(const Tensor&)>& f, const std::string& what) {
        const std::string why = "own: forward uses " + what +
                                ", which requires a gradient and is none of the inputs, so that it would get none; "
                                "give it as another input";
        for (const Tensor& in : {x, data}) {
            const auto call = [&] { return reading(f)({in}); };
            EXPECT_ERROR(call(), why);
            EXPECT_ERROR(backend_->record([&] { call(); }), why);
            EXPECT_ERROR(compile(backend_, call), why);
            EXPECT_ERROR(checkpoint([&](const Tensor& y) { return reading(f)({y})[0]; }, in), why);
        }
    };
    refused([&](const Tensor& in) { return in * w; }, "'w' f32 [4]");
    refused([&](const Tensor&) { return w; }, "'w' f32 [4]");
    refused([&](const Tensor&) { return reshape(w, {2, 2}); }, "'w' f32 [4]");
    refused([&](const Tensor& in) { return linear(in); }, "'weight' f32 [4, 4]");
    refused([&](const Tensor& in) { return reading([&](const Tensor& y) { return y + w; })({in})[0]; }, "'w' f32 [4]");
    refused([&, on_tape = x * x](const Tensor& in) { return in + on_tape; }, "'multiply' f32 [2, 4]");
    // Constants, inputs, and all that is asked for under NoGrad.
    const auto constant = [&] {
        const NoGrad guard;
        return nn::clone(w);
    }();
    for (const Tensors& got : each_way([&] {
             const Tensor y = reading([&](const Tensor&in) { return in * w; })({x, w})[0],
                          z = reading([&](const Tensor&in) { return in * constant + data; })({x})[0];
             const NoGrad guard;
             return Tensors{y, z, reading([&](const Tensor& in) { return in * w + data; })({x})[0]};
         })) {
        EXPECT_EQ(values_of(got[0]), values_of(x * w));
        EXPECT_EQ(values_of(got[1]), values_of(x * w + data));
        EXPECT_EQ(values_of(got[2]), values_of(got[1]));
    }
}

TEST_P(Functions, RefuseWhatDoesNotFit) {
    const Tensor x = leaf_of({2, 3}, 1, "x"), w = leaf_of({3}, 2, "w");
    const auto like = [](const std::function<Tensors(const Tensors&)>& forward, const std::function<Tensors()>& back) {
        return Function(
            "own", [=](FunctionContext&, const Tensors& in) { return forward(in); },
            [=](const FunctionContext&, const Tensors&) { return back(); });
    };
    const auto product = [](const Tensors& in) { return Tensors{in[0] * in[1]}; };
    const auto expect_refused = [&](const std::function<Tensors()>& back, const char* why) {
        const Function own = like(product, back);
        const auto step = [&] {
            const Tensor loss = nn::sum(own({x, w})[0]);
            backward(loss);
            return Tensors{loss};
        };
        EXPECT_ERROR(step(), why);
        EXPECT_ERROR(compile(backend_, step), why);
    };
    expect_refused([&] { return Tensors{x}; },
                   "own: backward returns 1 gradients for 2 inputs; return one for each, in their order, an undefined");
    expect_refused(
        [&] {
            return Tensors{x, x};
        },
        "own: backward returns f32 [2, 3] as the gradient of input 1, 'w', which is f32 [3]; return one");
    expect_refused(
        [&] {
            return Tensors{cast(x, bf16), w};
        },
        "own: backward returns bf16 [2, 3] as the gradient of input 0, 'x', which is f32 [2, 3]; return");
    const auto other = std::make_shared<Backend>(device_);
    const Tensor elsewhere = of_values(other, {2, 3}, random_values(6, 3), "elsewhere");
    const Function strays = like(product, [&] { return Tensors{elsewhere, Tensor()}; });
    EXPECT_ERROR(backward(nn::sum(strays({x, w})[0])),
                 "own: backward returns a tensor of another backend as the gradient of 'x'; make both with one");
    const auto forward = [&](const std::function<Tensors(const Tensors&)>& f) {
        return like(f, [] { return Tensors{}; });
    };
    EXPECT_ERROR(forward(product)({}), "own: no inputs; name the tensors that the function is of");
    EXPECT_ERROR(forward(product)({x, Tensor()}), "own: an input is an undefined tensor; give what has been made");
    EXPECT_ERROR(forward(product)({x, elsewhere}), "own: 'x' and 'elsewhere' are of different backends; make both");
    EXPECT_ERROR(forward([](const Tensors&) { return Tensors{}; })({x}), "own: forward returns no tensors; return its");
    EXPECT_ERROR(forward([](const Tensors&) { return Tensors{Tensor()}; })({x}),
                 "own: forward returns an undefined tensor; return its results");
    EXPECT_ERROR(forward([&](const Tensors&) { return Tensors{elsewhere}; })({x}),
                 "own: forward returns 'elsewhere', of another backend than 'x'; make both with one");
    FunctionContext context;
    EXPECT_ERROR(context.save({x, Tensor()}), "save: an undefined tensor; save what has been made");
    context.save({x, w});
    EXPECT_ERROR(context.save({x}), "save: called again, which would replace the 2 tensors that were saved; save all");
    EXPECT_ERROR(context.needs_gradient(0), "needs_gradient(0): the function was called with 0 inputs, counted from 0");
    const Function asks_of_a_third(
        "asks",
        [](FunctionContext& own, const Tensors& in) { return own.needs_gradient(2) ? Tensors{in[0]} : Tensors{in[1]}; },
        [](const FunctionContext&, const Tensors& dy) {
            return Tensors{dy[0], Tensor()};
        });
    EXPECT_ERROR(asks_of_a_third({x, w}), "needs_gradient(2): the function was called with 2 inputs, counted from 0");
    EXPECT_ERROR(Function("own", {}, {}), "own: forward is no function; give one of the context and of tensors");
}

}  // namespace
}  // namespace tw::nn
