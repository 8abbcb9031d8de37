// What memory holds unchanged is read while the product before it is under way, what shared memory holds in front of
// it.
#include <random>

#include <gtest/gtest.h>

#include "ops/program.h"
#include "ops/runner.h"
#include "schedules/catalog.h"

namespace tw::schedules {
namespace {

bool reads_for_the_next(const Schedule& s) { return build(s).cuda().find("_next") != std::string::npos; }

void expect_right(const Schedule& s) {
    Runner runner(s, open_device("emulated"));
    runner.set(random_bindings(s.outputs(), std::random_device()()));
    const CheckResult check = runner.check();
    EXPECT_TRUE(check.ok) << check.text << "\n" << build(s).cuda();
}

TEST(ReadEarly, OfScalesOfEachStep) {
    for (const char* kernel : {"gemm_e4m3_64x128x256_tb_scaled", "gemm_e4m3_100x72x640_tb_scaled"}) {
        const Schedule s = find_library_kernel(kernel)->make(target("sm_90a"));
        EXPECT_TRUE(reads_for_the_next(s)) << build(s).cuda();
        expect_right(s);
    }
}

/// c[i, j] = sum_part weight[part, i] (the product of the terms of a part), of so many parts of five; the weights come
/// by this memory, if any.
Schedule weighted(const Extent& parts, std::optional<Memory> by = {}) {
    const int64_t most = 5, terms = 64;
    const Tensor a = input("a", bf16, {128, most * terms}), b = input("b", bf16, {64, most * terms});
    const Tensor weight = input("weight", f32, {parts, 128});
    const Axis inside = reduce_axis("inside", terms), part = reduce_axis("part", parts);
    const Tensor product = compute("product", {most, 128, 64}, [&](Expr p, Expr i, Expr j) {
        return sum(cast(f32, a(i, p * terms + inside)) * cast(f32, b(j, p * terms + inside)), inside);
    });
    const Tensor c =
        compute("c", {128, 64}, [&](Expr i, Expr j) { return sum(product(part, i, j) * weight(part, i), part); });
    Schedule s({c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(c);
    Loop step = s.reduce(c);
    auto [group, row] = s.split(i, 64, {"group", "row"});
    s.order({group, step, row, j});
    s.bind(group, warpgroup);
    s.at(product, step);
    s.set_memory(product, Memory::Registers);
    auto [p, pi, pj] = s.loops<3>(product);
    auto [outer, inner] = s.split(s.reduce(product), 64, Tail::Mask, {"outer", "inner"});
    s.order({p, outer, pi, pj, inner});
    s.stage(product, a, Memory::Shared, outer);
    s.stage(product, b, Memory::Shared, outer);
    if (by) s.stage(c, weight, *by, step);
    s.mma(product, wgmma, {.m = pi, .n = pj, .k = inner});
    return s;
}

// Else a thread would wait for them behind the product, with nothing else to do.
TEST(ReadEarly, SharedMemoryInFrontOfTheProduct) {
    const Schedule scales =
        find_library_kernel("gemm_e4m3_128x128x640_tb_scaled_tile64x128x128g1s3")->make(target("sm_90a"));
    const Schedule weights = weighted(5, Memory::Shared);
    for (const auto& [s, array] : {std::pair(&scales, "scale_a_shared"), std::pair(&weights, "weight_shared")}) {
        const std::string text = build(*s).cuda();
        const size_t read = text.find(std::string("float ") + array + "_values"),
                     product = text.find("tw::wgmma_m64", text.find("__global__"));
        ASSERT_NE(read, text.npos) << text;
        EXPECT_LT(read, product) << text;
        expect_right(*s);
    }
}

// The array of the next iteration is that of the one behind: a copy would wait for what was read.
TEST(ReadEarly, TwoIterationsAreOne) {
    for (const Schedule& s :
         {find_library_kernel("gemm_e4m3_128x128x640_tb_scaled_tile64x128x128g1s3")->make(target("sm_90a")),
          weighted(5), weighted(5, Memory::Registers)}) {
        const std::string text = build(s).cuda();
        EXPECT_TRUE(reads_for_the_next(s)) << text;
        EXPECT_NE(text.find("#pragma unroll 2\n"), text.npos) << text;
        expect_right(s);
    }
}

TEST(ReadEarly, OfWeightsOfOnesOwn) {
    const Schedule s = weighted(5);
    EXPECT_TRUE(reads_for_the_next(s)) << build(s).cuda();
    expect_right(s);
}

/// Not in front of a loop that does not run: there may be nothing to read.
TEST(ReadEarly, NothingWhereThereAreNoSteps) {
    const Schedule s = weighted(size("n", {.min = 0, .max = 5}));
    EXPECT_TRUE(reads_for_the_next(s)) << build(s).cuda();
    for (const int64_t n : {5, 1, 0}) {
        Bindings bindings = random_bindings(s.outputs(), 7);
        bindings.sizes["n"] = n;
        HostArray weight = host_array(f32, {n, 128});
        for (int64_t p = 0; p < n; ++p)
            for (int64_t i = 0; i < 128; ++i) weight.set({p, i}, make_value(f32, double(i % 7 - p)));
        bindings.inputs["weight"] = weight;
        Runner runner(s, open_device("emulated"));
        runner.set(bindings);
        const CheckResult check = runner.check();
        EXPECT_TRUE(check.ok) << n << check.text << "\n" << build(s).cuda();
    }
}

}  // namespace
}  // namespace tw::schedules
