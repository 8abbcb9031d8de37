// Reductions along the rows of products, made in their tiles' registers.
#include "schedules/product_rows.h"

#include <random>

#include <gmock/gmock.h>

#include "ops/check.h"
#include "ops/executable.h"
#include "schedules/choose.h"
#include "verify/random.h"

namespace tw::schedules {
namespace {

using testing::HasSubstr;
using testing::Not;

enum class OfRows { Softmax, Staged, Largest, Weighted, Several, Nearest };

struct RowsCase {
    OfRows of;
    int64_t m, n, k;
    Type operand = bf16;
    bool turned_a = false, turned_b = true, rounded = false, biased = false, beside = false;
};

RowsCase random_rows(fuzz::Random& random, OfRows of) {
    RowsCase c{.of = of, .m = random.between(16, 160), .n = random.between(257, 360), .k = 8 * random.between(2, 16)};
    c.operand = random.pick(std::vector<Type>{bf16, f16});
    c.turned_a = random.chance(0.3), c.turned_b = random.chance(0.7);
    if (c.turned_a) c.m = (c.m + 7) / 8 * 8;
    if (!c.turned_b) c.n = (c.n + 7) / 8 * 8;
    c.rounded = random.chance(0.4), c.biased = random.chance(0.5), c.beside = random.chance(0.5);
    return c;
}

std::vector<Tensor> declared(const RowsCase& c) {
    const Tensor a = c.turned_a ? input("a", c.operand, {c.k, c.m}) : input("a", c.operand, {c.m, c.k}),
                 b = c.turned_b ? input("b", c.operand, {c.n, c.k}) : input("b", c.operand, {c.k, c.n}),
                 bias = input("bias", f32, {c.n}), weights = input("weights", c.operand, {c.m, c.n}),
                 label = input("label", i32, {c.m});
    const Axis k = reduce_axis("k", c.k);
    auto axis = [&](const char* name) { return reduce_axis(name, c.n); };
    const Tensor product = compute("product", {c.m, c.n}, [&](Expr i, Expr j) {
        Expr z = sum(cast(f32, c.turned_a ? a(k, i) : a(i, k)) * cast(f32, c.turned_b ? b(j, k) : b(k, j)), k) * 0.1;
        return c.rounded ? cast(f32, cast(bf16, z)) : z;
    });
    Tensor z = product;
    if (c.biased) z = compute("z", {c.m, c.n}, [&](Expr i, Expr j) { return product(i, j) + bias(j); });
    const Axis j = axis("j"), j2 = axis("j2"), j3 = axis("j3");
    auto largest = [&](const char* name) {
        return compute(name, {c.m}, [&](Expr i) { return reduce_max(z(i, j), j); });
    };
    switch (c.of) {
        case OfRows::Softmax: {
            const Tensor top = largest("top");
            return {compute("loss", {c.m}, [&](Expr i) {
                Expr loss = log(sum(exp(z(i, j2) - top(i)), j2)) + top(i);
                return c.beside ? loss - product(i, cast(i64, label(i))) : loss;
            })};
        }
        case OfRows::Staged: {  // what is made of both is a kernel behind, which reads them
            const Tensor top = largest("top"),
                         total = compute("total", {c.m}, [&](Expr i) { return sum(exp(z(i, j2) - top(i)), j2); });
            return {compute("loss", {c.m}, [&](Expr i) {
                Expr loss = log(total(i)) + top(i);
                return c.beside ? loss - product(i, cast(i64, label(i))) : loss;
            })};
        }
        case OfRows::Largest: return {largest("top")};
        case OfRows::Weighted:
            return {compute("y", {c.m}, [&](Expr i) { return sum(z(i, j) * cast(f32, weights(i, j)), j); })};
        case OfRows::Several:
            return {largest("top"), compute("norm", {c.m}, [&](Expr i) { return sqrt(sum(z(i, j2) * z(i, j2), j2)); }),
                    compute("mean", {c.m}, [&](Expr i) { return sum(max(z(i, j3), 0.0), j3) / double(c.n); })};
        case OfRows::Nearest:
            auto best = compute_tuple("best", {c.m}, [&](const std::vector<Expr>& i) { return argmax(z(i[0], j), j); });
            return {best[1]};
    }
    return {};
}

std::optional<Schedule> with_rows(const std::vector<Tensor>& outputs) {
    return with_product_rows(
               outputs, target("sm_90a"),
               [](const std::vector<Tensor>& rest, const Target& target) { return choose_schedule(rest, target); })
        .schedule;
}

class ProductRows : public testing::TestWithParam<OfRows> {};

// Random extents, types, layouts and what lies between: found, without memory for the product, and right.
TEST_P(ProductRows, AreMadeInRegisters) {
    fuzz::Random random(std::random_device{}());
    const RowsCase c = random_rows(random, GetParam());
    SCOPED_TRACE(fmt::format("{}x{}x{} turned {} {} rounded {} biased {} beside {}", c.m, c.n, c.k, c.turned_a,
                             c.turned_b, c.rounded, c.biased, c.beside));
    const std::vector<Tensor> outputs = declared(c);
    const auto s = with_rows(outputs);
    ASSERT_TRUE(s);
    EXPECT_THAT(build(*s).explain(), HasSubstr("of the product 'product' in registers"));
    EXPECT_THAT(build(*s).cuda(), Not(HasSubstr("* __restrict__ product,")));
    Executable executable(build(*s), open_device("emulated"));
    const Bindings data = random_bindings(outputs, std::random_device{}());
    const std::vector<HostArray> results = run_on(executable, data);
    for (size_t k = 0; k < outputs.size(); ++k) {
        const CheckResult result = check_output(outputs[k], data, results[k], {.samples = 64});
        EXPECT_TRUE(result.ok) << result.text << build(*s).cuda();
    }
}

// Of few rows, lanes share many parts, also where others read what the last one goes by.
TEST(ProductRowsOf, ManyPartsAreSharedByLanes) {
    for (const OfRows of : {OfRows::Softmax, OfRows::Staged}) {
        const auto s = with_rows(declared({.of = of, .m = 64, .n = 4096, .k = 64}));
        ASSERT_TRUE(s);
        EXPECT_THAT(s->to_string(), HasSubstr("(lane)"));
    }
}

/// What reads other than whole rows, of more columns than a tile has, needs the product in memory.
TEST(ProductRowsOf, OthersAreLeftAlone) {
    const Tensor a = input("a", bf16, {128, 64}), b = input("b", bf16, {296, 64});
    const Axis k = reduce_axis("k", 64), i = reduce_axis("i", 128), j = reduce_axis("j", 296),
               half = reduce_axis("h", 48);
    const Tensor z =
        compute("z", {128, 296}, [&](Expr r, Expr c) { return sum(cast(f32, a(r, k)) * cast(f32, b(c, k)), k); });
    const Tensor all = compute("all", {},
                               [&](const std::vector<Expr>&) {
                                   return sum(z(i, j) * z(i, j), {i, j});
                               }),
                 columns = compute("columns", {296}, [&](Expr c) { return sum(z(i, c), i); }),
                 part = compute("part", {128}, [&](Expr r) { return sum(z(r, half), half); }),
                 other = compute("other", {128}, [&](Expr r) { return sum(z(127 - r, j), j); }),
                 rows = compute("rows", {128}, [&](Expr r) { return sum(z(r, j), j); }),
                 elements = compute("elements", {128, 296}, [&](Expr r, Expr c) { return tanh(z(r, c)); });
    for (const std::vector<Tensor>& outputs : std::vector<std::vector<Tensor>>{
             {all}, {columns}, {part}, {other}, {rows, z}, {rows, elements}, {rows, columns}})
        EXPECT_FALSE(with_rows(outputs)) << outputs[0].name();
    EXPECT_TRUE(with_rows({rows}));
}

INSTANTIATE_TEST_SUITE_P(Random, ProductRows,
                         testing::Values(OfRows::Softmax, OfRows::Staged, OfRows::Largest, OfRows::Weighted,
                                         OfRows::Several, OfRows::Nearest));

}  // namespace
}  // namespace tw::schedules
