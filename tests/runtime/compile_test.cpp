#include "runtime/compile/compile.h"

#include <chrono>
#include <thread>

#include "runtime/compile/cubin_cache.h"
#include "tests/runtime/support.h"

namespace tw {
namespace {

using testing::HasSubstr;

// Text that no run has compiled before.
std::string fresh(const std::string& source) { return fmt::format("// {:08x}\n{}", random_source()(), source); }

int fake_compilations() {
    static Nvrtc nvrtc = fake_nvrtc();
    return reinterpret_cast<int (*)()>(nvrtc.library.symbol("fake_nvrtc_compilations"))();
}

int fake_programs_alive() {
    static Nvrtc nvrtc = fake_nvrtc();
    return reinterpret_cast<int (*)()>(nvrtc.library.symbol("fake_nvrtc_alive"))();
}

const Nvrtc* real_nvrtc() {
    try {
        return &load_nvrtc();
    } catch (const NvrtcMissing&) {
        return nullptr;
    }
}

#define NEEDS_NVRTC() \
    if (!real_nvrtc()) GTEST_SKIP() << "NVRTC is not on this machine"

constexpr const char* Scale = R"(
extern "C" __global__ void scale(float a, float* x, long long n) {
    __shared__ float tile[512];
    long long i = blockIdx.x * 512LL + threadIdx.x;
    tile[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    if (i < n) x[i] = a * tile[511 - threadIdx.x];
}
)";

TEST(Compile, MakesACubinWithResources) {
    NEEDS_NVRTC();
    CompiledKernel kernel = compile_kernel({.source = fresh(Scale), .name = "scale.cu", .want_ptx = true});
    EXPECT_EQ(kernel.cubin.substr(0, 4),
              "\x7f"
              "ELF");
    EXPECT_THAT(kernel.ptx, HasSubstr(".target sm_90a"));
    EXPECT_EQ(kernel.from, CompiledBy::Nvrtc);
    EXPECT_GT(kernel.seconds, 0);
    EXPECT_EQ(kernel.resources.size(), 1u);
    EXPECT_EQ(kernel.of("scale").static_shared_bytes, 2048);
    EXPECT_EQ(kernel.of("scale").barriers, 1);
    EXPECT_GE(kernel.of("scale").registers, 8);
    EXPECT_LE(kernel.of("scale").registers, 64);
    EXPECT_EQ(kernel.of("scale").spill_store_bytes, 0);
}

TEST(Compile, KnowsEachArchitecture) {
    NEEDS_NVRTC();
    for (const char* arch : {"sm_80", "sm_90a"}) {
        CompiledKernel kernel = compile_kernel({.source = fresh(Scale), .arch = arch, .want_ptx = true});
        EXPECT_THAT(kernel.ptx, HasSubstr(std::string(".target ") + arch));
    }
}

TEST(Compile, SeesSpills) {
    NEEDS_NVRTC();
    std::string source = fresh(R"(
extern "C" __global__ __launch_bounds__(1024, 2) void spill(float* y) {
    float r[64];
    #pragma unroll
    for (int i = 0; i < 64; ++i) r[i] = y[i * 1024 + threadIdx.x];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 64; ++i) y[(63 - i) * 1024 + threadIdx.x] = r[i] * r[(i * 7) % 64];
})");
    auto kernel = compile_kernel({.source = source});
    EXPECT_GT(kernel.of("spill").spill_store_bytes, 0);
    EXPECT_GT(kernel.of("spill").spill_load_bytes, 0);
}

// NVRTC's own cache, which a driver brings, would give the second one without ptxas' log.
TEST(Compile, TheSameKernelInOtherTextHasResourcesToo) {
    NEEDS_NVRTC();
    for (int i = 0; i < 3; ++i)
        EXPECT_GE(compile_kernel({.source = fresh(Scale), .use_disk = false}).of("scale").registers, 8);
}

TEST(Compile, DoesNotContractMultiplyAdds) {
    NEEDS_NVRTC();
    std::string source = fresh("extern \"C\" __global__ void f(float* x) { x[0] = x[1] * x[2] + x[3]; }\n");
    EXPECT_THAT(compile_kernel({.source = source, .want_ptx = true}).ptx, testing::Not(HasSubstr("fma")));
    EXPECT_THAT(compile_kernel({.source = source, .options = {"--fmad=true"}, .want_ptx = true}).ptx, HasSubstr("fma"));
}

TEST(Compile, ARefusalShowsTheNumberedLines) {
    NEEDS_NVRTC();
    std::string source = "// one\n// two\nextern \"C\" __global__ void f(int* x) {\n    x[0] = nowhere;\n}\n";
    auto compile = [&] { compile_kernel({.source = source, .name = "broken.cu"}); };
    EXPECT_ERROR(compile(), "broken.cu(4): error: identifier \"nowhere\" is undefined");
    EXPECT_ERROR(compile(),
                 "     3 | extern \"C\" __global__ void f(int* x) {\n>    4 |     x[0] = nowhere;\n     5 | }\n");
    EXPECT_THROW(compile(), CompileError);
}

TEST(Compile, AWrongTargetShowsLibraryAndOptions) {
    NEEDS_NVRTC();
    auto compile = [] { compile_kernel({.source = fresh(Scale), .arch = "sm_999"}); };
    EXPECT_ERROR(compile(), "invalid value for --gpu-architecture");
    EXPECT_ERROR(compile(), "options: --gpu-architecture=sm_999 --fmad=false");
    EXPECT_ERROR(compile(), real_nvrtc()->library.path);
}

TEST(Compile, MeetsTheBarsOfMemoAndDisk) {
    NEEDS_NVRTC();
    CompileRequest request{.source = fresh(Scale)};
    CompiledKernel cold = compile_kernel(request);
    double memo = 1, disk = 1;  // the best of five: another process may take the processor
    for (int i = 0; i < 5; ++i) {
        CompiledKernel again = compile_kernel(request);
        EXPECT_EQ(again.from, CompiledBy::Memo);
        memo = std::min(memo, again.seconds);
        clear_compile_memo();
        again = compile_kernel(request);
        EXPECT_EQ(again.from, CompiledBy::Disk);
        EXPECT_EQ(again.cubin, cold.cubin);
        EXPECT_EQ(again.log, cold.log);
        EXPECT_EQ(again.of("scale").registers, cold.of("scale").registers);
        EXPECT_EQ(again.nvrtc_seconds, cold.nvrtc_seconds);
        disk = std::min(disk, again.seconds);
    }
    RecordProperty("cold_microseconds", int(cold.seconds * 1e6));
    RecordProperty("disk_microseconds", int(disk * 1e6));
    RecordProperty("memo_microseconds", int(memo * 1e6));
    fmt::print("cold {:.1f} ms, disk {:.3f} ms, memo {:.4f} ms\n", cold.seconds * 1e3, disk * 1e3, memo * 1e3);
    EXPECT_LE(memo, 1e-3);
    EXPECT_LE(disk, 5e-3);
}

// From here on with the fake NVRTC.

TEST(CompileKey, IsTheWholeRequest) {
    Nvrtc nvrtc = fake_nvrtc();
    CompileRequest base{.source = fresh(Scale), .use_disk = false};
    compile_kernel(base, nvrtc);
    auto is_new = [&](auto change) {
        CompileRequest request = base;
        change(request);
        return compile_kernel(request, nvrtc).from == CompiledBy::Nvrtc;
    };
    EXPECT_FALSE(is_new([](CompileRequest&) {}));
    EXPECT_TRUE(is_new([](CompileRequest& r) { r.source += " "; }));
    EXPECT_TRUE(is_new([](CompileRequest& r) { r.arch = "sm_80"; }));
    EXPECT_TRUE(is_new([](CompileRequest& r) { r.options = {"-a b"}; }));
    EXPECT_TRUE(is_new([](CompileRequest& r) { r.options = {"-a", "b"}; }));
    EXPECT_TRUE(is_new([](CompileRequest& r) { r.want_ptx = true; }));
    nvrtc.identity = "99.2";
    EXPECT_TRUE(is_new([](CompileRequest&) {}));
}

TEST(CompileKey, AnEntryOfAnotherCompilerIsNotTaken) {
    Nvrtc nvrtc = fake_nvrtc();
    CompileRequest request{.source = fresh(Scale)};
    EXPECT_EQ(compile_kernel(request, nvrtc).from, CompiledBy::Nvrtc);
    clear_compile_memo();
    EXPECT_EQ(compile_kernel(request, nvrtc).from, CompiledBy::Disk);
    clear_compile_memo();
    nvrtc.identity = "99.2";
    EXPECT_EQ(compile_kernel(request, nvrtc).from, CompiledBy::Nvrtc);
}

TEST(CompileMemo, ManyThreadsCompileOnce) {
    Nvrtc nvrtc = fake_nvrtc();
    CompileRequest request{.source = fresh(Scale), .use_disk = false};
    int before = fake_compilations();
    std::vector<std::jthread> threads;
    std::atomic<int> num_new = 0, num_right = 0;
    for (int i = 0; i < 8; ++i)
        threads.emplace_back([&] {
            CompiledKernel kernel = compile_kernel(request, nvrtc);
            num_new += kernel.from == CompiledBy::Nvrtc;
            num_right += kernel.cubin == "CUBIN " + request.source;
        });
    threads.clear();
    EXPECT_EQ(fake_compilations() - before, 1);
    EXPECT_EQ(num_new, 1);
    EXPECT_EQ(num_right, 8);
}

TEST(CompileMemo, AFailureReachesEveryThreadAndIsNotKept) {
    Nvrtc nvrtc = fake_nvrtc();
    CompileRequest request{.source = fresh("@error"), .use_disk = false};
    std::atomic<int> num_errors = 0;
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i)
        threads.emplace_back([&] {
            try {
                compile_kernel(request, nvrtc);
            } catch (const CompileError&) {
                ++num_errors;
            }
        });
    threads.clear();
    EXPECT_EQ(num_errors, 4);
    int before = fake_compilations();
    EXPECT_THROW(compile_kernel(request, nvrtc), CompileError);
    EXPECT_EQ(fake_compilations() - before, 1);
}

TEST(CompileAll, GivesEachRequestItsOutcome) {
    NEEDS_NVRTC();
    std::vector<CompileRequest> requests(5);
    for (size_t i = 0; i < requests.size(); ++i) {
        requests[i].source = fresh(fmt::format("extern \"C\" __global__ void k{}(int* x) {{ *x = {}; }}", i, i));
        requests[i].use_disk = false;
    }
    requests[3].source = fresh("this is no CUDA");
    auto outcomes = compile_all(requests, 3);
    ASSERT_EQ(outcomes.size(), 5u);
    for (size_t i : {0, 1, 2, 4}) EXPECT_GE(outcomes[i].get().of(fmt::format("k{}", i)).registers, 1);
    EXPECT_THROW(outcomes[3].get(), CompileError);
    EXPECT_THAT(compile_all({}), testing::IsEmpty());
}

TEST(CompileErrors, AreReadable) {
    Nvrtc nvrtc = fake_nvrtc();
    auto compile = [&](const std::string& source) { compile_kernel({.source = source, .use_disk = false}, nvrtc); };
    EXPECT_ERROR(compile("@create"), "kernel.cu: nvrtcCreateProgram: NVRTC_ERROR_OUT_OF_MEMORY");
    EXPECT_ERROR(compile("@log"), "nvrtcGetProgramLog: NVRTC_ERROR_INTERNAL_ERROR");
    EXPECT_ERROR(compile("@cubin"), "nvrtcGetCUBIN: NVRTC_ERROR_INTERNAL_ERROR");
    EXPECT_ERROR(compile("a\n@error\nb"), "for sm_90a: NVRTC_ERROR_COMPILATION\nkernel.cu(2): error: this is wrong\n");
    EXPECT_ERROR(compile("a\n@error\nb"), "     1 | a\n>    2 | @error\n     3 | b\n");
    EXPECT_ERROR(compile("@option"), "options: --gpu-architecture=sm_90a");
    EXPECT_ERROR(compile("@builtins"),
                 "failed to open libnvrtc-builtins.so.99.1.\nNVRTC needs libnvrtc-builtins of the same");
    EXPECT_ERROR(compile("@slow"),
                 "which counts as an error:\nptxas info    : (C7510) Potential Performance Loss: wgmma");
    EXPECT_EQ(fake_programs_alive(), 0);
}

TEST(CompiledKernel, NamesItsEntriesWhenAskedForAnother) {
    CompiledKernel kernel = compile_kernel({.source = fresh(Scale), .use_disk = false}, fake_nvrtc());
    EXPECT_EQ(kernel.of("scale").registers, 24);
    EXPECT_ERROR(kernel.of("scalar"), "there is no entry function 'scalar', only [scale]; is it extern \"C\"");
}

TEST(CompiledKernel, SaysWhereItCameFrom) {
    EXPECT_EQ(to_string(CompiledBy::Nvrtc), "nvrtc");
    EXPECT_EQ(to_string(CompiledBy::Memo), "memo");
    EXPECT_EQ(to_string(CompiledBy::Disk), "disk");
}

TEST(CompileDisk, ADamagedPayloadIsCompiledAgain) {
    Nvrtc nvrtc = fake_nvrtc();
    CompileRequest request{.source = fresh(Scale)};
    CompiledKernel first = compile_kernel(request, nvrtc);
    for (const CacheEntry& entry : cubin_cache().list()) {
        if (entry.key.find(request.source) == std::string::npos) continue;
        // Whole by its checksum, and yet no payload: written by a version with another payload, say.
        ASSERT_TRUE(cubin_cache().store(entry.key, random_bytes(random_source()() % 64)));
    }
    clear_compile_memo();
    CompiledKernel again = compile_kernel(request, nvrtc);
    EXPECT_EQ(again.from, CompiledBy::Nvrtc);
    EXPECT_EQ(again.cubin, first.cubin);
}

}  // namespace
}  // namespace tw
