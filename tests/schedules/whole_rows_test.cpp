// Products of matrices whose rows boxes do not load, declared of copies whose rows they do.
#include "schedules/whole_rows.h"

#include <random>

#include <gmock/gmock.h>

#include "ops/check.h"
#include "schedules/choose.h"
#include "schedules/tensor_product.h"
#include "schedules/unit_product.h"
#include "support/random.h"
#include "tests/ops/on_each_device.h"

namespace tw::schedules {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

struct Layout {
    bool transpose_a, transpose_b;
};

/// relu(sum + bias) of matrices of any extents.
Tensor product_of(Type type, int64_t m, int64_t n, int64_t k, Layout layout) {
    const Tensor a = input("a", type, layout.transpose_a ? Shape{k, m} : Shape{m, k}),
                 b = input("b", type, layout.transpose_b ? Shape{n, k} : Shape{k, n}), bias = input("bias", f32, {n});
    const Axis term = reduce_axis("k", k);
    const Type sums = type == i8 ? i32 : f32;
    return compute("c", {m, n}, [&](Expr i, Expr j) {
        const Expr x = layout.transpose_a ? a(term, i) : a(i, term), y = layout.transpose_b ? b(j, term) : b(term, j);
        return max(cast(f32, sum(cast(sums, x) * cast(sums, y), term)) + bias(j), 0.0f);
    });
}

class WholeRowsKernels : public OnEachDevice {};

// Kernels of the chosen schedule give what was declared: in all layouts, of both widths.
TEST_P(WholeRowsKernels, GiveWhatIsDeclared) {
    if (!device_target().has_wgmma) GTEST_SKIP() << "boxes and warpgroups are of sm_90a";
    const auto seed = static_cast<uint64_t>(std::random_device{}());
    SCOPED_TRACE(seed);
    Random random(seed);
    for (const Type type : {bf16, i8})
        for (const Layout layout : {Layout{false, false}, Layout{false, true}, Layout{true, true}}) {
            const int64_t m = random.between(640, 700), n = random.between(640, 700),
                          k = 2 * random.between(500, 600) + 1;
            const Tensor c = product_of(type, m, n, k, layout);
            SCOPED_TRACE(to_string(*c.operation()));
            Executable executable(build(choose_schedule({c}, device_target())), device_);
            EXPECT_THAT(executable.program().explain(), HasSubstr("reads copies, in rows of whole pieces"));
            const Bindings data = random_bindings({c}, seed);
            const CheckResult result = check_output(c, data, run_on(executable, data)[0], {.samples = 512});
            EXPECT_TRUE(result.ok) << result.text;
        }
}
TW_ON_EACH_DEVICE(WholeRowsKernels);

// What is declared anew is a product that warpgroups take, of as many matrices as were given, turned or longer ones.
TEST(WholeRows, AreTakenByWarpgroups) {
    const Target& hopper = target("sm_90a");
    const auto seed = static_cast<uint64_t>(std::random_device{}());
    SCOPED_TRACE(seed);
    Random random(seed);
    int64_t anew = 0;
    for (int round = 0; round < 200; ++round) {
        const Layout layout{random.chance(0.5), random.chance(0.5)};
        const int64_t m = random.between(100, 9000), n = random.between(100, 9000), k = random.between(100, 9000);
        const Tensor c = product_of(random.pick(std::vector<Type>{bf16, f16, i8, e4m3}), m, n, k, layout);
        SCOPED_TRACE(to_string(*c.operation()));
        const Redeclared found = whole_rows({c}, hopper);
        const auto given = unit_product(c), made = unit_product(found.outputs[0]);
        ASSERT_TRUE(given && made);
        EXPECT_EQ(found.outputs[0].name(), "c");
        if (found.notes.empty()) {
            EXPECT_TRUE(found.outputs[0].same(c));
            if (static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) < 1e8) continue;
            TensorProductShape copied = given->shape;
            copied.copy_operands = true;
            EXPECT_TRUE(takes_warpgroups(given->shape, hopper) || !wants_copied_operands(given->shape) ||
                        !std::holds_alternative<WarpgroupTiles>(best_tiling(copied, hopper)));
            continue;
        }
        ++anew;
        EXPECT_FALSE(takes_warpgroups(given->shape, hopper));
        EXPECT_TRUE(takes_warpgroups(made->shape, hopper));
        EXPECT_LT(made->shape.k - given->shape.k, sector_bytes / bytes_of(given->shape.operand));
        const bool as_it_lies = layout.transpose_b && n % 8 == 0 && k % 16 == 0;
        if (as_it_lies) {
            EXPECT_TRUE(made->b.same(given->b));
        }
    }
    EXPECT_GT(anew, 40);
}

// A matrix that two products read so is copied once.
TEST(WholeRows, AreCopiedOnce) {
    const Tensor a = input("a", bf16, {4001, 1001}), b = input("b", bf16, {3001, 1001}),
                 d = input("d", bf16, {2001, 1001});
    auto times = [&](const char* name, const Tensor& other) {
        const Axis k = reduce_axis("k", 1001);
        return compute(name, {4001, other.shape()[0]},
                       [&](Expr i, Expr j) { return cast(bf16, sum(cast(f32, a(i, k)) * cast(f32, other(j, k)), k)); });
    };
    const Redeclared found = whole_rows({times("c", b), times("e", d)}, target("sm_90a"));
    EXPECT_EQ(operations_of(found.outputs).size(), 3u + 3u + 2u);
    EXPECT_THAT(found.notes,
                testing::ElementsAre(HasSubstr("'a_padded', 'b_padded'"), HasSubstr("'a_padded', 'd_padded'")));
}

TEST(WholeRows, LeaveWhatIsFastOrSmall) {
    for (const Tensor& c :
         {product_of(bf16, 4000, 3000, 1000, {false, false}), product_of(bf16, 40, 30, 33, {false, true}),
          product_of(f32, 4001, 3001, 1001, {false, true})})
        EXPECT_THAT(whole_rows({c}, target("sm_90a")).notes, IsEmpty());
    EXPECT_THAT(whole_rows({product_of(bf16, 4001, 3001, 1001, {false, true})}, target("sm_80")).notes, IsEmpty());
}

}  // namespace
}  // namespace tw::schedules
