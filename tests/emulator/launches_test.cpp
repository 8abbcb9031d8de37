// What stands between a kernel and its launches: the launches before, and what the kernel's head says.
#include "device/vocabulary.h"
#include "runtime/emulator/host/launch_attributes.h"
#include "tests/emulator/small_kernels.h"
#include "tests/support/expect_error.h"

namespace tw::emulator {
namespace {

/// As expect_finding and expect_silence, of a kernel that is launched while others end.
std::vector<Report> run_early(Case one, std::set<std::string> names) {
    names.insert({"griddepcontrol_wait", "griddepcontrol_launch_dependents"});
    std::vector<Report> reports;
    for (uint64_t seed = 0; seed < 8; ++seed) {
        int *out_pointer, *in_pointer;
        Launch launch = one.launch(&out_pointer, &in_pointer);
        launch.starts_early = true;
        reports.push_back(
            emulator::run(*compiled(device::vocabulary_text(names) + one.text()), launch, {.seed = seed}));
    }
    return reports;
}
void expect_early_race(const Case& one, const std::string& message, const std::set<std::string>& names = {}) {
    for (const Report& report : run_early(one, names)) {
        const Finding* finding = find(report, Kind::Race);
        ASSERT_TRUE(finding) << one.body << all_messages(report);
        EXPECT_THAT(finding->message, HasSubstr(message));
        EXPECT_THAT(finding->message, HasSubstr("nothing lies before that has passed griddepcontrol_wait"));
    }
}
void expect_early_silence(const Case& one, const std::set<std::string>& names = {}) {
    for (const Report& report : run_early(one, names)) EXPECT_TRUE(report.ok()) << one.body << all_messages(report);
}

TEST(EarlyStart, WaitsBeforeItTouchesGlobalMemory) {
    expect_early_silence({.body = "shared[t] = t;\ntw::griddepcontrol_wait();\nout[t] = in[t] + shared[t];"});
    expect_early_race({.body = "out[t] = in[t];"}, "of block (0,0,0) reads 4 bytes at k.cu:");
    expect_early_race({.body = "int x = in[t];\ntw::griddepcontrol_wait();\nout[t] = x;"}, "race on 'in' at byte ");
    expect_early_race({.body = "out[t] = 1;\ntw::griddepcontrol_wait();"}, "race on 'out' at byte ");
    expect_early_race({.body = "tw::griddepcontrol_launch_dependents();\nout[t] = 1;"}, "writes 4 bytes");
    expect_early_race({.body = "tw::atomic_add(out, 1);\ntw::griddepcontrol_wait();"}, "atomically updates",
                      {"atomic_add"});
    expect_early_race({.body = "tw::cp_async<4>(shared + t * 4, in + t * 4);\ntw::cp_async_wait<0>();\n"
                               "tw::griddepcontrol_wait();\nout[t] = shared[t * 4];"},
                      "race on 'in' at byte ", {"cp_async", "cp_async_wait"});
}

TEST(EarlyStart, EachThreadWaitsOrMeetsOneThatHas) {
    expect_early_race({.body = "if (t < 32) tw::griddepcontrol_wait();\nout[t] = 1;"}, "race on 'out'");
    expect_early_silence({.body = "if (t < 32) tw::griddepcontrol_wait();\n__syncthreads();\nout[t] = 1;"});
    expect_early_race({.body = "if (t == 5) tw::griddepcontrol_wait();\n__syncwarp();\nout[t] = 1;"}, "thread (");
    expect_early_race(
        {.body = "if (blockIdx.x == 0) tw::griddepcontrol_wait();\nout[blockIdx.x * 64 + t] = 1;", .blocks = 3},
        "race on 'out'");
}

TEST(EarlyStart, IsNoMatterWhereLaunchesFollowEachOther) { expect_silence({.body = "out[t] = in[t];"}); }

TEST(Head, SaysWhatLaunchesMayBe) {
    LaunchAttributes said = attributes_in(
        "void k();\nextern \"C\" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(384, 1)\n"
        "k(const __grid_constant__ tw::TensorMap a_map, float* y,\n  const tw::TensorMap b_map, int n) {}",
        "k");
    EXPECT_EQ(said.threads, 384u);
    EXPECT_EQ(said.blocks, 1u);
    EXPECT_EQ(said.cluster[0], 4u);
    EXPECT_EQ(said.cluster[2], 1u);
    EXPECT_EQ(said.copied_maps, std::vector<std::string>{"b_map"});
    LaunchAttributes silent = attributes_in("__global__ void __launch_bounds__(Threads) f(int k) { k(1); }", "f");
    EXPECT_EQ(silent.threads, 0u);
    EXPECT_EQ(silent.blocks, 0u);
    EXPECT_EQ(silent.cluster[0], 0u);
}

struct Head {
    std::string attributes = "__launch_bounds__(64)", parameter = "int n";
    unsigned threads = 64, cluster = 1;

    void check() const {
        auto module = compiled("__global__ void " + attributes + " k(" + parameter + ") {}");
        check_launch(*module, {.kernel = "k", .grid = {4, 1, 1}, .threads = threads, .cluster = cluster});
    }
};

TEST(Head, MustFitTheLaunch) {
    EXPECT_NO_THROW(Head{}.check());
    EXPECT_NO_THROW(Head{.threads = 32}.check());
    EXPECT_ERROR(Head{.threads = 96}.check(), "k: 96 threads a block; the kernel's __launch_bounds__ allow 64");
    Head clusters{.attributes = "__cluster_dims__(2, 1, 1) __launch_bounds__(64, 1)", .cluster = 2};
    EXPECT_NO_THROW(clusters.check());
    clusters.cluster = 4;
    EXPECT_ERROR(clusters.check(), "k: clusters of 4 blocks; the kernel's __cluster_dims__ are (2, 1, 1)");
    EXPECT_NO_THROW(Head{.parameter = "const __grid_constant__ tw::TensorMap m"}.check());
    EXPECT_NO_THROW(Head{.parameter = "const tw::TensorMap* m"}.check());
    EXPECT_ERROR(Head{.parameter = "const tw::TensorMap m"}.check(),
                 "k: the tensor map 'm' is a parameter without __grid_constant__");
}

TEST(NamedBarriers, AreNotThatOfSyncthreads) {
    expect_finding({.body = "tw::barrier_sync(0, 64);"}, Kind::Divergence, 4,
                   "barriers are 1 to 15, since 0 is that of __syncthreads");
    expect_silence({.body = "shared[t] = t;\ntw::barrier_sync(1, 64);\nout[t] = shared[t ^ 1];"});
}

}  // namespace
}  // namespace tw::emulator
