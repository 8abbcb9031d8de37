// open_device, the null device, the emulated device.
#include <cmath>

#include "dsl/registers_given.h"
#include "runtime/driver/arch.h"
#include "runtime/driver/emulated_device.h"
#include "runtime/driver/timer.h"
#include "tests/runtime/support.h"

namespace tw {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr int64_t N = 1000;

TEST(OpenDevice, KnowsItsNames) {
    EXPECT_EQ(open_device("null")->arch(), "sm_90a");
    EXPECT_EQ(open_device("null:sm_80")->arch(), "sm_80");
    EXPECT_EQ(open_device("emulated")->kind(), DeviceKind::Emulated);
    EXPECT_EQ(open_device("emulated:sm_120a")->properties().shared_bytes_per_block_optin, 99 * 1024);
    for (const char* wrong : {"gpu", "cuda:", "cuda:x", "cuda:1x", "cuda:-1", "", "nullx"})
        EXPECT_ERROR(open_device(wrong), fmt::format("open_device(\"{}\"): write cuda, cuda:N, emulated", wrong));
    EXPECT_ERROR(open_device("null:sm_1"),
                 "no architecture 'sm_1'; known are sm_80, sm_86, sm_89, sm_90, sm_90a, sm_100a, sm_120a");
    EXPECT_EQ(to_string(DeviceKind::Cuda), "cuda");
    EXPECT_EQ(to_string(DeviceKind::Emulated), "emulated");
    EXPECT_EQ(to_string(DeviceKind::Null), "null");
}

TEST(OpenDevice, ArchitecturesByCapability) {
    EXPECT_EQ(arch_of(8, 6), "sm_86");
    EXPECT_EQ(arch_of(9, 0), "sm_90a");
    EXPECT_EQ(arch_of(12, 0), "sm_120a");
    EXPECT_EQ(properties_of("sm_90a").shared_bytes_per_block_optin, 232448);
    EXPECT_EQ(properties_of("sm_90a").compute_major, 9);
}

TEST(Targets, OfADeviceHaveWhatIsThere) {
    for (const char* arch : {"sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120a"}) {
        auto device = open_device(fmt::format("null:{}", arch));
        Target known = target(arch), there = target_of(*device);
        EXPECT_EQ(there.arch, arch);
        EXPECT_EQ(there.multiprocessors, known.multiprocessors);
        EXPECT_EQ(device->properties().l2_bytes, known.l2_bytes);
        EXPECT_EQ(arch_of(known.compute_major, known.compute_minor).substr(0, 5), known.arch.substr(0, 5));
        EXPECT_GT(known.shared_bytes_per_multiprocessor, known.shared_bytes);
    }
}

/// As ptxas counts what __launch_bounds__(96, 3) leaves: 168 registers, and what has more spills.
TEST(Targets, GiveRegistersToWholeWarpsOfEachScheduler) {
    const Target hopper = target("sm_90a");
    EXPECT_EQ(registers_given(hopper, 96, 3), 168);
    EXPECT_EQ(registers_given(hopper, 256, 2), 128);
    EXPECT_EQ(registers_given(hopper, 128, 1), 255);
    EXPECT_EQ(registers_given(hopper, 1000, 1), 64);
}

TEST(Targets, SayWhatTheyHave) {
    EXPECT_EQ(first_target_with(&Target::has_mma_sync), "sm_80");
    EXPECT_EQ(first_target_with(&Target::has_mma_fp8), "sm_89");
    EXPECT_EQ(first_target_with(&Target::has_tma), "sm_90");
    EXPECT_EQ(first_target_with(&Target::has_wgmma), "sm_90a");
    EXPECT_TRUE(target("sm_120a").has_tma && target("sm_120a").has_clusters && !target("sm_120a").has_wgmma);
    EXPECT_TRUE(target("sm_100a").has_setmaxnreg && !target("sm_90").has_setmaxnreg);
    EXPECT_EQ(find_target("sm_1"), nullptr);
}

TEST(BestDevice, FollowsTheVariableAndSaysSo) {
    ScopedVariable wish("TW_DEVICE", "null:sm_80");
    ChosenDevice chosen = best_device();
    EXPECT_EQ(chosen.device->kind(), DeviceKind::Null);
    EXPECT_EQ(chosen.reason, "null:sm_80: TW_DEVICE asks for it");
}

TEST(BestDevice, SaysWhyItIsNotCuda) {
    ScopedVariable no_wish("TW_DEVICE", nullptr);
    ChosenDevice chosen = best_device();
    if (chosen.device->kind() == DeviceKind::Cuda) {
        EXPECT_EQ(chosen.reason, "cuda: " + chosen.device->name());
    } else {
        EXPECT_EQ(chosen.device->kind(), DeviceKind::Emulated);
        EXPECT_THAT(chosen.reason, StartsWith("emulated, because "));
        EXPECT_THAT(chosen.reason, testing::AnyOf(HasSubstr("Looked in:"), HasSubstr("cuInit")));
    }
}

/// One as long as it is held, so that what two calls made goes together; open_device() opens another one.
TEST(BestDevice, IsOneOfItsName) {
    for (const char* name : {"emulated", "null:sm_80"}) {
        ScopedVariable wish("TW_DEVICE", name);
        const std::shared_ptr<Device> device = best_device().device;
        EXPECT_EQ(best_device().device, device);
        EXPECT_NE(open_device(name), device);
        ScopedVariable other("TW_DEVICE", "emulated:sm_80");
        EXPECT_NE(best_device().device, device);
    }
    ScopedVariable no_wish("TW_DEVICE", nullptr);
    const ChosenDevice chosen = best_device();
    EXPECT_EQ(best_device().device, chosen.device);
}

TEST(Handles, OfNothingSayWhatToDo) {
    const Stream stream = open_device("emulated")->default_stream();
    EXPECT_ERROR(Buffer().bytes(), "buffer: it is of nothing yet; assign it one that a device has made");
    EXPECT_ERROR(Buffer().fill(0), "buffer: it is of nothing yet");
    EXPECT_ERROR(Buffer().view(0, 0), "buffer: it is of nothing yet");
    EXPECT_ERROR(Event().record(stream), "event: it is of nothing yet");
    EXPECT_ERROR(Event().synchronize(), "event: it is of nothing yet");
    EXPECT_ERROR(stream.wait(Event()), "event: it is of nothing yet");
    EXPECT_ERROR(Stream().synchronize(), "stream: it is of nothing yet");
    EXPECT_ERROR(Graph().run(), "graph: it is of nothing yet");
    EXPECT_ERROR(Graph().size(), "graph: it is of nothing yet");
}

TEST(NullDevice, PreparesAndRefusesToRun) {
    auto device = open_device("null");
    Buffer x = device->allocate(4 * N, "x"), y = device->allocate(4 * N, "y");
    EXPECT_GE(y.pointer() - x.pointer(), uint64_t(4 * N));
    EXPECT_EQ(y.pointer() % 256, 0u);
    Kernel kernel = device->load({.entry = "f", .cubin = "compiled elsewhere"});
    Launch launch = device->prepare(kernel, {.grid = {4}, .block = {256}}, {x, 1});
    EXPECT_ERROR(launch.run(), "launch: the null device only compiles; open \"cuda\" or \"emulated\" to run");
    EXPECT_ERROR(launch.run(device->create_stream()), "launch: the null device");
    std::vector<Launch> launches{launch};
    Graph graph = device->record(launches);
    graph.update(0, launch);
    EXPECT_ERROR(graph.run(), "launch: the null device");
    EXPECT_ERROR(x.read<float>(), "copy_to_host: the null device");
    EXPECT_ERROR(x.fill(0), "fill: the null device");
    EXPECT_ERROR(device->copy(x, y), "copy: the null device");
    EXPECT_ERROR(time_launch(launch), "launch: the null device");
    EXPECT_EQ(device->memory_state().total_bytes, 0);
    device->synchronize();
}

TEST(NullDevice, CompilesForItsArchitecture) {
    try {
        load_nvrtc();
    } catch (const NvrtcMissing&) {
        GTEST_SKIP() << "NVRTC is not on this machine";
    }
    auto device = open_device("null:sm_80");
    std::string source =
        "extern \"C\" __global__ void f(float* x) { __shared__ float s[64]; s[threadIdx.x] = *x; x[1] = s[3]; }\n";
    Kernel kernel = device->load({.name = "f.cu", .source = source, .entry = "f"});
    EXPECT_EQ(kernel.name(), "f.cu");
    EXPECT_EQ(kernel.entry(), "f");
    EXPECT_EQ(kernel.compiled()->of("f").static_shared_bytes, 256);
    EXPECT_THAT(kernel.compiled()->log, HasSubstr("for 'sm_80'"));
    EXPECT_ERROR(device->load({.source = source, .entry = "g"}), "there is no entry function 'g', only [f]");
    Buffer x = device->allocate(4);
    EXPECT_ERROR((device->prepare(kernel, {.block = {1}, .dynamic_shared_bytes = 166912}, {x})),
                 "166912 bytes of dynamic and 256 of static shared memory; the limit of a block is 166912");
}

TEST(NullDevice, LoadsManyAtOnce) {
    try {
        load_nvrtc();
    } catch (const NvrtcMissing&) {
        GTEST_SKIP() << "NVRTC is not on this machine";
    }
    auto device = open_device("null");
    std::vector<KernelImage> images(4);
    for (size_t i = 0; i < images.size(); ++i) {
        images[i].entry = fmt::format("k{}", i);
        images[i].source =
            fmt::format("extern \"C\" __global__ void k{}(int* x) {{ *x = {}; }}\n", i, random_source()());
    }
    images[2].cubin = "compiled elsewhere";
    std::vector<Kernel> kernels = device->load_all(images);
    ASSERT_EQ(kernels.size(), 4u);
    EXPECT_EQ(kernels[2].compiled(), nullptr);
    for (size_t i : {0, 1, 3}) EXPECT_GE(kernels[i].compiled()->of(images[i].entry).registers, 1);
    EXPECT_TRUE(device->load_all({}).empty());
    images[3].entry = "k4";
    EXPECT_ERROR(device->load_all(images), "there is no entry function 'k4', only [k3]");
}

// The emulated device.

constexpr const char* Scale = R"(
extern "C" __global__ void scale(float a, const float* x, float* y, long long n) {
    long long i = blockIdx.x * 128LL + threadIdx.x;
    if (i < n) y[i] = a * x[i];
}
)";

struct EmulatedDeviceTest : testing::Test {
    std::shared_ptr<Device> device = open_device("emulated");
    std::vector<float> values = random_floats(N);
    Kernel kernel = device->load({.name = "scale.cu", .source = Scale, .entry = "scale"});
    Buffer x = device->allocate(4 * N, "x"), y = device->allocate(4 * N, "y");

    Launch scale_by(float a, const Buffer& from, const Buffer& to, int64_t n = N) {
        return device->prepare(kernel, {.grid = {8}, .block = {128}}, {a, from, to, n});
    }
    static std::vector<float> scaled(std::vector<float> values, float a) {
        for (float& value : values) value *= a;
        return values;
    }
};

TEST_F(EmulatedDeviceTest, Runs) {
    x.write(values);
    scale_by(3, x, y).run();
    device->synchronize();
    EXPECT_EQ(y.read<float>(), scaled(values, 3));
    EXPECT_EQ(kernel.compiled(), nullptr);
}

TEST_F(EmulatedDeviceTest, ReportsAreErrors) {
    x.write(values);
    Buffer small = device->allocate(4 * (N - 1), "small");
    EXPECT_ERROR(scale_by(1, x, small).run(), "scale: the emulator reports\n");
    EXPECT_ERROR(scale_by(1, x, small).run(), "small");
    EXPECT_THROW(scale_by(1, x, small).run(), EmulatorReport);
    ASSERT_FALSE(as_emulated(*device).last_report().ok());
    EXPECT_EQ(as_emulated(*device).last_report().findings[0].kind, emulator::Finding::Kind::OutOfBounds);
    scale_by(1, x, y).run();
    EXPECT_EQ(y.read<float>(), values) << "a report is not sticky";
}

TEST_F(EmulatedDeviceTest, AViewBoundsAnArgument) {
    x.write(values);
    EXPECT_THROW(scale_by(1, x.view(0, 4 * (N - 1)), y).run(), EmulatorReport);
    scale_by(2, x.view(40, 400), y, 100).run();
    EXPECT_EQ(y.view(0, 400).read<float>(), scaled({values.begin() + 10, values.begin() + 110}, 2));
    EXPECT_NO_THROW(scale_by(2, x.view(0, 400), x.view(200, 400), 50).run()) << "overlapping views";
}

TEST_F(EmulatedDeviceTest, WritingAReadOnlyArgumentIsAFinding) {
    x.write(values);
    y.fill(0);
    auto prepare = [&](const Argument& to) {
        return device->prepare(kernel, {.grid = {8}, .block = {128}}, {2.0f, Argument::read_only(x), to, N});
    };
    prepare(y).run();
    EXPECT_EQ(y.read<float>(), scaled(values, 2));
    Launch writes = prepare(Argument::read_only(y));
    EXPECT_THROW(writes.run(), EmulatorReport);
    ASSERT_FALSE(as_emulated(*device).last_report().ok());
    EXPECT_EQ(as_emulated(*device).last_report().findings[0].kind, emulator::Finding::Kind::ReadOnly);
    writes.set(2, device->allocate(4 * N, "z"));
    EXPECT_THROW(writes.run(), EmulatorReport) << "a read-only argument stays so";
    EXPECT_NO_THROW(prepare(x).run()) << "one of two names of the same memory may write";
    EXPECT_EQ(x.read<float>(), scaled(values, 2));
}

TEST_F(EmulatedDeviceTest, NoBufferIsNearAnother) {
    std::vector<Buffer> buffers;
    for (int i = 0; i < 50; ++i) buffers.push_back(device->allocate(i * 100));
    for (const Buffer& a : buffers) {
        EXPECT_EQ(a.pointer() % 512, 0u);
        for (const Buffer& b : buffers)
            if (a.pointer() < b.pointer()) {
                EXPECT_GE(b.pointer() - (a.pointer() + uint64_t(a.bytes())), 64u << 10);
            }
    }
}

TEST_F(EmulatedDeviceTest, LoadsManyAtOnce) {
    std::vector<KernelImage> images;
    for (int i = 0; i < 3; ++i) {
        std::string entry = fmt::format("add{}", i);
        images.push_back({.name = entry + ".cu",
                          .source = fmt::format(
                              "extern \"C\" __global__ void {}(float* x) {{ x[threadIdx.x] += {}; }}\n", entry, i + 1),
                          .entry = entry});
    }
    std::vector<Kernel> kernels = device->load_all(images);
    ASSERT_EQ(kernels.size(), 3u);
    x.write(values);
    std::vector<Launch> launches;
    for (const Kernel& one : kernels) launches.push_back(device->prepare(one, {.block = {32}}, {x}));
    EXPECT_EQ(time_launches(launches, {.warmups = 0, .samples = 1}).samples.size(), 1u);
    EXPECT_EQ(x.read<float>()[31], ((values[31] + 1) + 2) + 3);
    EXPECT_EQ(x.read<float>()[32], values[32]);
    EXPECT_ERROR(time_launches({}), "time_launches: there is no launch to time");

    images[1].source += "wrong\n";
    EXPECT_ERROR(device->load_all(images), "emulated sm_90a: ");
    EXPECT_ERROR(device->load_all(images), "wrong");
    EXPECT_TRUE(device->load_all({}).empty());
}

TEST_F(EmulatedDeviceTest, ReadingWhatNobodyWroteIsAFinding) {
    EXPECT_TRUE(std::isnan(x.read<float>()[0])) << "new memory is poison";
    EXPECT_THROW(scale_by(1, x, y).run(), EmulatorReport);
    ASSERT_FALSE(as_emulated(*device).last_report().ok());
    EXPECT_EQ(as_emulated(*device).last_report().findings[0].kind, emulator::Finding::Kind::Uninitialised);
    x.write(values);
    scale_by(2, x, y).run();
    Buffer z = device->allocate(4 * N, "z");
    scale_by(2, y, z).run();  // y was written by a launch
    EXPECT_EQ(z.read<float>(), scaled(values, 4));
    Buffer w = device->allocate(4 * N, "w");
    device->copy(w, z);
    scale_by(1, w, y).run();
    EXPECT_EQ(y.read<float>(), scaled(values, 4));
    Buffer never = device->allocate(4 * N), copy_of_never = device->allocate(4 * N);
    device->copy(copy_of_never, never);
    EXPECT_THROW(scale_by(1, copy_of_never, y).run(), EmulatorReport);
    never.fill(0);
    EXPECT_NO_THROW(scale_by(1, never, y).run());
}

TEST_F(EmulatedDeviceTest, GraphsAreLists) {
    x.write(values);
    std::vector<Launch> launches{scale_by(2, x, y), scale_by(3, y, x)};
    Graph graph = device->record(launches);
    graph.run();
    EXPECT_EQ(x.read<float>(), scaled(scaled(values, 2), 3));
    launches[1].set(0, 1.0f);
    graph.update(1, launches[1]);
    graph.run(device->create_stream());
    EXPECT_EQ(x.read<float>(), scaled(scaled(scaled(values, 2), 3), 2));
}

TEST_F(EmulatedDeviceTest, CountsWhenAsked) {
    x.write(values);
    EmulatedDevice& emulated = as_emulated(*device);
    emulated.set_options({.seed = random_source()(), .statistics = true});
    Launch launch = scale_by(2, x, y);
    launch.run();
    launch.run();
    EXPECT_EQ(emulated.last_report().statistics.global_reads, uint64_t(N));
    EXPECT_EQ(emulated.statistics().global_reads, uint64_t(2 * N));
    EXPECT_EQ(emulated.statistics().global_writes, uint64_t(2 * N));
    emulated.reset_statistics();
    EXPECT_EQ(emulated.statistics().global_reads, 0u);
    EXPECT_ERROR(as_emulated(*open_device("null")), "'null (sm_90a)' is no emulated device");
}

TEST_F(EmulatedDeviceTest, TimesByTheWallClock) {
    x.write(values);
    Timing timing = time_launch(scale_by(2, x, y), {.warmups = 1, .samples = 3});
    EXPECT_GT(timing.min_seconds, 0);
    EXPECT_LE(timing.min_seconds, timing.median_seconds);
    EXPECT_LE(timing.median_seconds, timing.max_seconds);
}

TEST_F(EmulatedDeviceTest, WrapsMemoryOfOthers) {
    std::vector<float> result(N);
    scale_by(2, device->wrap(uint64_t(values.data()), 4 * N, "theirs"), device->wrap(uint64_t(result.data()), 4 * N))
        .run();
    EXPECT_EQ(result, scaled(values, 2));
}

TEST_F(EmulatedDeviceTest, RefusesWhatItCannot) {
    x.write(values);
    EXPECT_ERROR(device->prepare(kernel, {}, {x}), "scale: 1 arguments for 4 parameters");
    EXPECT_ERROR((device->prepare(kernel, {}, {1.0, x, y, N})),
                 "argument 0 is a 8-byte float, the parameter has 4 bytes");
    EXPECT_ERROR((device->prepare(kernel, {.grid = {2147483647, 3}}, {1.0f, x, y, N})), "is too large to emulate");
    EXPECT_THROW(device->prepare(kernel, {.grid = {2147483647, 3}}, {1.0f, x, y, N}), LaunchError);
    EXPECT_ERROR((device->prepare(kernel, {.block = {16, 8}}, {1.0f, x, y, N})),
                 "scale: the emulator runs blocks of one dimension, not (16, 8, 1)");
    EXPECT_ERROR(device->allocate(int64_t{1} << 50, "absurd"),
                 "emulated sm_90a: no 1125899906842624 bytes for 'absurd'");
    std::string broken = "extern \"C\" __global__ void f(int* x) {\n    x[0] = nowhere;\n}\n";
    EXPECT_ERROR(device->load({.name = "broken.cu", .source = broken, .entry = "f"}), "broken.cu: ");
    EXPECT_ERROR(device->load({.source = broken, .entry = "f"}), ">    2 |     x[0] = nowhere;\n");
    EXPECT_THROW(device->load({.source = broken, .entry = "f"}), CompileError);
}

}  // namespace
}  // namespace tw
