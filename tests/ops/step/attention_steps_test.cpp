// Attention between layers: called, captured, and as kernels of its own where it has 16 bits.
#include "ops/attention.h"

#include <random>

#include <gmock/gmock.h>

#include "dsl/differentiate.h"
#include "ops/layers.h"
#include "ops/optimizer.h"
#include "ops/parameters.h"
#include "ops/step/compile_step.h"
#include "ops/views.h"
#include "tests/ops/on_each_device.h"
#include "tests/support/expect_error.h"

namespace tw::nn {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

struct Sizes {
    int64_t batch, rows, keys, heads, group, depth, width;
    bool causal;
};

/// The mean squared error of attention, as its formula says, and what its gradients are by differentiation alone, in
/// float64.
std::vector<HostArray> formula(const Sizes& of, const std::vector<HostArray>& data) {
    const int64_t of_keys = of.heads / of.group;
    const tw::Tensor q = input("q", f64, {of.batch, of.rows, of.heads, of.depth}),
                     k = input("k", f64, {of.batch, of.keys, of_keys, of.depth}),
                     v = input("v", f64, {of.batch, of.keys, of_keys, of.width}),
                     goal = input("goal", f64, {of.batch, of.rows, of.heads, of.width});
    const Axis d = reduce_axis("d", of.depth), j = reduce_axis("j", of.keys);
    const tw::Tensor weight =
        compute("weight", {of.batch, of.heads, of.rows, of.keys}, [&](Expr b, Expr h, Expr i, Expr n) {
            const Expr w = exp(sum(q(b, i, h, d) * k(b, n, h / of.group, d), d) / std::sqrt(double(of.depth)));
            return of.causal ? select(n <= i + (of.keys - of.rows), w, 0.0) : w;
        });
    const tw::Tensor total = compute("total", {of.batch, of.heads, of.rows},
                                     [&](Expr b, Expr h, Expr i) { return sum(weight(b, h, i, j), j); });
    const tw::Tensor o = compute("o", {of.batch, of.rows, of.heads, of.width}, [&](Expr b, Expr i, Expr h, Expr e) {
        return sum(weight(b, h, i, j) * v(b, j, h / of.group, e), j) / total(b, h, i);
    });
    const Axis b = reduce_axis("b", of.batch), i = reduce_axis("i", of.rows), h = reduce_axis("h", of.heads),
               e = reduce_axis("e", of.width);
    const tw::Tensor loss = compute("loss", {}, [&](const std::vector<Expr>&) {
        const Expr error = o(b, i, h, e) - goal(b, i, h, e);
        return sum(error * error, {b, i, h, e}) / double(of.batch * of.rows * of.heads * of.width);
    });
    const tw::Tensor one = compute("one", {}, [](const std::vector<Expr>&) { return constant(f64, 1.0); });
    std::vector<tw::Tensor> outputs = gradients(loss, one, {q, k, v});
    outputs.insert(outputs.begin(), loss);
    Bindings bindings;
    const char* names[] = {"q", "k", "v", "goal"};
    for (size_t n = 0; n < data.size(); ++n) {
        HostArray wide = host_array(f64, data[n].shape);
        std::vector<int64_t> at(wide.shape.size());
        do wide.set(at, make_value(f64, data[n].at(at).real));
        while (advance(at, wide.shape));
        bindings.inputs[names[n]] = wide;
    }
    return interpret_plain(outputs, bindings);
}

double distance(const HostArray& got, const HostArray& exact) {
    double most = 0, largest = 0;
    std::vector<int64_t> at(exact.shape.size());
    do {
        most = std::max(most, std::abs(got.at(at).real - exact.at(at).real));
        largest = std::max(largest, std::abs(exact.at(at).real));
        if (std::isnan(got.at(at).real)) return INFINITY;
    } while (advance(at, exact.shape));
    return most / largest;
}

Sizes random_sizes(std::mt19937_64& random) {
    auto any = [&](int64_t least, int64_t most) {
        return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
    };
    Sizes of{.batch = any(1, 2),
             .rows = any(1, 24),
             .keys = 0,
             .heads = 0,
             .group = any(1, 2),
             .depth = 8 * any(1, 3),
             .width = 8 * any(1, 3),
             .causal = random() % 2 == 0};
    of.keys = of.rows + any(0, 20);
    of.heads = of.group * any(1, 2);
    return of;
}

class AttentionSteps : public OnEachDevice {
protected:
    void expect_formula(const Sizes& of, uint64_t seed) {
        SCOPED_TRACE(fmt::format("batch {}, {} rows, {} keys, {} heads of {}, depth {}, width {}{}", of.batch, of.rows,
                                 of.keys, of.heads, of.group, of.depth, of.width, of.causal ? ", causal" : ""));
        const int64_t of_keys = of.heads / of.group;
        std::vector<HostArray> data;
        for (const std::vector<int64_t>& shape : {std::vector{of.batch, of.rows, of.heads, of.depth},
                                                  {of.batch, of.keys, of_keys, of.depth},
                                                  {of.batch, of.keys, of_keys, of.width},
                                                  {of.batch, of.rows, of.heads, of.width}}) {
            data.push_back(host_array(f32, shape));
            fill_uniform(data.back(), -2, 2, ++seed);
        }
        const std::vector<HostArray> exact = formula(of, data);
        const auto backend = std::make_shared<Backend>(device_);
        std::vector<Tensor> leaves;
        for (const HostArray& each : data) leaves.emplace_back(backend, each, fmt::format("x{}", leaves.size()));
        for (size_t n = 0; n < 3; ++n) leaves[n].set_requires_grad();
        auto step = [&] {
            const Tensor o = attention(leaves[0], leaves[1], leaves[2], {.causal = of.causal});
            const Tensor loss = mse_loss(o, leaves[3]);
            backward(loss);
            return std::vector{loss, leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
        };
        auto expect_near = [&](const std::vector<Tensor>& made, double most, const char* how) {
            for (size_t n = 0; n < exact.size(); ++n)
                EXPECT_LT(distance(made[n].to_host(), exact[n]), most) << how << ": result " << n;
        };
        expect_near(step(), 2e-5, "called");
        const CompiledStep wide = compile(backend, step);
        wide.run();
        expect_near(wide.results(), 2e-5, "captured");
        const CompiledStep mixed = compile(backend, step, {.mixed = {.values = bf16}});
        EXPECT_THAT(faults_of(mixed.plan()), IsEmpty());
        EXPECT_EQ(num_own(mixed.plan()), 2) << mixed.plan().text();
        mixed.run();
        expect_near(mixed.results(), 3e-2, "mixed");
    }
    static int num_own(const StepPlan& plan) {
        int count = 0;
        for (const StepGroup& group : plan.groups) count += group.selection->origin == Provenance::Own ? 1 : 0;
        return count;
    }
};

TEST_P(AttentionSteps, AreTheFormulaAndItsDerivative) {
    std::mt19937_64 random(5);
    for (uint64_t n = 0; n < 4; ++n) expect_formula(random_sizes(random), 100 * n);
}

/// Attention between projections, with its data and its optimizer: equal ones each time.
struct Projected {
    static constexpr int64_t batch = 2, rows = 24, heads = 2, depth = 16, width = heads * depth;
    std::shared_ptr<Backend> backend;
    Tensor x;
    Linear projection, out;
    AdamW adamw;

    explicit Projected(const std::shared_ptr<Device>& device)
        : backend(std::make_shared<Backend>(device)),
          x(backend, tokens(), "x"),
          projection(backend, width, 3 * width, 1),
          out(backend, width, width, 2),
          adamw(joined({projection.parameters(), out.parameters()}), 0.01) {}
    static HostArray tokens() {
        HostArray tokens = host_array(f32, {batch * rows, width});
        fill_uniform(tokens, -1, 1, 3);
        return tokens;
    }
    std::vector<Tensor> step() {
        const Tensor all = reshape(projection(x), {batch, rows, 3, heads, depth});
        auto part = [&](int64_t n) { return reshape(slice(all, 2, n, n + 1), {batch, rows, heads, depth}); };
        const Tensor o = attention(part(0), part(1), part(2), {.causal = true});
        const Tensor loss = mse_loss(out(reshape(o, {batch * rows, width})), x);
        backward(loss);
        std::vector<Tensor> results{loss};
        for (const Tensor& parameter : joined({projection.parameters(), out.parameters()}))
            results.push_back(parameter.grad());
        adamw.step();
        return results;
    }
};

TEST_P(AttentionSteps, ReadProjectionsWhereTheyLie) {
    Projected first(device_), second(device_);
    const CompiledStep wide = compile(first.backend, [&] { return first.step(); });
    const CompiledStep mixed = compile(second.backend, [&] { return second.step(); }, {.mixed = {.values = bf16}});
    EXPECT_EQ(num_own(mixed.plan()), 2);
    for (const StepGroup& group : mixed.plan().groups) {
        if (group.operations[0] != "causal attention") continue;
        ASSERT_EQ(group.reads.size(), 1U);
        EXPECT_EQ(mixed.plan().values[static_cast<size_t>(group.reads[0])].name, "linear");
        EXPECT_EQ(group.selection->program.kernels().size(), 1U) << "operands are copied";
    }
    wide.run();
    mixed.run();
    for (size_t k = 0; k < wide.results().size(); ++k)
        EXPECT_LT(distance(mixed.results()[k].to_host(), wide.results()[k].to_host()), 3e-2) << "result " << k;
    const double begin = mixed.results()[0].to_host().at({}).real;
    for (int n = 0; n < 5; ++n) mixed.run();
    EXPECT_LT(mixed.results()[0].to_host().at({}).real, 0.9 * begin);
}

TW_ON_EACH_DEVICE(AttentionSteps);

TEST(AttentionCalls, SayWhatDoesNotFit) {
    const auto backend = std::make_shared<Backend>(open_device("emulated"));
    auto of = [&](const std::vector<int64_t>& shape, Type type = f32) { return Tensor(backend, type, shape, "t"); };
    const Tensor q = of({2, 8, 4, 16}), k = of({2, 9, 4, 16}), three = of({2, 9, 3, 16});
    EXPECT_ERROR(attention(q, of({2, 9, 4, 8}), k),
                 "attention: q is [2, 8, 4, 16], k [2, 9, 4, 8], v [2, 9, 4, 16]; give [batch, rows, heads, depth], ");
    EXPECT_ERROR(attention(q, three, three), "with heads a multiple of those of keys");
    EXPECT_ERROR(attention(of({2, 8, 64}), k, k), "attention: q is [2, 8, 64]");
    EXPECT_ERROR(attention(q, Tensor(), k),
                 "an nn::Tensor is undefined; give one that was made, of data or by a call of");
    EXPECT_ERROR(relu(Tensor()), "an nn::Tensor is undefined");
    EXPECT_ERROR(attention(q, k, of({2, 9, 4, 16}, bf16)),
                 "attention: q is f32, k f32, v bf16; give three of one float type");
    EXPECT_ERROR(attention(q, of({2, 7, 4, 16}), of({2, 7, 4, 16}), {.causal = true}),
                 "attention: 8 causal rows of 7 keys, the first ones would see none; give as many keys at least");
}

}  // namespace
}  // namespace tw::nn
