// Products whose sums another tensor takes from registers: columns in turns, and blocks of terms with scales.
#include "schedules/register_product.h"

#include <algorithm>

#include <gmock/gmock.h>

#include "codegen/lower.h"
#include "ops/runner.h"
#include "runtime/compile/compile.h"
#include "schedules/catalog.h"
#include "schedules/choose.h"
#include "tests/schedules/expect_right.h"
#include "tests/schedules/integers_for.h"
#include "verify/random.h"

namespace tw::schedules {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string text_of(const std::string& kernel) { return build(find_kernel(kernel)->make(target("sm_90a"))).cuda(); }

// What the rule finds is the kernel that was scheduled by hand, word for word.
TEST(RegisterProducts, AreTheKernelsOfThatName) {
    for (const char* name :
         {"gemm_bf16_8192x8192x1024_tb_swiglu", "gemm_bf16_8192x28672x4096_tb_swiglu",
          "gemm_bf16_16384x6144x768_tb_swiglu", "gemm_f16_64x272x20496_tb_swiglu", "gemm_bf16_40x272x256_swiglu",
          "gemm_e4m3_4096x4096x4096_tb_scaled", "gemm_e4m3_1001x5000x4096_tb_scaled",
          "gemm_e4m3_320x256x27648_tb_scaled", "gemm_e4m3_64x512x8192_tb_scaled", "gemm_bf16_1x8192x8192_tb"})
        EXPECT_EQ(text_of(std::string(name) + "_automatic"), text_of(name)) << name;
}

/// How elements come by the product's columns.
enum class Columns { InTurns, InHalves, InPairs, OfMatrices };

struct Gated {
    Columns columns;
    int64_t width = 8, turns = 2;
    bool through_elements = false;  ///< of their own, which the rule inlines
    int64_t m = 0, n = 0, k = 0;    ///< n: of the result
    int64_t batch = 0;              ///< of rows; the matrices have none
    Type operand = bf16, sums = f32, result = bf16;
    bool turned_a = false, turned_b = false;
};

Gated random_gated(fuzz::Random& random, Columns columns) {
    Gated g{.columns = columns,
            .m = random.between(16, 90),
            .n = 8 * random.between(2, 12),
            .k = 8 * random.between(2, 20)};
    if (columns == Columns::InTurns) g.width = random.pick(std::vector<int64_t>{8, 16});
    if (columns != Columns::InPairs) g.turns = random.pick(std::vector<int64_t>{2, 2, 3, 4});
    g.n = (g.n + g.width - 1) / g.width * g.width;
    g.through_elements = random.chance(0.5);
    g.operand = random.pick(std::vector<Type>{bf16, f16});
    g.sums = random.pick(std::vector<Type>{f32, bf16});
    g.result = random.pick(std::vector<Type>{f32, bf16, f16});
    g.batch = random.chance(0.3) ? 2 : 0;
    g.turned_a = random.chance(0.5), g.turned_b = random.chance(0.5);
    return g;
}

Tensor declare(const Gated& g) {
    const bool apart = g.columns == Columns::OfMatrices;
    const int64_t all = apart ? g.n : g.n * g.turns;
    auto shape = [&](int64_t rows, int64_t columns) {
        return g.batch > 0 ? Shape{g.batch, rows, columns} : Shape{rows, columns};
    };
    const Tensor a = input("a", g.operand, g.turned_a ? shape(g.k, g.m) : shape(g.m, g.k));
    const Axis k = reduce_axis("k", g.k);
    auto read = [](const Tensor& tensor, std::vector<Expr> at, const Expr& row, const Expr& column) {
        at[at.size() - 2] = row, at.back() = column;
        return tensor.read({at.begin(), at.end()});
    };
    std::vector<Tensor> products;
    for (int64_t turn = 0; turn < (apart ? g.turns : 1); ++turn) {
        const std::string number = std::to_string(turn);
        const Tensor b = input("b" + number, g.operand, g.turned_b ? Shape{all, g.k} : Shape{g.k, all});
        products.push_back(compute("p" + number, shape(g.m, all), [&](const std::vector<Expr>& at) {
            const Expr &i = at[at.size() - 2], &j = at.back();
            const Expr left = g.turned_a ? read(a, at, k, i) : read(a, at, i, k),
                       right = g.turned_b ? b(j, k) : b(k, j);
            return cast(g.sums, sum(cast(f32, left) * cast(f32, right), k));
        }));
    }
    auto product = [&](const std::vector<Expr>& at, int64_t turn) {
        const Expr &i = at[at.size() - 2], &j = at.back();
        const Expr column = g.columns == Columns::InTurns
                                ? j / g.width * (g.width * g.turns) + j % g.width + turn * g.width
                            : g.columns == Columns::InHalves ? j + turn * g.n
                            : g.columns == Columns::InPairs  ? j * 2 + turn
                                                             : j;
        return cast(f32, read(products[static_cast<size_t>(apart ? turn : 0)], at, i, column));
    };
    auto silu_of_first = [&](const std::vector<Expr>& at) { return silu(product(at, 0)); };
    const Tensor gate = compute("gate", shape(g.m, g.n), silu_of_first);
    return compute("c", shape(g.m, g.n), [&](const std::vector<Expr>& at) {
        Expr value = g.through_elements ? gate.read({at.begin(), at.end()}) : silu_of_first(at);
        for (int64_t turn = 1; turn < g.turns; ++turn) value = value * (product(at, turn) + 0.5);
        return cast(g.result, value);
    });
}

class Products : public testing::TestWithParam<Columns> {};
INSTANTIATE_TEST_SUITE_P(RegisterProducts, Products,
                         testing::Values(Columns::InTurns, Columns::InHalves, Columns::InPairs, Columns::OfMatrices));

// One kernel; where columns come otherwise, behind a copy of the matrices.
TEST_P(Products, AreOneWithWhatIsMadeOfTheirColumns) {
    fuzz::Random random(static_cast<uint64_t>(GetParam()) + 5);
    for (int round = 0; round < 2; ++round) {
        const Gated gated = random_gated(random, GetParam());
        const Tensor c = declare(gated);
        const Schedule s = choose_schedule({c}, target("sm_90a"));
        SCOPED_TRACE(to_string(*c.operation()) + "\n" + s.explain());
        EXPECT_EQ(build(s).kernels().size(), gated.columns == Columns::InTurns ? 1u : 2u);
        EXPECT_THAT(s.trace_as_cpp(), HasSubstr("Memory::Registers"));
        expect_right(s);
    }
}

/// Ways to say it.
enum class Sum { OverTerms, OfSums, OverBoth, OfElements, OfStages };

struct Scaled {
    Sum sum;
    int64_t m = 0, n = 0, terms = 128, blocks = 0, columns = 128;  ///< of a scale of b
    Type operand = e4m3, result = bf16;
    bool rows_first = false;  ///< scales are [m, blocks]
    bool only_columns = false;
};

Scaled random_scaled(fuzz::Random& random, Sum sum) {
    Scaled s{.sum = sum, .m = random.between(16, 100), .n = random.between(16, 150), .blocks = random.between(2, 4)};
    s.operand = random.pick(std::vector<Type>{e4m3, e4m3, i8, bf16});
    s.terms = s.operand == bf16 ? 64 : random.pick(std::vector<int64_t>{32, 64, 128, 256});
    s.columns = random.pick(std::vector<int64_t>{1, 64, 128});
    s.result = random.pick(std::vector<Type>{f32, bf16});
    s.rows_first = random.chance(0.5), s.only_columns = random.chance(0.2);
    return s;
}

Tensor declare(const Scaled& s) {
    const int64_t all = s.terms * s.blocks;
    const Tensor a = input("a", s.operand, {s.m, all}), b = input("b", s.operand, {s.n, all});
    const Tensor scale_a = input("scale_a", f32, s.rows_first ? Shape{s.m, s.blocks} : Shape{s.blocks, s.m}),
                 scale_b = input("scale_b", f32, {(s.n + s.columns - 1) / s.columns, s.blocks});
    const Axis k = reduce_axis("k", all), q = reduce_axis("q", s.blocks), l = reduce_axis("l", s.terms);
    auto of_a = [&](Expr i, const Expr& block) {
        return s.only_columns ? Expr(2.0) : s.rows_first ? scale_a(i, block) : scale_a(block, i);
    };
    auto of_b = [&](Expr j, const Expr& block) { return scale_b(j / s.columns, block); };
    auto pair = [&](const Expr& i, const Expr& j, const Expr& at) { return cast(f32, a(i, at)) * cast(f32, b(j, at)); };
    const Tensor left =
        compute("left", {s.m, all}, [&](Expr i, Expr e) { return cast(f32, a(i, e)) * of_a(i, e / s.terms); });
    const Tensor right =
        compute("right", {s.n, all}, [&](Expr j, Expr e) { return cast(f32, b(j, e)) * of_b(j, e / s.terms); });
    const Tensor parts = compute("parts", {s.m, s.n, s.blocks},
                                 [&](Expr i, Expr j, Expr part) { return sum(pair(i, j, part * s.terms + l), l); });
    return compute("c", {s.m, s.n}, [&](Expr i, Expr j) {
        auto summed = [&]() -> Expr {
            switch (s.sum) {
                case Sum::OverTerms: return sum(pair(i, j, k) * (of_a(i, k / s.terms) * of_b(j, k / s.terms)), k);
                case Sum::OfSums: return sum(sum(pair(i, j, q * s.terms + l), l) * of_a(i, q) * of_b(j, q), q);
                case Sum::OverBoth: return sum(of_a(i, q) * pair(i, j, q * s.terms + l) * of_b(j, q), {q, l});
                case Sum::OfElements: return sum(left(i, k) * right(j, k), k);
                case Sum::OfStages: return sum(parts(i, j, q) * of_a(i, q) * of_b(j, q), q);
            }
            return {};
        };
        return cast(s.result, max(summed(), -100.0));
    });
}

class ScaledProducts : public testing::TestWithParam<Sum> {};
INSTANTIATE_TEST_SUITE_P(RegisterProducts, ScaledProducts,
                         testing::Values(Sum::OverTerms, Sum::OfSums, Sum::OverBoth, Sum::OfElements, Sum::OfStages));

// However it is said, of whatever blocks: tensor cores sum blocks, and registers what they are multiplied by. Of
// integers, as tensor cores lose bits of sums of fp8.
TEST_P(ScaledProducts, AreSummedByTensorCores) {
    fuzz::Random random(static_cast<uint64_t>(GetParam()) + 11);
    for (int round = 0; round < 2; ++round) {
        const Tensor c = declare(random_scaled(random, GetParam()));
        const Schedule s = choose_schedule({c}, target("sm_90a"));
        SCOPED_TRACE(to_string(*c.operation()) + "\n" + s.explain() + s.trace_as_cpp());
        EXPECT_THAT(s.trace_as_cpp(), HasSubstr("s.mma("));
        EXPECT_THAT(s.trace_as_cpp(), HasSubstr("s.set_memory(c_product, Memory::Registers)"));
        expect_right(s, integers_for({c}, 2));
    }
}

// Scales of rows that lie along terms are copied where boxes save more than that takes.
TEST(RegisterProducts, CopyScalesOfLargeProducts) {
    auto declared = [](int64_t extent) {
        const Scaled s{.sum = Sum::OverTerms, .m = extent, .n = extent, .blocks = extent / 128, .rows_first = true};
        return choose_schedule({declare(s)}, target("sm_90a"));
    };
    EXPECT_THAT(declared(4096).explain(), HasSubstr("'scale_a' is copied, with what boxes bring side by side"));
    EXPECT_EQ(build(declared(4096)).kernels().size(), 2u);
    EXPECT_EQ(build(declared(512)).kernels().size(), 1u);
}

// Scales and sums of large tiles stay in registers.
TEST(RegisterProducts, DoNotSpill) {
    const Scaled of_rows{.sum = Sum::OverTerms, .m = 4096, .n = 4096, .blocks = 32, .rows_first = true};
    Scaled of_columns = of_rows, of_integers = of_rows;
    of_columns.columns = 1;
    of_integers.operand = i8, of_integers.terms = 64;
    const Gated of_matrices{.columns = Columns::OfMatrices, .m = 8192, .n = 4096, .k = 1024, .turned_b = true};
    for (const Tensor& c : {declare(of_rows), declare(of_columns), declare(of_integers), declare(of_matrices)}) {
        const Program program = build(choose_schedule({c}, target("sm_90a")));
        EXPECT_THAT(program.explain(), HasSubstr("is computed by wgmma")) << to_string(*c.operation());
        for (const auto& kernel : program.kernels()) try {
                const CompiledKernel compiled = compile_kernel(
                    {.source = kernel.cuda, .name = kernel.name + ".cu", .arch = "sm_90a", .options = {}});
                const Resources& resources = compiled.of(kernel.name);
                EXPECT_EQ(resources.spill_store_bytes + resources.spill_load_bytes, 0) << to_string(*c.operation());
            } catch (const NvrtcMissing&) {
                GTEST_SKIP() << "NVRTC is not there";
            }
    }
}

// A product that is an output, or whose next row or a column of another group is read, is a kernel of its own.
TEST(RegisterProducts, AreReadInTheirOwnRowAlone) {
    const int64_t m = 48, n = 64;
    const Tensor a = input("a", bf16, {m, 64}), b = input("b", bf16, {n, 64});
    const Axis k = reduce_axis("k", 64);
    const Tensor p =
        compute("p", {m, n}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, k)) * cast(f32, b(j, k)), k); });
    auto read_at = [&](auto place) {
        return compute("c", {m, n / 2}, [&](Expr i, Expr j) { return place(i, j) * 2.0; });
    };
    auto column = [](const Expr& j) { return j / 8 * 16 + j % 8; };
    const Tensor own = read_at([&](Expr i, Expr j) { return p(i, column(j)) + p(i, column(j) + 8); });
    EXPECT_TRUE(register_product(p, {own}));
    EXPECT_FALSE(register_product(p, {own, p}));
    for (const Tensor& other :
         {read_at([&](Expr i, Expr j) { return p((i + 1) % m, column(j)) + p(i, column(j) + 8); }),
          read_at([&](Expr i, Expr j) { return p(i, (column(j) + 16) % n) + p(i, column(j)); })}) {
        EXPECT_FALSE(register_product(p, {other}));
        expect_right(choose_schedule({other}, target("sm_90a")));
    }
}

// Long sums of fp8 are added in parts, which gates would read.
TEST(RegisterProducts, SumFp8Exactly) {
    for (const int64_t terms : {1024, 2048}) {
        Gated gated{.columns = Columns::InTurns, .m = 128, .n = 64, .k = terms, .operand = e4m3, .turned_b = true};
        const Tensor c = declare(gated);
        std::vector<std::shared_ptr<const Operation>> made = operations_of({c});
        const auto sums = std::ranges::find(made, "p0", [](const auto& operation) { return operation->name; });
        EXPECT_EQ(register_product(Tensor(*sums, 0), {c}).has_value(), terms == 1024);
    }
}

}  // namespace
}  // namespace tw::schedules
