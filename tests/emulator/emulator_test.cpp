// Each kind of finding, provoked by a kernel of a few lines; and kernels that look suspicious but are right.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/emulator/small_kernels.h"
#include "tests/support/expect_error.h"

namespace tw::emulator {
namespace {

TEST(Run, ComputesAndCounts) {
    Case one{.body = "out[blockIdx.x * blockDim.x + t] = in[blockIdx.x * blockDim.x + t] + n;", .blocks = 4};
    Report report = one.run();
    EXPECT_TRUE(report.ok());
    EXPECT_EQ(report.accesses, 512u);
    for (int i = 0; i < 256; ++i) EXPECT_EQ(one.out[size_t(i)], i + 256);
}

TEST(Run, RegistersThatNobodyWroteHoldAPattern) {
    Case one{.body = "int r[4];\nif (n < 0) r[t & 3] = 1;\nout[t] = r[t & 3];"};
    EXPECT_TRUE(one.run().ok());
    for (size_t t = 0; t < one.threads; ++t) EXPECT_TRUE(one.out[t] != 0 && one.out[t] == one.out[0]) << one.out[t];
}

TEST(Run, IsTheSameForTheSameSeed) {
    Case one{.body = "tw::atomic_add(out, 1);\nout[t] = 1;"};
    EXPECT_EQ(one.run({.seed = 3}).findings[0].message, one.run({.seed = 3}).findings[0].message);
}

TEST(Race, OfWriteAndReadNamesBothLines) {
    expect_finding({.body = "shared[t] = t;\nout[t] = shared[t ^ 1];"}, Kind::Race, 0,
                   "race on shared memory at byte ");
    Report report = Case{.body = "if (t == 0) shared[3] = t;\nif (t == 40) out[t] = shared[3];"}.run();
    ASSERT_FALSE(report.ok());
    const std::string& message = find(report, Kind::Race)->message;
    bool read_first = message.find("read them") != std::string::npos;
    EXPECT_EQ(message, read_first
                           ? "race on shared memory at byte 12: thread (0,0,0) of block (0,0,0) writes 4 bytes at "
                             "k.cu:4, thread (40,0,0) read them at k.cu:5 with no barrier between\n"
                             "    k.cu:4: if (t == 0) shared[3] = t;\n"
                             "    k.cu:5: if (t == 40) out[t] = shared[3];"
                           : "race on shared memory at byte 12: thread (40,0,0) of block (0,0,0) reads 4 bytes at "
                             "k.cu:5, thread (0,0,0) wrote them at k.cu:4 with no barrier between\n"
                             "    k.cu:5: if (t == 40) out[t] = shared[3];\n"
                             "    k.cu:4: if (t == 0) shared[3] = t;");
}

TEST(Race, OfTwoWrites) { expect_finding({.body = "out[t / 2] = t;"}, Kind::Race, 4, "'out' at byte "); }

TEST(Race, OfAnyReaderAmongMany) {
    // All threads of the warps read; those of one warp are ordered before the write, the others are not.
    expect_finding({.body = "if (t == 0) shared[0] = 1;\n__syncthreads();\nout[t] = shared[0];\n__syncwarp();\n"
                            "if (t == 0) shared[0] = 2;"},
                   Kind::Race, 0, "race on shared memory at byte 0");
}

TEST(Race, OfBlocks) {
    expect_finding({.body = "if (t == 0) out[0] = blockIdx.x;", .blocks = 2}, Kind::Race, 4,
                   "and nothing orders blocks");
    expect_finding({.body = "if (blockIdx.x == 0) out[t] = 0;\nelse if (t == 5) out[100] = out[t];", .blocks = 2},
                   Kind::Race, 0, "'out' at byte 20");
}

TEST(Race, OfNeighbouringBytesIsNone) {
    expect_silence(
        {.body = "((unsigned char*)shared)[t] = t;\n__syncthreads();\nout[t] = ((unsigned char*)shared)[t ^ 1];"});
    expect_silence({.body = "((short*)shared)[t] = t;\n__syncthreads();\nif (t < 32) out[t] = shared[t];"});
    expect_finding({.body = "((short*)shared)[t / 2 * 2] = t;"}, Kind::Race, 4, "race on shared memory at byte ");
}

TEST(Race, BetweenNamedBarriersOfOtherThreads) {
    const std::string halves = "const int half = t / 32;\nshared[t] = t;\ntw::barrier_sync(1 + half, 32);\n";
    expect_silence({.body = halves + "out[t] = shared[half * 32 + (t + 1) % 32];"});
    expect_finding({.body = halves + "out[t] = shared[t ^ 32];"}, Kind::Race, 0, "race on shared memory");
}

TEST(Race, SyncwarpOrdersTheWarpAlone) {
    expect_silence({.body = "shared[t] = t;\n__syncwarp();\nout[t] = shared[t ^ 1];"});
    expect_finding({.body = "shared[t] = t;\n__syncwarp();\nout[t] = shared[t ^ 32];"}, Kind::Race, 0,
                   "race on shared");
}

TEST(Race, OfAtomicsIsNone) {
    Case zeroed{.body =
                    "if (t == 0) shared[0] = 0;\n__syncthreads();\ntw::atomic_add(shared, 1);\n__syncthreads();\n"
                    "if (t == 0) out[0] = shared[0];"};
    expect_silence(zeroed);
    zeroed.run();
    EXPECT_EQ(zeroed.out[0], 64);
    expect_finding(
        {.body = "if (t == 0) shared[0] = 0;\n__syncthreads();\ntw::atomic_add(shared, 1);\nout[t] = shared[0];"},
        Kind::Race, 0, "atomically update");
}

TEST(Uninitialised, SharedAndGlobal) {
    expect_finding({.body = "out[t] = shared[t];"}, Kind::Uninitialised, 4,
                   "of shared memory, where nothing was written before");
    expect_finding({.body = "out[t] = out[t + 64];"}, Kind::Uninitialised, 4, "of 'out'");
    expect_finding({.body = "out[t] = in[t];", .in_initialised = false}, Kind::Uninitialised, 4, "of 'in'");
}

TEST(Uninitialised, SharedMemoryOfTheBlockBefore) {
    expect_finding(
        {.body = "if (blockIdx.x == 0) shared[t] = t;\n__syncthreads();\nif (blockIdx.x == 1) out[t] = shared[t];",
         .blocks = 2},
        Kind::Uninitialised, 6, "of block (1,0,0)");
}

TEST(ArraysInTurn, BeginUnwrittenBehindAllAccessesBefore) {
    const std::string before = "shared[t] = t;\n__syncthreads();\nout[t] = shared[t ^ 1];\n",
                      met = before + "__syncthreads();\ntw::begin_array(shared, 256);\n";
    expect_silence({.body = met + "shared[t] = 2 * t;\n__syncthreads();\nout[t + 64] = shared[t ^ 1];"});
    expect_finding({.body = met + "out[t + 64] = shared[t];"}, Kind::Uninitialised, 9, "of shared memory");
    expect_finding({.body = met + "shared[t] = 2 * t;\nout[t + 64] = shared[t ^ 1];"}, Kind::Race, 0, "race on shared");
}

/// A race, or what was there is gone when another thread reads it: as they take turns.
TEST(ArraysInTurn, DoNotBeginWhileOthersReadWhatWasThere) {
    Case early{.body =
                   "shared[t] = t;\n__syncthreads();\nout[t] = shared[t ^ 1];\ntw::begin_array(shared, 256);\n"
                   "shared[t] = 0;"};
    for (uint64_t seed = 0; seed < 8; ++seed) {
        const Report report = early.run({.seed = seed});
        EXPECT_TRUE(find(report, Kind::Race) || find(report, Kind::Uninitialised)) << all_messages(report);
    }
}

TEST(ArraysInTurn, BeginOnceForAllThreadsEachTime) {
    auto twice = [](const std::string& fill) {
        return "for (int i = 0; i < 2; ++i) {\n__syncthreads();\ntw::begin_array(shared, 254);\n" + fill +
               "\n__syncthreads();\nout[t] = shared[t ^ 1];\n}";
    };
    expect_silence({.body = twice("shared[t] = t + i;")});
    expect_finding({.body = twice("if (i == 0) shared[t] = t;")}, Kind::Uninitialised, 9, "of shared memory");
}

TEST(OutOfBounds, NamesTheRegionAndTheDistance) {
    expect_finding({.body = "out[t + 193] = 0;"}, Kind::OutOfBounds, 4, "0 bytes past the end of 'out' of 1024 bytes");
    expect_finding({.body = "out[t] = in[t - 1];"}, Kind::OutOfBounds, 4, "reads 4 bytes at ");
    expect_finding({.body = "shared[t + 200] = 0;"}, Kind::OutOfBounds, 4, "of shared memory, which has 1024 bytes");
    expect_finding({.body = "int four[4];\ntw::load<4>(four, in + 256);\nout[t] = four[0];"}, Kind::OutOfBounds, 5,
                   "'in'");
    expect_finding({.body = "out[t] = *(int*)8;"}, Kind::OutOfBounds, 4, "address 0x8");
}

TEST(OutOfBounds, AlsoOfReadsThatALaterConditionMakesUseless) {
    expect_finding({.body = "int v;\nif (t < 50) v = in[t];\nif (in[t + 240] > 0 && t < 50) out[t] = v;"},
                   Kind::OutOfBounds, 6, "past the end of 'in'");
}

TEST(OutOfBounds, ConstantsOfTheKernelMayBeRead) {
    expect_silence({.body = "static const int table[4] = {3, 1, 4, 1};\nout[t] = table[in[t] % 4];"});
}

TEST(ReadOnly, IsAFindingAndChangesNothing) {
    Case one{.body = "((int*)in)[t] = -7;"};
    expect_finding(one, Kind::ReadOnly, 4, "writes 4 bytes at byte ");
    one.run();
    EXPECT_EQ(one.in[5], 5);
}

TEST(Deadlock, SaysWhoWaitsWhere) {
    expect_finding({.body = "tw::barrier_sync(1 + t / 32, 64);"}, Kind::Deadlock, 4,
                   "and 31 more wait in barrier 1 (64 threads) at k.cu:4");
    expect_finding({.body = "if (t < 32) __syncthreads();\nelse tw::barrier_sync(3, 64);"}, Kind::Deadlock, 0,
                   "in __syncthreads at k.cu:4");
}

TEST(Divergence, OfBarrierAndExit) {
    expect_finding({.body = "if (t < 3) return;\n__syncthreads();"}, Kind::Divergence, 5, "__syncthreads");
}

TEST(Divergence, OfWarps) {
    expect_finding({.body = "if (t % 2) __syncwarp();\nelse out[t] = tw::shuffle_xor(t, 1);"}, Kind::Divergence, 0,
                   "of the same warp");
    expect_finding({.body = "if (t % 2) out[t] = tw::shuffle_xor(t, 1);"}, Kind::Divergence, 4, "a shuffle");
    expect_finding({.body = "if (t < 40) __syncthreads();\nelse out[t] = tw::shuffle_xor(t, 1);"}, Kind::Divergence, 0,
                   "in a shuffle at k.cu:5");
}

TEST(Divergence, OfThreadsAtABarrier) {
    const std::string first = "if (t < 32) tw::barrier_sync(1, 32);\n",
                      second = "if (t >= 32) tw::barrier_sync(1, 32);\n";
    expect_silence({.body = first + "__syncthreads();\n" + second});
    expect_finding({.body = "tw::barrier_sync(1, 32);"}, Kind::Divergence, 4, "nothing in between orders them");
    expect_finding({.body = first + second}, Kind::Divergence, 0, "uses barrier 1 at k.cu");
}

/// Who only arrives passes on what it has done, and learns nothing.
TEST(Race, BetweenThreadsThatArrive) {
    const std::string handed = "if (t < 32) { shared[t] = t; tw::barrier_arrive(1, 64); }\n";
    expect_silence({.body = handed + "else { tw::barrier_sync(1, 64); out[t] = shared[t - 32]; }"});
    expect_finding({.body = handed + "else out[t] = shared[t - 32];"}, Kind::Race, 0, "race on shared memory");
    expect_finding({.body = "if (t < 32) { tw::barrier_arrive(1, 64); out[t] = shared[t]; }\n"
                            "else { shared[t - 32] = t; tw::barrier_sync(1, 64); }"},
                   Kind::Race, 0, "race on shared memory");
}

TEST(Divergence, OfArrivals) {
    const std::string wait = "if (t >= 32) tw::barrier_sync(1, 64);\n",
                      arrive = "if (t < 32) tw::barrier_arrive(1, 64);\n";
    expect_silence({.body = arrive + wait});
    expect_silence(
        {.body = "for (int i = 0; i < 3; ++i) { if (t < 32) { tw::barrier_arrive(1, 64); tw::barrier_sync(2, 64); "
                 "}\nelse { tw::barrier_sync(1, 64); tw::barrier_arrive(2, 64); } }"});
    expect_finding({.body = arrive}, Kind::Divergence, 0, "32 threads have come to barrier 1");
    expect_finding({.body = arrive + arrive + wait}, Kind::Divergence, 0, "has come there at k.cu:4");
    expect_finding({.body = "tw::barrier_arrive(1, 64);"}, Kind::Divergence, 4, "none of which waits there");
    expect_finding({.body = wait}, Kind::Deadlock, 0, "barrier 1 (64 threads)");
    expect_finding({.body = "if (t < 32) tw::barrier_arrive(1, 32);\nelse tw::barrier_sync(1, 64);"}, Kind::Divergence,
                   0, "");
    expect_finding({.body = "tw::barrier_arrive(0, 64);"}, Kind::Divergence, 4, "barriers are 1 to 15");
}

TEST(Divergence, OfCountsAtABarrier) {
    expect_finding({.body = "tw::barrier_sync(1, t < 32 ? 64 : 32);"}, Kind::Divergence, 4, "for 64");
    expect_finding({.body = "tw::barrier_sync(1, 33);"}, Kind::Divergence, 4, "threads whole warps");
}

TEST(Shuffle, MovesValuesAndOrdersNothing) {
    Case one{.body = "out[t] = tw::shuffle_xor(t, 1);"};
    expect_silence(one);
    one.run();
    EXPECT_EQ(one.out[6], 7);
    expect_finding({.body = "shared[t] = t;\nout[t] = tw::shuffle_xor(t, 1) + shared[t ^ 1];"}, Kind::Race, 0,
                   "race on shared memory");
}

TEST(Overflow, IsCaughtAtItsLine) {
    expect_finding({.body = "out[t] = n * 100000000;"}, Kind::Overflow, 4, "computes an integer beyond its type");
    expect_finding({.body = "out[t] = 1 << (n - 200);"}, Kind::Overflow, 4, "at k.cu:4");
}

TEST(Misaligned, WideAccesses) {
    expect_finding({.body = "int two[2];\ntw::load<2>(two, in + 1);\nout[t] = two[0];"}, Kind::Misaligned, 5,
                   "reads 8 bytes at byte 4 of 'in', no multiple of 8,");
}

TEST(StepLimit, EndsLoops) {
    Case endless{.body = "while (true) out[t] = in[t];"};
    Report by_steps = endless.run({.step_limit = 1000});
    ASSERT_FALSE(by_steps.ok());
    EXPECT_THAT(by_steps.findings[0].message, HasSubstr("1000 steps did not end the launch"));
    Report by_time = endless.run({.seconds_limit = 0.1});
    ASSERT_FALSE(by_time.ok());
    EXPECT_EQ(by_time.findings[0].kind, Kind::StepLimit);
    EXPECT_LT(by_time.seconds, 5);
}

TEST(StepLimit, EndsLoopsOfBarriers) {
    Case endless{.body = "while (n > 0) __syncthreads();\nout[t] = n;"};
    for (Options options : {Options{.step_limit = 1000}, Options{.seconds_limit = 0.2}}) {
        Report report = endless.run(options);
        ASSERT_EQ(report.findings.size(), 1u);
        EXPECT_EQ(report.findings[0].kind, Kind::StepLimit) << report.findings[0].message;
        EXPECT_EQ(report.accesses, 0u);
    }
}

TEST(StepLimit, EndsLoopsWithoutAccesses) {
    Report report =
        Case{.body = "int i = n;\nwhile (i != 7) i = (i & 0xffff) | 64;\nout[t] = i;"}.run({.seconds_limit = 0.2});
    ASSERT_FALSE(report.ok());
    EXPECT_EQ(report.findings[0].kind, Kind::StepLimit) << report.findings[0].message;
    EXPECT_EQ(report.findings[0].line, 5) << report.findings[0].message;
}

TEST(Crash, IsAFindingOfTheThread) {
    expect_finding({.body = "out[t] = t / (n - 256);"}, Kind::Crash, 4, "divides by zero");
    expect_finding({.body = "volatile char big[600000];\nbig[n] = 1;\nout[t] = big[n];"}, Kind::Crash, 0, "more stack");
    Case after{.body = "out[t] = t;"};
    EXPECT_TRUE(after.run().ok());
}

TEST(Findings, TellTheNotesOfTheirLines) {
    Case one{.body = "out[300 + t] = 0;"};
    int *out_pointer, *in_pointer;
    Launch launch = one.launch(&out_pointer, &in_pointer);
    Report report = run(*compiled(one.text(), {"", "", "", "[store out]"}), launch);
    ASSERT_FALSE(report.ok());
    EXPECT_THAT(report.findings[0].message, HasSubstr("k.cu:4 [store out]"));
}

TEST(Findings, AreDifferentOnesAndFew) {
    Report report = Case{.body = "out[t] = shared[t];\nout[t] += shared[t + 64];"}.run();
    EXPECT_EQ(report.findings.size(), 2u);
}

TEST(Options, WithoutChecksKernelsJustRun) {
    Case one{.body = "out[t] = shared[t ^ 1];"};
    EXPECT_TRUE(one.run({.check = false}).ok());
}

TEST(Statistics, BankConflictsAndSectors) {
    Case one{.body = "shared[t * 2 % 256] = t;\n__syncthreads();\nout[t * 4 % 256] = in[t];", .threads = 32};
    Statistics s = one.run({.statistics = true}).statistics;
    EXPECT_EQ(s.shared_requests, 1u);
    EXPECT_EQ(s.shared_wavefronts, 2u);
    EXPECT_EQ(s.shared_bank_conflicts, 1u);
    ASSERT_EQ(s.sites.size(), 3u);
    EXPECT_EQ(s.sites[0].line, 4);
    for (const auto& site : s.sites) {
        // One more where the vector's memory begins within a sector.
        EXPECT_NEAR(double(site.sectors),
                    site.memory == "in"    ? 4.5
                    : site.memory == "out" ? 16.5
                                           : 0,
                    0.5)
            << site.memory;
    }
}

TEST(Isolated, GivesBackReportAndMemory) {
    Case one{.body = "out[t] = in[t] * 2;"};
    int *out_pointer, *in_pointer;
    Launch launch = one.launch(&out_pointer, &in_pointer);
    Report report = run_isolated(*compiled(one.text()), launch, {.statistics = true});
    EXPECT_TRUE(report.ok());
    EXPECT_EQ(one.out[9], 18);
    EXPECT_EQ(report.statistics.sites.size(), 2u);
}

TEST(Isolated, OutlivesAnything) {
    Case one{.body = "if (t == 3) __builtin_trap();\nout[t] = 300 + in[(t * 64) % 256 + 300];"};
    int *out_pointer, *in_pointer;
    Launch launch = one.launch(&out_pointer, &in_pointer);
    EXPECT_FALSE(run_isolated(*compiled(one.text()), launch).ok());
}

TEST(Compile, ManyKernelsTogether) {
    auto text = [](int value) {
        return fmt::format(
            "namespace tw {{ inline int answer() {{ return {}; }} }}\n"
            "extern \"C\" __global__ void __launch_bounds__(32) k(int* out) {{ out[threadIdx.x] = tw::answer(); }}",
            value);
    };
    std::vector<Source> sources = {{"k", text(1), {}}, {"k", text(2), {}}};
    auto modules = compile_together(sources);
    ASSERT_EQ(modules.size(), 2u);
    std::vector<int> out(32);
    int* pointer = out.data();
    Launch launch{
        .kernel = "k", .threads = 32, .arguments = {&pointer}, .regions = {{pointer, 128, "out", true, false}}};
    EXPECT_TRUE(run(*modules[0], launch).ok());
    EXPECT_EQ(out[0], 1);
    EXPECT_TRUE(run(*modules[1], launch).ok());
    EXPECT_EQ(out[31], 2);
    EXPECT_EQ(compile({&sources[1], 1}), modules[1]) << "is remembered";
    sources.insert(sources.begin() + 1, {"k", text(3), {}});
    auto more = compile_together(sources);
    EXPECT_EQ(more[0], modules[0]);
    EXPECT_EQ(more[2], modules[1]);
    EXPECT_TRUE(run(*more[1], launch).ok());
    EXPECT_EQ(out[7], 3);
    EXPECT_EQ(compile_together(sources), more);
}

TEST(Compile, KernelsMayBeCalledAsLibraryFunctions) {
    Source source{"exp",
                  "extern \"C\" __global__ void __launch_bounds__(32) exp(float* x) { x[threadIdx.x] = "
                  "tw::sqrt(x[threadIdx.x]); }",
                  {}};
    std::vector<float> x(32, 9.0f);
    float* pointer = x.data();
    EXPECT_TRUE(run(*compile({&source, 1}),
                    {.kernel = "exp", .threads = 32, .arguments = {&pointer}, .regions = {{pointer, 128, "x"}}})
                    .ok());
    EXPECT_EQ(x[0], 3.0f);
}

/// Sets a variable of the environment until the end of the scope.
struct Setting {
    Setting(const char* name, const char* value) : name(name) {
        if (const char* known = std::getenv(name)) before = known;
        setenv(name, value, 1);
    }
    ~Setting() { before.empty() ? unsetenv(name) : setenv(name, before.c_str(), 1); }
    const char* name;
    std::string before;
};

TEST(Errors, OfTheCompilerShowTheLines) {
    EXPECT_ERROR(compiled("int a;\nint b = \"text\";\nint c;\n"), "k.cu:2:");
    EXPECT_ERROR(compiled("int a;\nint b = \"text\";\nint c;\n"), ">    2 | int b = \"text\";");
}

TEST(Errors, OfLinkingAndLoading) {
    // A 32-bit address, which a shared object cannot have.
    EXPECT_ERROR(compiled("asm(\".data\\n.long tw_current\");\nextern \"C\" __global__ void k() {}"),
                 "k cannot be linked");
    EXPECT_ERROR(compiled("extern \"C\" void nowhere();\nextern \"C\" __global__ void k() { nowhere(); }"), "nowhere");
}

TEST(Errors, NameTheCompilersTried) {
    Setting setting("TW_HOST_CXX", "/nowhere/g++");
    EXPECT_ERROR(compiled("// never compiled\n"), "tried /nowhere/g++ ($TW_HOST_CXX)");
}

TEST(HostCompilers, GetFlagsOfTheEnvironment) {
    const std::string text = "#ifndef MORE\n#error no more\n#endif\nextern \"C\" __global__ void k() {}";
    {
        Setting setting("TW_HOST_CXXFLAGS", "-O0 -DMORE=1");
        EXPECT_NO_THROW(compiled(text));
    }
    EXPECT_ERROR(compiled(text), "no more");  // known with other flags only
}

/// A program that says of itself that it compiles C++. What is known of one by its name holds for no other.
struct Pretender {
    std::string path;
    Pretender(const std::string& name, const std::string& rest)
        : path(testing::TempDir() + fmt::format("tw-{}-{}", name, getpid())) {
        std::ofstream(path) << "#!/bin/sh\ncase \"$*\" in *\" -E \"*) echo '#define __cplusplus 1';; esac\n" << rest;
        chmod(path.c_str(), 0700);
    }
    ~Pretender() { unlink(path.c_str()); }
};

TEST(Errors, NameWhatIsNoCompiler) {
    {
        Setting setting("TW_HOST_CXX", "/bin/true");
        EXPECT_ERROR(compiled("// never compiled by it\n"), "tried /bin/true ($TW_HOST_CXX), which compiles no C++");
    }
    Pretender idle("idle", "");
    Setting setting("TW_HOST_CXX", idle.path.c_str());
    EXPECT_ERROR(compiled("// nor by that\n"), "has linked k without a complaint, but left no library");
}

TEST(HostCompilers, AreNotAskedAgainByForkedProcesses) {
    const std::string questions = testing::TempDir() + fmt::format("tw-questions-{}", getpid());
    Pretender asked("asked",
                    fmt::format("case \"$*\" in *\" -E \"*) echo asked >> '{}';; esac\nexec c++ \"$@\"\n", questions));
    Setting setting("TW_HOST_CXX", asked.path.c_str());
    ask_host_compiler();
    const auto before = std::filesystem::file_size(questions);
    const pid_t child = fork();
    if (child == 0) {
        try {
            compiled("// by a process of its own\nextern \"C\" __global__ void k() {}");
            _exit(0);
        } catch (const std::exception& error) {
            fmt::print(stderr, "{}\n", error.what());
            _exit(1);
        }
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_GT(before, 0u);
    EXPECT_EQ(std::filesystem::file_size(questions), before);
    unlink(questions.c_str());
}

TEST(HostCompilers, ThatAreMissingAreNoErrorBeforeACompilation) {
    Setting setting("TW_HOST_CXX", "/nowhere/g++");
    EXPECT_NO_THROW(ask_host_compiler());
}

/// All of these tests once more.
TEST(HostCompilers, ClangDoesAsWell) {
    if (std::system("clang++ --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "clang++ is not on this machine";
    Setting setting("TW_HOST_CXX", "clang++");
    std::string all = fmt::format("'{}' --gtest_filter='-HostCompilers.*:Scratch.OfKilled*' --gtest_brief=1 2>&1",
                                  std::filesystem::read_symlink("/proc/self/exe").string());
    EXPECT_EQ(std::system(all.c_str()), 0);
}

TEST(Errors, NameTheScratchDirectory) {
    Setting setting("TMPDIR", "/proc");
    EXPECT_ERROR(compiled("// never compiled either\n"), "set TMPDIR");
}

TEST(Errors, OfLaunches) {
    auto module = compiled("extern \"C\" __global__ void k() {}");
    EXPECT_ERROR(run(*module, {.kernel = "other"}), "the module has no kernel 'other'");
    EXPECT_ERROR(run(*module, {.kernel = "k", .threads = 1025}), "1025 threads a block");
    EXPECT_ERROR(run(*module, {.kernel = "k", .shared_bytes = 1 << 20}), "1048576 bytes of shared memory");
    EXPECT_ERROR(run(*module, {.kernel = "k", .grid = {1u << 31, 4, 1}}), "too large to emulate");
    EXPECT_ERROR(run_isolated(*module, {.kernel = "other"}), "the module has no kernel 'other'");
}

}  // namespace
}  // namespace tw::emulator
