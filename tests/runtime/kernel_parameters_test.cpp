#include "runtime/driver/kernel_parameters.h"

#include "runtime/compile/compile.h"
#include "runtime/compile/library.h"

#include "tests/runtime/support.h"

namespace tw {
namespace {

using Sizes = std::vector<size_t>;

std::optional<Sizes> sizes_of(const std::string& parameters) {
    return kernel_parameters("extern \"C\" __global__ void __launch_bounds__(128, 2) f(" + parameters + ")\n{ f(1); }",
                             "f");
}

TEST(KernelParameters, KnowsTheUsualTypes) {
    EXPECT_EQ(sizes_of("const float* __restrict__ a, unsigned char *b, int n"), (Sizes{8, 8, 4}));
    EXPECT_EQ(sizes_of("long long n, unsigned long long m, unsigned long int o"), (Sizes{8, 8, 8}));
    EXPECT_EQ(sizes_of("unsigned n, const unsigned int m, uint32_t o, int64_t p, size_t q"), (Sizes{4, 4, 4, 8, 8}));
    EXPECT_EQ(sizes_of("float f, double d, unsigned short s"), (Sizes{4, 8, 2}));
    EXPECT_EQ(sizes_of(""), Sizes{});
    EXPECT_EQ(sizes_of(" \n "), Sizes{});
}

TEST(KernelParameters, CountsTypesThatItDoesNotKnow) {
    EXPECT_EQ(sizes_of("const __grid_constant__ TensorMap map, half h, int n"), (Sizes{0, 0, 4}));
    EXPECT_EQ(sizes_of("Pair<int, float> pair, int n"), (Sizes{0, 4})) << "a template's arguments are no sizes";
}

TEST(KernelParameters, ReadsPastComments) {
    EXPECT_EQ(sizes_of("float a,  // the factor, (not the divisor\n /* x, y, z */ float* x"), (Sizes{4, 8}));
    EXPECT_EQ(kernel_parameters("// f(int a)\n__global__ void f(double a) {}", "f"), Sizes{8});
}

TEST(KernelParameters, TakesTheDefinitionOfThatName) {
    std::string source =
        "__device__ int ff(int a) { return 1; }\nvoid f(int a);\n__global__ void f(int a, int b) { ff(3); }\n";
    EXPECT_EQ(kernel_parameters(source, "f"), (Sizes{4, 4}));
    EXPECT_EQ(kernel_parameters(source, "g"), std::nullopt);
    EXPECT_EQ(kernel_parameters("", "f"), std::nullopt);
}

TEST(KernelParameters, AreCountedInMachineCode) {
    std::string source =
        "struct alignas(64) Map { char bits[128]; };\n"
        "extern \"C\" __global__ void f(float* x, int n, char c, const __grid_constant__ Map map) { x[n] = c + "
        "map.bits[n]; }\n"
        "extern \"C\" __global__ void unused(float* x, long long n) {}\n"
        "extern \"C\" __global__ void none() {}\n";
    for (const char* arch : {"sm_80", "sm_90a", "sm_100a"}) {
        std::string cubin;
        try {
            cubin = compile_kernel({.source = source, .name = "counted.cu", .arch = arch}).cubin;
        } catch (const NvrtcMissing&) {
            GTEST_SKIP() << "NVRTC is not on this machine";
        }
        EXPECT_EQ(count_parameters(cubin, "f"), 4u) << arch;
        EXPECT_EQ(count_parameters(cubin, "unused"), 2u) << arch;
        EXPECT_EQ(count_parameters(cubin, "none"), 0u) << arch;
        EXPECT_EQ(count_parameters(cubin, "other"), std::nullopt) << arch;
        for (size_t size = 0; size < cubin.size(); size += 7) {
            auto count = count_parameters(std::string_view(cubin).substr(0, size), "f");
            EXPECT_TRUE(!count || *count == 4) << size;
        }
    }
    EXPECT_EQ(count_parameters("any bytes", "f"), std::nullopt);
}

TEST(KernelParameters, SurvivesAnyCut) {
    std::string source = "/* a */ __global__ void f(int a, // b\n Pair<int, int> p) { f(1) }";
    for (size_t size = 0; size < source.size(); ++size) {
        auto sizes = kernel_parameters(source.substr(0, size), "f");
        EXPECT_EQ(sizes.has_value(), size > source.find('{'));
    }
}

}  // namespace
}  // namespace tw
