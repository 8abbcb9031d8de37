// Outputs that are made of a product's results where its tiles are.
#include "schedules/elements_of_product.h"

#include <random>

#include <gmock/gmock.h>

#include "ops/check.h"
#include "ops/executable.h"
#include "schedules/candidates.h"
#include "schedules/choices.h"
#include "schedules/choose.h"
#include "verify/random.h"

namespace tw::schedules {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

struct ElementsCase {
    int64_t m = 0, n = 0, k = 0, batch = 0;
    Type operand = bf16, result = bf16;
    std::string arch = "sm_90a";
};

ElementsCase random_elements(fuzz::Random& random) {
    ElementsCase c;
    c.m = random.between(16, 300), c.n = random.between(16, 300), c.k = 8 * random.between(2, 16);
    c.batch = random.chance(0.25) ? random.between(2, 3) : 0;
    c.operand = random.pick(std::vector<Type>{bf16, f16});
    c.result = random.chance(0.5) ? c.operand : f32;
    if (c.result == f32) c.n = (c.n + 3) / 4 * 4;  // leaves as boxes
    c.arch = random.chance(0.3) ? "sm_80" : "sm_90a";
    return c;
}

Expr element(const Tensor& tensor, const std::vector<Expr>& at) {
    return cast(f32, tensor.read({at.begin(), at.end()}));
}

/// What a layer makes before its activation, and its tensors, over [m, n], or a batch of such.
struct Layer {
    Tensor x, w, bias, mask, pre;

    explicit Layer(const ElementsCase& c) : bias(input("bias", c.operand, {c.n})) {
        auto batched = [&](int64_t rows, int64_t columns) {
            return c.batch > 0 ? Shape{c.batch, rows, columns} : Shape{rows, columns};
        };
        x = input("x", c.operand, batched(c.m, c.k)), w = input("w", c.operand, batched(c.n, c.k));
        mask = input("mask", c.operand, batched(c.m, c.n));
        const Axis t = reduce_axis("t", c.k);
        pre = compute("pre", batched(c.m, c.n), [&](const std::vector<Expr>& at) {
            std::vector<Expr> row = at, column = at;
            row.back() = column.back() = t;
            column[column.size() - 2] = at.back();
            return cast(c.result, sum(element(x, row) * element(w, column), t) + element(bias, {at.back()}));
        });
    }
    template <class Body>
    Tensor elements(const char* name, const Body& body) const {
        return compute(name, {pre.shape().begin(), pre.shape().end()},
                       [&](const std::vector<Expr>& at) -> Expr { return body(at); });
    }
};

/// An activation; or what dropout keeps of another one, and whether it is positive.
std::vector<Tensor> outputs_of(const Layer& layer, bool has_mask, Type type) {
    using Indices = std::vector<Expr>;
    if (!has_mask) {
        const Tensor y =
            layer.elements("y", [&](const Indices& at) { return cast(type, gelu_tanh(element(layer.pre, at))); });
        return {layer.pre, y};
    }
    const Tensor inner = layer.elements("inner", [&](const Indices& at) { return max(element(layer.pre, at), 0.0); });
    const Tensor y = layer.elements(
        "y", [&](const Indices& at) { return cast(type, element(inner, at) * element(layer.mask, at)); });
    const Tensor sign = layer.elements("sign", [&](const Indices& at) {
        return select(element(layer.pre, at) > 0.0, constant(i32, 1), constant(i32, 0));
    });
    return {y, sign, layer.pre};
}

Schedule expect_right(const std::vector<Tensor>& outputs, const std::string& arch) {
    Schedule s = choose_schedule(outputs, target(arch));
    SCOPED_TRACE(s.trace_as_cpp());
    const Program program = build(s);
    Executable executable(program, open_device("emulated"));
    const Bindings data = random_bindings(outputs, std::random_device{}());
    const std::vector<HostArray> results = run_on(executable, data);
    for (size_t k = 0; k < outputs.size(); ++k) {
        const CheckResult result = check_output(outputs[k], data, results[k], {.samples = 64});
        EXPECT_TRUE(result.ok) << result.text << program.cuda();
    }
    return s;
}

// Random extents and types, one use or another, whichever way they are made.
TEST(ElementsOfProduct, AreRight) {
    fuzz::Random random(std::random_device{}());
    const ElementsCase c = random_elements(random);
    const bool has_mask = random.chance(0.5), keeps = !has_mask || random.chance(0.5);
    SCOPED_TRACE(fmt::format("{}x{}x{}x{} {} {} {} mask {}", c.batch, c.m, c.n, c.k, name_of(c.operand),
                             name_of(c.result), c.arch, has_mask));
    std::vector<Tensor> outputs = outputs_of(Layer(c), has_mask, c.operand);
    if (!keeps) outputs.pop_back();  // the product, which both others read
    expect_right(outputs, c.arch);
}

// By warpgroups and by warps, of narrow results and wide ones, also of a batch: one kernel.
TEST(ElementsOfProduct, AreMadeByItsKernel) {
    for (const ElementsCase& c : {ElementsCase{.m = 200, .n = 136, .k = 64},
                                  {.m = 136, .n = 64, .k = 32, .batch = 2, .result = f32},
                                  {.m = 72, .n = 50, .k = 40, .result = f32, .arch = "sm_80"}}) {
        const bool has_mask = c.batch == 0;
        const Schedule s = expect_right(outputs_of(Layer(c), has_mask, f16), c.arch);
        EXPECT_EQ(build(s).kernels().size(), 1);
        EXPECT_THAT(s.explain(), HasSubstr(has_mask ? "whose kernel makes 'y', 'sign' of its results"
                                                    : "whose kernel makes 'y' of its results"));
    }
}

/// Of products: outputs over the same places that read nothing else that waits for them.
TEST(ElementsOfProduct, OthersAreLeftAlone) {
    const Layer layer({.m = 64, .n = 64, .k = 32}), other({.m = 64, .n = 64, .k = 32});
    const Tensor& pre = layer.pre;
    auto made = [&](const char* name, const auto& body) { return compute(name, {64, 64}, body); };
    const Axis j = reduce_axis("j", 64);
    const Tensor turned = made("turned",
                               [&](Expr r, Expr c) {
                                   return element(pre, {c, r});
                               }),
                 half = compute("half", {64, 32},
                                [&](Expr r, Expr c) {
                                    return element(pre, {r, c});
                                }),
                 total = compute("total", {64},
                                 [&](Expr r) {
                                     return sum(element(pre, {r, j}), j);
                                 }),
                 summed = made("summed",
                               [&](Expr r, Expr c) {
                                   return element(pre, {r, c}) + 1.0;
                               }),
                 sums = compute("sums", {64},
                                [&](Expr r) {
                                    return sum(element(summed, {r, j}), j);
                                }),
                 share = made("share",
                              [&](Expr r, Expr c) {
                                  return element(pre, {r, c}) / total(r);
                              }),
                 plain = made("plain",
                              [&](Expr r, Expr c) {
                                  return element(pre, {r, c}) * 2.0;
                              }),
                 both = made("both", [&](Expr r, Expr c) {
                     return element(pre, {r, c}) * element(other.pre, {r, c});
                 });
    const std::vector<Tensor> outputs{pre, turned, half, total, summed, sums, share, plain, other.pre, both};
    auto of = [&](const Tensor& product) {
        std::vector<std::string> names;
        for (const Tensor& each : elements_of_product(product, outputs)) names.push_back(each.name());
        return names;
    };
    EXPECT_THAT(of(pre), ElementsAre("plain"));
    EXPECT_THAT(of(other.pre), ElementsAre("both"));
    EXPECT_THAT(of(plain), ElementsAre());
}

// A search may take another tiling, or a kernel behind.
TEST(ElementsOfProduct, AreChoices) {
    const std::vector<Tensor> outputs = outputs_of(Layer({.m = 200, .n = 136, .k = 64}), false, bf16);
    auto rule = [&] { return choose_schedule(outputs, target("sm_90a")); };
    std::vector<std::string> options;
    {
        Choices choices;
        rule();
        const auto asked = std::ranges::find(choices.asked(), "pre.tiling", &Choice::name);
        ASSERT_NE(asked, choices.asked().end());
        for (const std::string& option : asked->options)
            if (option.ends_with("+elements")) options.push_back(option);
    }
    ASSERT_GE(options.size(), 2);
    const Schedule other = schedule_with({{"pre.tiling", options[1]}}, rule);
    EXPECT_THAT(other.explain(), HasSubstr("tiling " + options[1].substr(0, options[1].find('+')) + ", by"));
    EXPECT_THAT(other.explain(), HasSubstr("whose kernel makes 'y'"));
    const Schedule apart = schedule_with({{"pre.tiling", "64x64x64g1s12r"}}, rule);
    EXPECT_THAT(apart.explain(), Not(HasSubstr("whose kernel makes")));
}

// A layer of a transformer, whose activation's input is kept.
TEST(ElementsOfProduct, GoWithLargeProducts) {
    const Layer layer({.m = 32768, .n = 3072, .k = 768});
    const Tensor y =
        layer.elements("y", [&](const std::vector<Expr>& at) { return cast(bf16, max(element(layer.pre, at), 0.0)); });
    EXPECT_EQ(build(choose_schedule({layer.pre, y}, target("sm_90a"))).kernels().size(), 1);
}

}  // namespace
}  // namespace tw::schedules
