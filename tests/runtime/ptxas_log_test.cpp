#include "runtime/compile/compile.h"
#include "tests/runtime/support.h"

namespace tw {
namespace {

// As NVRTC 13.0 wrote it for two kernels and a device function that was not inlined.
constexpr std::string_view LogOf13 = R"(k.cu(4): warning #177-D: variable "unused" was declared but never referenced

Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"

ptxas info    : 24 bytes gmem
ptxas info    : Compiling entry function 'spill' for 'sm_90a'
ptxas info    : Function properties for spill
ptxas         .     328 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 320 bytes cumulative stack size
ptxas info    : Compile time = 27.983 ms
ptxas info    : Compiling entry function 'saxpy' for 'sm_90a'
ptxas info    : Function properties for saxpy
ptxas         .     32 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 18 registers, used 2 barriers, 32 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compile time = 9.381 ms
ptxas info    : Function properties for _Z6helperf
ptxas         .     512 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
)";

// As NVRTC 12 writes it: constant banks, no compile time.
constexpr std::string_view LogOf12 = R"(ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'gemm' for 'sm_80'
ptxas info    : Function properties for gemm
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 255 registers, used 16 barriers, 49152 bytes smem, 400 bytes cmem[0], 16 bytes cmem[2]
)";

TEST(ParseResources, ReadsEachEntryFunction) {
    auto all = parse_resources(LogOf13);
    ASSERT_EQ(all.size(), 2u);
    EXPECT_EQ(all[0].entry, "spill");
    EXPECT_EQ(all[0].registers, 32);
    EXPECT_EQ(all[0].barriers, 1);
    EXPECT_EQ(all[0].stack_bytes, 328);
    EXPECT_EQ(all[0].spill_store_bytes, 12);
    EXPECT_EQ(all[0].spill_load_bytes, 16);
    EXPECT_EQ(all[0].static_shared_bytes, 0);
    EXPECT_EQ(all[1].entry, "saxpy");
    EXPECT_EQ(all[1].registers, 18);
    EXPECT_EQ(all[1].barriers, 2);
    EXPECT_EQ(all[1].static_shared_bytes, 1024);
    EXPECT_EQ(all[1].stack_bytes, 32) << "the helper's frame is not the kernel's";
}

TEST(ParseResources, AddsUpConstantBanks) {
    auto all = parse_resources(LogOf12);
    ASSERT_EQ(all.size(), 1u);
    EXPECT_EQ(all[0].registers, 255);
    EXPECT_EQ(all[0].barriers, 16);
    EXPECT_EQ(all[0].static_shared_bytes, 49152);
    EXPECT_EQ(all[0].constant_bytes, 416);
}

TEST(ParseResources, SurvivesAnyCutOfTheLog) {
    for (size_t size = 0; size <= LogOf13.size(); ++size) {
        auto all = parse_resources(LogOf13.substr(0, size));
        EXPECT_LE(all.size(), 2u);
        if (!all.empty() && size > LogOf13.find("27.983")) {
            EXPECT_EQ(all[0].registers, 32);
        }
    }
}

TEST(FatalWarnings, AreThoseOfThe7500s) {
    std::string slow =
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized";
    EXPECT_THAT(fatal_warnings(std::string(LogOf13) + slow + "\n"), testing::ElementsAre(slow));
    EXPECT_THAT(fatal_warnings(LogOf13), testing::IsEmpty());
}

TEST(RegisterAdvice, TellsWhatHelps) {
    EXPECT_EQ(register_advice(LogOf13), "");
    std::string one_instruction = register_advice(
        "ptxas info    : 0 bytes gmem\n"
        "ptxas fatal   : (C7602) Insufficient registers (128) to compile instruction at line 720 in function c_kernel. "
        "Try to compile with register target of 154 or higher.\n"
        "ptxas fatal   : Ptx assembly aborted due to errors\n");
    EXPECT_THAT(one_instruction, testing::HasSubstr("more registers than the 128 that each thread"));
    EXPECT_THAT(one_instruction, testing::HasSubstr("(ptxas wants 154)"));
    EXPECT_THAT(one_instruction, testing::HasSubstr("narrower"));
    for (const char* what : {"(C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
                             "insufficient register resources for the wgmma pipeline in the function 'c_kernel'",
                             "(C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
                             "insufficient register resources for the function 'c_kernel'"})
        EXPECT_THAT(register_advice(fmt::format("ptxas info    : {}\n", what)), testing::HasSubstr("registers(...)"));
    EXPECT_EQ(register_advice("ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
                              "serialized due to non wgmma instructions defining accumulator registers\n"),
              "");
}

TEST(ErrorContext, ShowsTheLinesAroundNumbered) {
    std::string source;
    for (int i = 1; i <= 20; ++i) source += fmt::format("line {}\n", i);
    EXPECT_EQ(error_context(source, "k.cu", "k.cu(7): error: bad\nk.cu(3): warning: dull\n", 1),
              "     6 | line 6\n>    7 | line 7\n     8 | line 8\n");
    EXPECT_EQ(error_context(source, "k.cu", "k.cu(2): error: bad\nk.cu(12): error: worse\n", 1),
              "     1 | line 1\n>    2 | line 2\n     3 | line 3\n   ...\n    11 | line 11\n>   12 | line 12\n    13 | "
              "line 13\n");
    EXPECT_EQ(error_context(source, "k.cu", "k.cu(4): error: a\nk.cu(5): error: b\n", 1),
              "     3 | line 3\n>    4 | line 4\n>    5 | line 5\n     6 | line 6\n");
    EXPECT_EQ(error_context(source, "k.cu", "k.cu(20): error: at the end\n", 1),
              "    19 | line 19\n>   20 | line 20\n");
    EXPECT_EQ(error_context(source, "k.cu", "other.cu(7): error: elsewhere\nk.cu(99): error: beyond\n"), "");
}

}  // namespace
}  // namespace tw
