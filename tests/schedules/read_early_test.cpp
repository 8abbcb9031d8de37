// What memory holds unchanged is read while the product before it is under way, what shared memory holds in front of
// it.
#include <gtest/gtest.h>

#include "tests/schedules/weighted_parts.h"

namespace tw::schedules {
namespace {

bool reads_for_the_next(const Schedule& s) { return build(s).cuda().find("_next") != std::string::npos; }

TEST(ReadEarly, OfScalesOfEachStep) {
    for (const char* kernel : {"gemm_e4m3_64x128x256_tb_scaled", "gemm_e4m3_100x72x640_tb_scaled"}) {
        const Schedule s = find_library_kernel(kernel)->make(target("sm_90a"));
        EXPECT_TRUE(reads_for_the_next(s)) << build(s).cuda();
        expect_right(s);
    }
}

// Else a thread would wait for them behind the product, with nothing else to do.
TEST(ReadEarly, SharedMemoryInFrontOfTheProduct) {
    const Schedule scales =
        find_library_kernel("gemm_e4m3_128x128x640_tb_scaled_tile64x128x128g1s3")->make(target("sm_90a"));
    const Schedule weights = weighted_parts(128, 5, Memory::Shared);
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
          weighted_parts(128, 5), weighted_parts(128, 5, Memory::Registers)}) {
        const std::string text = build(s).cuda();
        EXPECT_TRUE(reads_for_the_next(s)) << text;
        EXPECT_NE(text.find("#pragma unroll 2\n"), text.npos) << text;
        expect_right(s);
    }
}

TEST(ReadEarly, OfWeightsOfOnesOwn) {
    const Schedule s = weighted_parts(128, 5);
    EXPECT_TRUE(reads_for_the_next(s)) << build(s).cuda();
    expect_right(s);
}

/// Not in front of a loop that does not run: there may be nothing to read.
TEST(ReadEarly, NothingWhereThereAreNoSteps) {
    const Schedule s = weighted_parts(128, size("n", {.min = 0, .max = 5}));
    EXPECT_TRUE(reads_for_the_next(s)) << build(s).cuda();
    for (const int64_t n : {5, 1, 0}) {
        Bindings bindings = random_bindings(s.outputs(), 7);
        bindings.sizes["n"] = n;
        HostArray weight = host_array(f32, {n, 128});
        for (int64_t p = 0; p < n; ++p)
            for (int64_t i = 0; i < 128; ++i) weight.set({p, i}, make_value(f32, double(i % 7 - p)));
        bindings.inputs["weight"] = weight;
        expect_right(s, bindings);
    }
}

}  // namespace
}  // namespace tw::schedules
